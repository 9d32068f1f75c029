"""Meanings that cannot be those of numpy's operators: written for a Namespace too, once for all engines.

Numpy's own take what the others lack (sparse matrices), or ask values for their number where a framework traces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from autoshard.engines.array import Array
from autoshard.ops.axes import axis_index
from autoshard.ops.body import Body
from autoshard.ops.hlo_scatter import REPLACE
from autoshard.ops.unary import scipy_special


def gather_grad(space: Any, g, indices, *, size, axis=0, offset=0, bound=0):
    """The sum of slices by index, added one by one."""
    axis = axis_index(axis, g.ndim - indices.ndim + 1, "GatherGrad")
    flat = g.reshape(g.shape[:axis] + (indices.size,) + g.shape[axis + indices.ndim :])
    slices = space.moveaxis(flat, axis, 0)
    rows = indices.reshape(-1).astype(np.int64)
    rows = space.where(rows < 0, rows + bound, rows) if bound else rows
    rows = rows - offset
    # One row more, for indices that are not of this block.
    rows = space.where((rows >= 0) & (rows < size), rows, size)
    wide = slices.astype(np.float32) if slices.itemsize < 4 and _is_narrow_float(slices.dtype) else slices
    out = space.zeros((size + 1, *slices.shape[1:]), wide.dtype)
    space.add.at(out, rows, wide)
    return space.moveaxis(out[:size], 0, axis)


def _is_narrow_float(of: np.dtype) -> bool:
    return of.kind in "fV" and of.name.startswith(("float", "bfloat"))


def dynamic_slice(space: Any, x, *starts, sizes, reduction="sum", block=()):
    """The slice that begins at `starts`, element by element along each dim."""
    found = x
    for dim, (begin, (offset, extent), size) in enumerate(_placed(space, x, starts, sizes, block)):
        places = space.asarray(np.arange(size)) + begin - offset
        found = space.take(found, places, dim, mode="clip")
        if block and size != extent:
            inside = (places >= 0) & (places < x.shape[dim])
            found = space.where(_along(inside, dim, x.ndim), found, np.zeros((), x.dtype))
    return found


def dynamic_update_slice(space: Any, x, update, *starts, fixed=False, block=()):
    """x with `update` written over it, element by element along each dim."""
    found, inside = update, space.asarray(np.ones((1,) * x.ndim, bool))
    for dim, (begin, (offset, _), size) in enumerate(_placed(space, x, starts, update.shape, block)):
        places = space.asarray(np.arange(x.shape[dim])) + offset - begin
        found = space.take(found, places, dim, mode="clip")
        inside = inside & _along((places >= 0) & (places < size), dim, x.ndim)
    return space.where(inside, found, x)


def _placed(space: Any, x: Any, starts: Sequence[Any], sizes: Sequence[int], block: Sequence) -> list:
    """Per dim where the slice begins, the part of the whole that is here, and the size of the slice."""
    parts = block or [(0, size) for size in x.shape]
    begins = [
        space.clip(space.asarray(start).astype(np.int64), 0, extent - size)
        for start, (_, extent), size in zip(starts, parts, sizes, strict=True)
    ]
    return list(zip(begins, parts, sizes, strict=True))


def _along(values: Array, dim: int, rank: int) -> Array:
    return values.reshape((1,) * dim + (-1,) + (1,) * (rank - dim - 1))


def grouped_matmul(space: Any, x, w, ends, *, transpose_b=False, row=0, group=0, **_):
    """Each row by its group's matrix, as the library's ragged product of rows in groups that follow each other."""
    wide = space.result_type(x, w)
    made = space.library.library.grouped_matmul(
        space.library.final(space.raw(x, wide)),
        space.library.final(space.raw(w.swapaxes(1, 2) if transpose_b else w, wide)),
        space.library.final(_group_sizes(space, ends, x.shape[0], row, group, w.shape[0]).raw),
    )
    return Array(space, made)


def grouped_outer(space: Any, x, g, ends, *, row=0, group=0, count=None):
    """For each group the product of its rows, as the library's ragged product along rows."""
    groups, wide = ends.shape[0] if count is None else count, space.result_type(x, g)
    made = space.library.library.grouped_outer(
        space.library.final(space.raw(x, wide)),
        space.library.final(space.raw(g, wide)),
        space.library.final(_group_sizes(space, ends, x.shape[0], row, group, groups).raw),
    )
    return Array(space, made)


