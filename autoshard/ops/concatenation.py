"""Operators that join several tensors along an axis, or cut one into several: concat, split, stack, unstack.

Blocks of the joined axis are put together from what other ranks hold of it, except where it is new (stack, unstack): a
rank needs that whole. All of them are linear in all operands together.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from autoshard.core.rule import Rule
from autoshard.ops.attributes import OperatorPlacement
from autoshard.ops.axes import axis_index, letters, sized, unsplit_words, whole_numbers, words
from autoshard.ops.index_map import BoxMap, box
from autoshard.ops.options import Storage
from autoshard.ops.registry import operator
from autoshard.ops.source import zeros_like
from autoshard.ops.windows import (
    Exchange,
    OperandWindow,
    Run,
    Varying,
    along,
    block_starts,
    common_parts,
    numbers,
    picked,
)
from autoshard.util.errors import ShapeError


def _joined_rule(shape: Sequence[int], axis: int, parts: Sequence[int], operands: int, results: int) -> Rule:
    """One factor per dim over all tensors; that of `axis` has the joined size of the parts."""
    names, total = letters(len(shape)), sum(parts)
    common = common_parts(*parts, total)
    mark = f"^{common}" if common else ""
    dims = unsplit_words(names, (axis,), mark)
    sizes = [total if i == axis else size for i, size in enumerate(shape)]
    return sized(f"{', '.join([dims] * operands)} -> {', '.join([dims] * results)}", names, sizes)


def joined_windows(
    placement: OperatorPlacement, axis: int
) -> tuple[tuple[OperandWindow, ...], tuple[Varying, ...], int]:
    """What a block of tensors joined along `axis` needs of each, where these begin in it, and its size."""
    layout, block = placement.result_layouts[0], placement.local_result()[axis]
    parts, before, windows, places = layout.parts[axis], 0, [], []
    starts = block_starts(block, parts)
    for i, of in enumerate(placement.operands):
        size = of.shape[axis]
        first = np.maximum(0, starts - before)
        counts = np.maximum(0, np.minimum(size, starts + block - before) - first)
        run = Run(numbers(np.where(counts, first, 0)), numbers(counts), max(1, int(counts.max())))
        windows.append(OperandWindow(i, axis, layout.dims[axis], (run,)))
        places.append(along(layout, axis, numbers(np.where(counts, first + before - starts, block))))
        before += size
    return tuple(windows), tuple(places), block


def placed(xs: Sequence[np.ndarray], axis: int, places: Sequence[int], size: int) -> np.ndarray:
    """Tensors laid along an axis `size` long, each from its place on; later ones over earlier ones."""
    shape = (*xs[0].shape[:axis], size, *xs[0].shape[axis + 1 :])
    out = np.zeros(shape, np.result_type(*xs))
    for x, at in zip(xs, places, strict=True):
        count = min(x.shape[axis], size - at)
        ahead = (slice(None),) * axis
        out[(*ahead, slice(at, at + count))] = x[(*ahead, slice(0, count))]
    return out


def joined_boxes(shapes: Sequence[Sequence[int]], axis: int) -> BoxMap:
    """Tensors one behind the other along `axis`."""
    boxes, before = [], 0
    for i, shape in enumerate(shapes):
        nowhere = [0] * len(shape)
        boxes.append(box(i, nowhere, [*nowhere[:axis], before, *nowhere[axis + 1 :]], shape))
        before += shape[axis]
    return BoxMap(tuple(one for one in boxes if all(one.count)))


def _as_tuple(results: Any) -> tuple:
    """Operators with one result hand it out bare."""
    return tuple(results) if isinstance(results, tuple | list) else (results,)


def _filled(gs: Sequence[Any], ys: Sequence[Any]) -> list[Any]:
    """The gradients of all results, zeros where nothing depends on one."""
    return [zeros_like(y) if g is None else g for g, y in zip(gs, ys, strict=True)]


def _concat_check(shapes: Sequence[Sequence[int]], axis: int) -> int:
    if not shapes:
        raise ShapeError("Concat takes at least one operand")
    axis = axis_index(axis, len(shapes[0]), "Concat")
    for i, shape in enumerate(shapes):
        same = len(shape) == len(shapes[0]) and all(
            a == b for d, (a, b) in enumerate(zip(shape, shapes[0], strict=True)) if d != axis
        )
        if not same:
            raise ShapeError(
                f"Concat along axis {axis}: operand {i} is {tuple(shape)} but operand 0 {tuple(shapes[0])}; "
                f"only that axis may differ"
            )
    return axis


def _concat_rule(*shapes: Sequence[int], axis: int, **_: object) -> Rule:
    axis = _concat_check(shapes, axis)
    return _joined_rule(shapes[0], axis, [shape[axis] for shape in shapes], len(shapes), 1)


def _concat_shape(*shapes: Sequence[int], axis: int, size: int, **_: object) -> tuple[tuple[int, ...], ...]:
    axis = _concat_check(shapes, axis)
    total = size or sum(shape[axis] for shape in shapes)
    return ((*shapes[0][:axis], total, *shapes[0][axis + 1 :]),)


@operator("Concat", rule=_concat_rule, shape=_concat_shape, linear=((),), flops=0, storage=Storage(scratch=0))
def concat(*xs, axis=0, places=(), size=0):
    """Join tensors along an existing axis, in which alone their sizes may differ.

    `places` and `size` tell of a block where in it each operand begins, and how long it is; see `placed`.
    """
    return placed(xs, axis % xs[0].ndim, places, size) if places else np.concatenate(xs, axis)


@concat.maps_indices
def _(*shapes, axis, **_):
    return joined_boxes(shapes, axis_index(axis, len(shapes[0]), "Concat"))


@concat.exchange
def _(attrs, placement):
    axis = axis_index(attrs["axis"], placement.operands[0].rank, "Concat")
    windows, places, size = joined_windows(placement, axis)
    return Exchange(windows, {"places": places, "size": size})


@concat.gradient
def _(g, y, *xs, axis, places, size):
    return _as_tuple(split(g, axis=axis, sizes=tuple(x.shape[axis] for x in xs)))


def _split_sizes(
    shape: Sequence[int], axis: int, output_num: int, sizes: int | Sequence[int] | None
) -> tuple[int, ...]:
    extent = shape[axis_index(axis, len(shape), "Split")]
    if sizes is None:
        (count,) = whole_numbers(output_num, "Split")
        if count < 1 or extent % count:
            raise ShapeError(f"Split of {tuple(shape)}: {count} parts do not divide axis {axis} of size {extent}")
        return (extent // count,) * count
    if isinstance(sizes, int) and sizes > 0:
        sizes = (sizes,) * (extent // sizes) + ((extent % sizes,) if extent % sizes else ())
    sizes = whole_numbers(sizes, "Split")
    if sum(sizes) != extent or any(size < 0 for size in sizes):
        raise ShapeError(f"Split: sizes {sizes} must be 0 or more and add to {extent}, axis {axis} of {tuple(shape)}")
    return sizes


def _split_rule(x: Sequence[int], axis: int, output_num: int, sizes: int | Sequence[int] | None) -> Rule:
    parts = _split_sizes(x, axis, output_num, sizes)
    return _joined_rule(x, axis_index(axis, len(x), "Split"), parts, 1, len(parts))


def _split_shapes(
    x: Sequence[int], axis: int, output_num: int, sizes: int | Sequence[int] | None
) -> tuple[tuple[int, ...], ...]:
    at = axis_index(axis, len(x), "Split")
    return tuple((*x[:at], size, *x[at + 1 :]) for size in _split_sizes(x, axis, output_num, sizes))


@operator("Split", rule=_split_rule, shape=_split_shapes, linear=((0,),), flops=0, storage=Storage(view="strided"))
def split(x, *, sizes=None, axis=0, output_num=1):
    """Cut an axis into `output_num` equal parts, into parts of the given sizes, or of one size, the last with the rest.

    One result each.
    """
    ends = list(accumulate(_split_sizes(x.shape, axis, output_num, sizes)))
    return tuple(np.split(x, ends[:-1], axis))


@split.exchange
def _(attrs, placement):
    axis = axis_index(attrs["axis"], placement.operands[0].rank, "Split")
    layout, before, runs = placement.operand_layouts[0], 0, []
    for i, of in enumerate(placement.results):
        runs.append(picked(before, 1, of.shape[axis], placement.local_result(i)[axis], layout.parts[axis]))
        before += of.shape[axis]
    return Exchange(
        (OperandWindow(0, axis, layout.dims[axis], tuple(runs)),), {"sizes": tuple(run.width for run in runs)}
    )


@split.gradient
def _(g, y, x, axis, **_):
    return concat(*_filled(_as_tuple(g), _as_tuple(y)), axis=axis)


def _stack_rule(*shapes: Sequence[int], axis: int) -> tuple[str, dict[str, int]]:
    if not shapes or any(tuple(shape) != tuple(shapes[0]) for shape in shapes):
        shown = ", ".join(str(tuple(shape)) for shape in shapes) or "none"
        raise ShapeError(f"Stack takes one or more operands of one shape, not {shown}")
    axis = axis_index(axis, len(shapes[0]) + 1, "Stack")
    (new, *names) = letters(len(shapes[0]) + 1)
    result = [*names[:axis], f"[{new}]", *names[axis:]]
    return f"{', '.join([words(names)] * len(shapes))} -> {words(result)}", {new: len(shapes)}


@operator("Stack", rule=_stack_rule, linear=((),), flops=0)
def stack(*xs, axis=0):
    """Join tensors of one shape along a new axis."""
    return np.stack(xs, axis)


@stack.gradient
def _(g, y, *xs, axis):
    return _as_tuple(unstack(g, axis=axis))


def _unstack_rule(x: Sequence[int], axis: int, num: int | None) -> str:
    axis = axis_index(axis, len(x), "Unstack")
    if num not in (None, x[axis]):
        raise ShapeError(f"Unstack: axis {axis} of {tuple(x)} gives {x[axis]} tensors, not {num}")
    names = letters(len(x))
    rest = words(names[:axis] + names[axis + 1 :])
    names[axis] = f"[{names[axis]}]"
    return f"{words(names)} -> {', '.join([rest] * x[axis])}"


@operator("Unstack", rule=_unstack_rule, linear=((0,),), flops=0, storage=Storage(view="strided"))
def unstack(x, *, axis=0, num=None):
    """The slices of x along an axis, one result each; `num`, if given, must be their number."""
    return tuple(np.moveaxis(x, axis, 0))


@unstack.gradient
def _(g, y, x, axis, num):
    return stack(*_filled(_as_tuple(g), _as_tuple(y)), axis=axis)
