"""StableHLO's slices at places known only when they run: dynamic_slice and dynamic_update_slice.

Start indices are scalar operands, one per dim; they are clamped so that the slice lies inside the operand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from autoshard.core.rule import PASS, REPLICATE, Rule
from autoshard.core.tensortype import DType
from autoshard.ops.attributes import OperatorPlacement
from autoshard.ops.factors import FactorBuilder
from autoshard.ops.options import Filling, Storage
from autoshard.ops.registry import operator
from autoshard.util.errors import ShapeError

Shape = tuple[int, ...]


def start_index(index: np.ndarray) -> np.ndarray:
    """Indices of any width as signed numbers; those beyond 63 bits become the largest."""
    if index.dtype == np.uint64:
        index = np.minimum(index, np.uint64(np.iinfo(np.int64).max))
    return index.astype(np.int64, copy=False)


def _extents(x: Shape, block: Sequence) -> Shape:
    """The sizes of the tensor that x is a part of."""
    return tuple(extent for _, extent in block) or x


def _starts(starts: Sequence[np.ndarray], extents: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """The starts, clamped to 0 .. extent - size."""
    rows = zip(starts, extents, sizes, strict=True)
    return [min(max(int(start_index(start)), 0), extent - size) for start, extent, size in rows]


def _first_type(x: DType, *_: DType, **__: object) -> DType:
    return x


def _check(what: str, x: Shape, sizes: Sequence[int], starts: Sequence[Shape]) -> None:
    inside = len(sizes) == len(x) and all(0 <= size <= of for size, of in zip(sizes, x, strict=True))
    if not inside or len(starts) != len(x) or any(starts):
        raise ShapeError(
            f"{what} of {x}: the slice {tuple(sizes)} must lie inside, and the start index must be a scalar per dim, "
            f"not operands of shapes {', '.join(map(str, starts)) or 'none'}"
        )


# -- dynamic_slice


def _slice_shape(
    x: Shape, *starts: Shape, sizes: Sequence[int], block: Sequence = (), **_: object
) -> tuple[Shape, ...]:
    _check("DynamicSlice", _extents(x, block), sizes, starts)
    return (tuple(sizes),)


def _slice_rule(x: Shape, *starts: Shape, sizes: Sequence[int], reduction: str, **_: object) -> Rule:
    """Shardings of a dim that is cut are not handed on, as the start is not known; ranks look in their blocks."""
    _slice_shape(x, *starts, sizes=sizes)
    builder, result = FactorBuilder([len(x), *(0 for _ in starts)], [len(x)]), len(starts) + 1
    for dim, (size, taken) in enumerate(zip(x, sizes, strict=True)):
        if size == taken:
            builder.along(dim, size)
        else:
            builder.looked_up({0: dim}, size, {result: dim}, taken)
    return replace(builder.build(), reduction=reduction)


@operator(
    "DynamicSlice",
    rule=_slice_rule,
    shape=_slice_shape,
    dtype=_first_type,
    linear=((0,),),
    flops=0,
    spread="slice",
    storage=Storage(view="strided"),
    filling=Filling(neutral="own"),
)
def dynamic_slice(x, *starts, sizes, reduction="sum", block=()):
    """The slice of x of these sizes that begins at `starts`, moved back inside where it would reach beyond.

    `block` holds, per dim, the (offset, extent) of the whole operand that x is a part of; elements outside of x are 0,
    and `reduction` combines what ranks with different parts find: 'max' for bools.
    """
    whole = _starts(starts, _extents(x.shape, block), sizes)
    if not block:
        return x[tuple(slice(start, start + size) for start, size in zip(whole, sizes, strict=True))]
    inside, source = _overlap(whole, block, sizes, x.shape)
    out = np.zeros(sizes, x.dtype)
    out[source] = x[inside]
    return out


def _overlap(
    starts: Sequence[int], block: Sequence[tuple[int, int]], sizes: Sequence[int], held: Sequence[int]
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Where a slice lies in a block of the whole, and which part of the slice that is."""
    inside, part = [], []
    for start, (offset, _), size, here in zip(starts, block, sizes, held, strict=True):
        low = start - offset
        begin = min(max(low, 0), here)
        end = max(begin, min(low + size, here))
        inside.append(slice(begin, end))
        part.append(slice(begin - low, end - low) if end > begin else slice(0, 0))
    return tuple(inside), tuple(part)


def _block(placement: OperatorPlacement, cut: Sequence[int]) -> tuple:
    """The (offset, extent) of the whole operand that the local one is a part of; dims that are not cut begin at 0."""
    whole, local = placement.operands[0].shape, placement.local_operand(0)
    return tuple(
        (placement.operand_offset(0, dim), size) if dim in cut else (0, local[dim]) for dim, size in enumerate(whole)
    )


@dynamic_slice.localize
def _(attrs, placement):
    sizes, layout = placement.local_result(), placement.operand_layouts[0]
    cut = [dim for dim, size in enumerate(placement.operands[0].shape) if attrs["sizes"][dim] != size]
    split = any(layout.dims[dim] for dim in cut)
    return {"sizes": sizes, "block": _block(placement, cut) if split else ()}


# -- dynamic_update_slice


def _update_shape(x: Shape, update: Shape, *starts: Shape, block: Sequence = (), **_: object) -> tuple[Shape, ...]:
    # Of a part of the operand, the update has to lie inside the whole.
    _check("DynamicUpdateSlice", _extents(x, block), update, starts)
    return (x,)


def _update_rule(x: Shape, update: Shape, *starts: Shape, fixed: bool, block: Sequence = (), **_: object) -> Rule:
    """Where the update is narrower, x and the result share a factor and the update has its own.

    Shardy lets that one be split if all start indices are constants; here a rank still needs all of it.
    """
    _update_shape(x, update, *starts, block=block)
    builder = FactorBuilder([len(x), len(update), *(0 for _ in starts)], [len(x)])
    for dim, (size, written) in enumerate(zip(x, update, strict=True)):
        if size == written:
            builder.along(dim, size)
        else:
            builder.factor({0: dim, len(builder.ranks) - 1: dim}, size)
            builder.factor({1: dim}, written, PASS if fixed else REPLICATE, whole=True)
    return builder.build()


@operator(
    "DynamicUpdateSlice",
    rule=_update_rule,
    shape=_update_shape,
    dtype=_first_type,
    linear=((0, 1),),
    flops=0,
    spread="slice",
)
def dynamic_update_slice(x, update, *starts, fixed=False, block=()):
    """x with `update` written over it from `starts` on, moved back inside where it would reach beyond.

    `fixed` says that all starts are constants. `block` holds, per dim, the (offset, extent) of the whole operand that
    x is a part of; what falls outside of x is not written.
    """
    whole = _starts(starts, _extents(x.shape, block), update.shape)
    inside, source = _overlap(whole, block or [(0, size) for size in x.shape], update.shape, x.shape)
    out = x.copy()
    out[inside] = update[source]
    return out


@dynamic_update_slice.localize
def _(attrs, placement):
    # A dim that is written in full begins at 0 on every rank.
    update = placement.operands[1].shape
    return {
        "block": _block(placement, [dim for dim, size in enumerate(placement.operands[0].shape) if update[dim] != size])
    }