def _group_sizes(space: Any, ends: Array, rows: int, row: int, group: int, count: int) -> Array:
    """How many of the rows from `row` on are before the group, in it, and in each of the others of `count`."""
    known = ends.astype(np.int64)
    # Groups that are padding have no rows.
    numbers = np.minimum(np.arange(group, group + count + 1), ends.shape[0])
    begins = space.concatenate([np.zeros(1, np.int64), known])
    bounds = space.clip(space.take(begins, numbers, 0) - row, 0, rows)
    return space.concatenate([bounds[:1], space.maximum(bounds[1:] - bounds[:-1], 0)]).astype(np.int32)


def hlo_pad(space: Any, x, value, *, low, high, interior):
    """The library's own: it keeps an operand of which nothing is left, and with it what was received for it."""
    ends = tuple(zip(low, high, interior, strict=True))
    raws = (space.library.final(space.raw(one, x.dtype)) for one in (x, value))
    return Array(space, space.library.library.padded(*raws, ends))


def pad(space: Any, x, *, paddings, value=0, dropped=()):
    """The same; a block has elements left out only at ends where none are added."""
    gone = dropped or [(0, 0)] * x.ndim
    low = [one[0] - two[0] for one, two in zip(paddings, gone, strict=True)]
    high = [one[1] - two[1] for one, two in zip(paddings, gone, strict=True)]
    return hlo_pad(space, x, value, low=low, high=high, interior=(0,) * x.ndim)


OPERATORS: dict[str, Callable] = {
    "GatherGrad": gather_grad,
    "DynamicSlice": dynamic_slice,
    "DynamicUpdateSlice": dynamic_update_slice,
}
"""By the operator's name: `function(space, *operands, **attrs)`."""
OF_LIBRARY: dict[str, dict[str, Callable]] = {
    "jax": {"GroupedMatMul": grouped_matmul, "GroupedOuter": grouped_outer, "HloPad": hlo_pad, "Pad": pad},
}
"""The same where one library alone needs it: its arrays have sizes that are known before the run, and what nothing
reads is not run."""


def _key(own: Callable, to: Any) -> Callable:
    """The start of a random sequence, also for a step that is known in the run only."""
    key = to.function(own)

    def of_step(seed: int, step: Any) -> Any:
        return key(seed, step.astype(np.uint64) if isinstance(step, Array) else step)

    return of_step


def _places(own: type, to: Any) -> type:
    """Where slices go, with one row more for those that lie outside: how many these are is known in the run only."""
    space = to.space

    class Places(to.derived(own)):
        def _rows(self, starts: Any, batch: Any) -> tuple:
            inside, rows = super()._rows(starts, batch, everywhere=True)
            return inside, space.where(inside, rows, self._outside).reshape(-1)

        @property
        def _outside(self) -> int:
            return math.prod(self.shape[dim] for dim in self.slices.sought)

        def opened(self, array: Any) -> Any:
            held = super().opened(array)
            return space.concatenate([held, space.zeros((1, self.columns), held.dtype)])

        def closed(self, matrix: Any) -> Any:
            return super().closed(matrix[: self._outside])

        def listed(self, array: Any) -> Any:
            moved = array.transpose(self.slices.slices_order(array.ndim))
            return moved.reshape(len(self.rows), self.columns)

    return Places


def _combined(own: Callable, to: Any) -> Callable:
    """Slices combined into rows, each in turn; of those that replace the last one wins."""
    space = to.space

    def combined(olds: list, news: list, rows: Any, body: Body) -> list:
        if body == REPLACE:
            last = space.zeros(len(olds[0]), np.int64)
            space.maximum.at(last, rows, np.arange(1, len(rows) + 1))
            picked = [space.take(new, last - 1, 0, mode="clip") for new in news]
            return [space.where((last > 0)[:, None], new, old) for old, new in zip(olds, picked, strict=True)]
        ufunc = _UFUNCS.get((body.name, olds[0].dtype.kind == "b"))
        if ufunc is None:
            return _in_turn(space, olds, news, rows, body)
        for old, new in zip(olds, news, strict=True):
            getattr(space, ufunc).at(old, rows, new)
        return olds

    return combined


def _in_turn(space: Any, olds: list, news: list, rows: Any, body: Body) -> list:
    """Each slice combined with what those before it have left, by a function that the library has no name for."""

    def step(turn: Any, raws: tuple) -> tuple:
        held, turn = [space.asarray(raw) for raw in raws], space.asarray(turn)
        row = rows[turn]
        made = body(*(old[row] for old in held), *(new[turn] for new in news))
        for old, result in zip(held, made, strict=True):
            old[row] = result
        return tuple(map(space.raw, held))

    return list(map(space.asarray, space.library.repeated(len(rows), step, tuple(map(space.raw, olds)))))


_UFUNCS = {
    ("add", False): "add", ("mul", False): "multiply", ("max", False): "maximum", ("min", False): "minimum",
    ("max", True): "maximum", ("min", True): "minimum", ("or", True): "maximum", ("and", True): "minimum",
    ("add", True): "maximum", ("mul", True): "minimum",
}  # fmt: skip


def _summed(own: Callable, to: Any) -> Callable:
    """A sum: it is numpy's that is slow."""
    return lambda x, axes, keepdims=False: to.space.sum(x, tuple(axes), keepdims=keepdims)


def _dotted(own: Callable, to: Any) -> Callable:
    """Sums of products."""
    return lambda x, y: to.space.einsum("...n,...n->...", x, y)


def _largest(own: Callable, to: Any) -> Callable:
    """The largest element: it is numpy's own that is slow."""
    return lambda x, axis: to.space.max(x, axis, keepdims=True)


def _nothing_beyond(own: Callable, to: Any) -> Callable:
    """What a compiled program cannot refuse, as numbers are known in the run only, makes results that are none."""
    check, space = to.function(own), to.space

    def nothing_beyond(beyond: Any, *known: Any) -> Any:
        if isinstance(beyond, Array) and not beyond.is_known:
            return space.where(beyond, space.asarray(np.float32(math.nan)), space.asarray(np.float32(0)))
        return check(beyond, *known)

    return nothing_beyond


ROUNDED = 16
"""Units in the last place of the largest element by which a number that XLA works out anew may differ."""


def _attaining(own: Callable, to: Any) -> Callable:
    """XLA works out in each kernel anew what several use, rounded there as it likes: no element may equal the extreme
    that another kernel found, and then its gradient would be lost."""
    space = to.space

    def attaining(x: Array, extreme: Any, axes: tuple[int, ...]) -> Any:
        if x.dtype.kind != "f" or x.itemsize < 4:
            return x == extreme
        sizes = space.where(space.isfinite(x), space.abs(x), np.zeros((), x.dtype))
        near = ROUNDED * np.finfo(x.dtype).eps * space.max(sizes, axes, keepdims=True)
        return (x == extreme) | (space.abs(x - extreme) <= near)

    return attaining


def _recurred(own: Callable, to: Any) -> Callable:
    """A row after the other as one loop: written out, each of hundreds of frames would be compiled."""
    space = to.space

    def recur(step: Callable, first: Any, count: int) -> Any:
        def turned(turn: Any, raws: tuple) -> tuple:
            last, out = map(space.asarray, raws)
            turn = space.asarray(turn)
            out[turn] = last = step(turn, last)
            return space.raw(last), space.raw(out)

        start = space.raw(first), space.raw(space.zeros((count, *first.shape), first.dtype))
        return space.asarray(space.library.repeated(count, turned, start)[1])

    return recur


HELPERS: dict[str, Callable] = {
    "autoshard.ops.norm.dotted": _dotted,
    "autoshard.ops.norm.largest": _largest,
    **dict.fromkeys(("autoshard.ops.norm.summed", "autoshard.ops.reduce.summed"), _summed),
    "autoshard.ops.unary._logistic": lambda _, to: to.value(scipy_special("expit")),
    "autoshard.ops.random._key": _key,
    "autoshard.ops.hlo_scatter._Places": _places,
    "autoshard.ops.hlo_scatter._combined": _combined,
}
"""By the full name of a function that operators call: `function(own, retarget)` makes the other."""
HELPERS_OF_LIBRARY: dict[str, dict[str, Callable]] = {
    "jax": {
        "autoshard.ops.ctc.recur": _recurred,
        "autoshard.ops.experts.nothing_beyond": _nothing_beyond,
        "autoshard.ops.reduce.attaining": _attaining,
    },
}
"""The same where one library alone needs it."""


def helpers(library: str) -> dict[str, Callable]:
    """What stands for functions that operators call, on a library's arrays."""
    return HELPERS | HELPERS_OF_LIBRARY.get(library, {})


def override(name: str, space: Any) -> Callable | None:
    """The meaning of an operator on a namespace, where it is not the retargeted one of numpy."""
    found = OF_LIBRARY.get(space.library.name, {}).get(name) or OPERATORS.get(name)
    return None if found is None else partial(found, space)


__all__ = ["OF_LIBRARY", "OPERATORS", "helpers", "override"]
