"""Operators that take, place or mask elements by position: slices, padding, reversal, triangles, ranges.

A dim that is touched is a permutation factor, with the size of the uncut tensor: if it is split, each rank fetches
what its block of the result needs. Dims that are taken as they are, triangles and ranges can be split freely.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autoshard.core.rule import Rule, source_rule
from autoshard.ops.attributes import OperatorPlacement
from autoshard.ops.axes import axis_index, axis_indices, letters, sized, whole_numbers, words
from autoshard.ops.index_map import BoxMap, box
from autoshard.ops.options import Storage
from autoshard.ops.registry import operator
from autoshard.ops.windows import (
    Exchange,
    OperandWindow,
    Run,
    Slide,
    along,
    block_starts,
    common_parts,
    numbers,
    picked,
    slid,
)
from autoshard.util.errors import ShapeError

Ends = Sequence[int | None]


def _touched_rule(shape: Sequence[int], touched: Sequence[bool], other: Sequence[int] | None = None) -> Rule:
    """`a <b>^n -> a <b>^n`, where b is touched and has n parts in common with that dim of the `other` shape."""
    names = letters(len(shape))
    columns = zip(names, touched, shape, other or shape, strict=True)
    marks = [(f"<{name}>", common_parts(*sizes)) if hit else (name, 0) for name, hit, *sizes in columns]
    dims = words(f"{name}^{parts}" if parts else name for name, parts in marks)
    return sized(f"{dims} -> {dims}", names, shape)


def _split_dims(placement: OperatorPlacement, touched: Sequence[bool]) -> list[tuple[int, int]]:
    """(dim, its number of parts) of the touched dims that are split."""
    parts = placement.result_layouts[0].parts
    return [(dim, parts[dim]) for dim, hit in enumerate(touched) if hit and parts[dim] > 1]


def _window(placement: OperatorPlacement, dim: int, run: Run, wraps: bool = False) -> OperandWindow:
    return OperandWindow(0, dim, placement.operand_layouts[0].dims[dim], (run,), wraps)


# -- slices


def _slices(shape: Sequence[int], begin: Ends, end: Ends, strides: Sequence[int]) -> tuple[slice, ...]:
    strides = strides or (1,) * len(begin)
    if not len(begin) == len(end) == len(strides) <= len(shape) or 0 in strides:
        raise ShapeError(
            f"StridedSlice of {tuple(shape)}: begin {begin}, end {end} and strides {strides} must be of one "
            f"length, at most {len(shape)}, strides not 0"
        )
    given = tuple(slice(*one) for one in zip(begin, end, strides, strict=True))
    return given + (slice(None),) * (len(shape) - len(given))


def _taken(shape: Sequence[int], begin: Ends, end: Ends, strides: Sequence[int]) -> tuple[range, ...]:
    """The indices that are taken, per dim."""
    slices = _slices(shape, begin, end, strides)
    taken = tuple(range(*one.indices(size)) for one, size in zip(slices, shape, strict=True))
    for dim, indices in enumerate(taken):
        if not indices and shape[dim]:
            raise ShapeError(f"StridedSlice of {tuple(shape)}: {slices[dim]} takes nothing of dim {dim}")
    return taken


def _cut(shape: Sequence[int], taken: Sequence[range]) -> tuple[bool, ...]:
    return tuple(indices != range(size) for indices, size in zip(taken, shape, strict=True))


def _open_ends(shape: Sequence[int], attrs: dict) -> dict:
    """begin, end and strides with None where a dim is fully taken, so that they hold for any block of it."""
    given = [attrs[name] for name in ("begin", "end", "strides")]
    slices = _slices(shape, *given)
    cut = _cut(shape, _taken(shape, *given))
    kept = [one if hit else slice(None, None, 1) for one, hit in zip(slices, cut, strict=True)]
    columns = zip(*((one.start, one.stop, one.step or 1) for one in kept), strict=True)
    return dict(zip(("begin", "end", "strides"), columns, strict=False))


def _slice_rule(x: Sequence[int], begin: Ends, end: Ends, strides: Sequence[int]) -> Rule:
    taken = _taken(x, begin, end, strides)
    return _touched_rule(x, _cut(x, taken), tuple(map(len, taken)))


def _slice_shape(x: Sequence[int], begin: Ends, end: Ends, strides: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    return (tuple(map(len, _taken(x, begin, end, strides))),)


@operator(
    "StridedSlice",
    rule=_slice_rule,
    shape=_slice_shape,
    linear=((0,),),
    flops=0,
    call=("begin", "end", "strides"),
    constant="fold",
    storage=Storage(view="strided"),
)
def strided_slice(x, *, begin, end, strides=()):
    """x[begin:end:strides] per dim, as Python slices: negative ends count from the back, None is open.

    Dims beyond those given are taken whole. A slice that takes nothing is an error.
    """
    return x[_slices(x.shape, begin, end, strides)]


@strided_slice.gradient
def _(g, y, x, begin, end, strides):
    return strided_slice_grad(g, shape=x.shape, begin=begin, end=end, strides=strides)


@strided_slice.maps_indices
def _(x, begin, end, strides):
    taken = _taken(x, begin, end, strides)
    if any(indices.step != 1 for indices in taken):
        return None
    return BoxMap((box(0, [indices.start for indices in taken], [0] * len(x), [len(indices) for indices in taken]),))


@strided_slice.localize
def _(attrs, placement):
    return _open_ends(placement.operands[0].shape, attrs)


@strided_slice.exchange
def _(attrs, placement):
    shape, block = placement.operands[0].shape, placement.local_result()
    taken = _taken(shape, *(attrs[name] for name in ("begin", "end", "strides")))
    local = {name: list(values) for name, values in _open_ends(shape, attrs).items()}
    windows = []
    for dim, parts in _split_dims(placement, _cut(shape, taken)):
        run = picked(taken[dim].start, taken[dim].step, len(taken[dim]), block[dim], parts)
        windows.append(_window(placement, dim, run))
        local["begin"][dim], local["end"][dim], local["strides"][dim] = None, None, 1
    return Exchange(tuple(windows), {name: tuple(values) for name, values in local.items()})


def _placed_rule(
    g: Sequence[int], shape: Sequence[int], begin: Ends, end: Ends, strides: Sequence[int], first: Ends
) -> Rule:
    if first:
        return _touched_rule(shape, (True,) * len(shape))
    taken = _taken(shape, begin, end, strides)
    sizes = tuple(map(len, taken))
    if tuple(g) != sizes:
        raise ShapeError(f"StridedSliceGrad: a slice of {shape} has shape {sizes}, not {tuple(g)}")
    return _touched_rule(shape, _cut(shape, taken), sizes)


@operator("StridedSliceGrad", rule=_placed_rule, linear=((0,),), flops=0)
def strided_slice_grad(g, *, shape, begin, end, strides=(), first=()):
    """Zeros of `shape` in which the slice (see `strided_slice`) is g.

    `first` tells of a block, for each dim that is not None, where its first element would go; what goes outside is
    dropped.
    """
    out = np.zeros(shape, g.dtype)
    taken, kept = list(_slices(shape, begin, end, strides)), [slice(None)] * g.ndim
    for dim, at in enumerate(first):
        if at is not None:
            taken[dim], kept[dim] = _inside(at, taken[dim].step or 1, g.shape[dim], shape[dim])
    out[tuple(taken)] = g[tuple(kept)]
    return out


def _inside(at: int, step: int, count: int, room: int) -> tuple[slice, slice]:
    """Of the places at, at + step, ... those in [0, room): where they are, and which of `count` elements go there."""
    places = at + step * np.arange(count)
    inside = np.flatnonzero((places >= 0) & (places < room))
    if not len(inside):
        return slice(0, 0), slice(0, 0)
    stop = int(places[inside[-1]]) + (1 if step > 0 else -1)
    return slice(int(places[inside[0]]), stop if stop >= 0 else None, step), slice(inside[0], inside[-1] + 1)


@strided_slice_grad.gradient
def _(g, y, x, shape, begin, end, strides, first):
    return strided_slice(g, begin=begin, end=end, strides=strides)


@strided_slice_grad.localize
def _(attrs, placement):
    return {"shape": placement.local_result(), **_open_ends(attrs["shape"], attrs)}


@strided_slice_grad.exchange
def _(attrs, placement):
    shape, block = attrs["shape"], placement.local_result()
    taken = _taken(shape, *(attrs[name] for name in ("begin", "end", "strides")))
    local = {name: list(values) for name, values in _open_ends(shape, attrs).items()}
    first: list = [None] * len(shape)
    windows = []
    for dim, parts in _split_dims(placement, _cut(shape, taken)):
        step, starts = taken[dim].step, block_starts(block[dim], parts)
        ends = (starts - taken[dim].start, starts + block[dim] - 1 - taken[dim].start)
        low, high = ends if step > 0 else ends[::-1]
        least = np.maximum(0, -(-low // step))
        counts = np.maximum(0, np.minimum(len(taken[dim]) - 1, high // step) - least + 1)
        run = Run(numbers(np.where(counts, least, 0)), numbers(counts), max(1, int(counts.max())))
        windows.append(_window(placement, dim, run))
        local["begin"][dim], local["end"][dim], local["strides"][dim] = None, None, step
        places = np.where(counts, taken[dim].start + step * least - starts, block[dim] if step > 0 else -1)
        first[dim] = along(placement.operand_layouts[0], dim, numbers(places))
    return Exchange(tuple(windows), {"first": tuple(first), **{name: tuple(one) for name, one in local.items()}})


# -- padding


def _padded(x: Sequence[int], paddings: Sequence[Sequence[int]], dropped: Sequence = ()) -> tuple[int, ...]:
    pairs = all(isinstance(pair, tuple) and len(pair) == 2 for pair in paddings)
    if not pairs or len(paddings) != len(x) or any(min(whole_numbers(pair, "Pad")) < 0 for pair in paddings):
        raise ShapeError(f"Pad of {tuple(x)}: paddings {paddings} must be a (before, after) pair per dim")
    ends = zip(x, paddings, dropped or ((0, 0),) * len(x), strict=True)
    return tuple(size + before + after - front - back for size, (before, after), (front, back) in ends)


def _pad_rule(x: Sequence[int], paddings: Sequence[Sequence[int]], value: float, dropped: Sequence) -> Rule:
    padded = _padded(x, paddings, dropped)
    return _touched_rule(x, [new != old for new, old in zip(padded, x, strict=True)], padded)


@operator("Pad", rule=_pad_rule, shape=lambda x, paddings, value, dropped: (_padded(x, paddings, dropped),), flops=0)
def pad(x, *, paddings, value=0, dropped=()):
    """x with `value` around it: paddings[i] = (before, after) elements along dim i.

    `dropped` tells of a block how many elements at both ends of each dim are left out.
    """
    if dropped:
        x = x[tuple(slice(front, size - back) for (front, back), size in zip(dropped, x.shape, strict=True))]
    out = np.full(_padded(x.shape, paddings), value, x.dtype)
    out[tuple(slice(low, low + size) for (low, _), size in zip(paddings, x.shape, strict=True))] = x
    return out


@pad.exchange
def _(attrs, placement):
    shape, whole = placement.operands[0].shape, placement.results[0].shape
    dropped: list[Any] = [(0, 0)] * len(shape)
    paddings, windows = list(attrs["paddings"]), []
    for dim, parts in _split_dims(placement, [new != old for new, old in zip(whole, shape, strict=True)]):
        block, layout = placement.local_result()[dim], placement.operand_layouts[0]
        read = slid(shape[dim], Slide(low=paddings[dim][0]), block_starts(block, parts), block)
        windows.append(_window(placement, dim, read.run))
        ends = np.array([read.low, read.high])
        paddings[dim] = tuple(along(layout, dim, numbers(one)) for one in np.maximum(ends, 0))
        dropped[dim] = tuple(along(layout, dim, numbers(one)) for one in np.maximum(-ends, 0))
    return Exchange(tuple(windows), {"paddings": tuple(paddings), "dropped": tuple(dropped)})


@pad.gradient
def _(g, y, x, paddings, value, dropped):
    lows = tuple(low for low, _ in paddings)
    ends = tuple(low + size for low, size in zip(lows, x.shape, strict=True))
    return strided_slice(g, begin=lows, end=ends)


# -- order along an axis


def _moved_rule(x: Sequence[int], axis: int | Sequence[int], what: str) -> Rule:
    moved = axis_indices(axis, len(x), what)
    return _touched_rule(x, [i in moved for i in range(len(x))])


@operator(
    "ReverseV2",
    rule=lambda x, axis: _moved_rule(x, axis, "ReverseV2"),
    linear=((0,),),
    flops=0,
    storage=Storage(view="strided"),
)
def flip(x, *, axis):
    """Reverse the order along an axis, or a tuple of them."""
    return np.flip(x, axis)


def _turned(placement: OperatorPlacement, axes: Sequence[int]) -> tuple[tuple[OperandWindow, ...], tuple[int, ...]]:
    """The windows that turn the split dims of `axes` around, and the axes that are left to be turned by each rank."""
    shape, block = placement.operands[0].shape, placement.local_result()
    split = _split_dims(placement, [dim in axes for dim in range(len(shape))])
    windows = tuple(
        _window(placement, dim, picked(shape[dim] - 1, -1, shape[dim], block[dim], parts)) for dim, parts in split
    )
    return windows, tuple(axis for axis in axes if axis not in dict(split))


@flip.exchange
def _(attrs, placement):
    windows, axes = _turned(placement, axis_indices(attrs["axis"], len(placement.operands[0].shape), "ReverseV2"))
    return Exchange(windows, {"axis": axes})


@flip.gradient
def _(g, y, x, axis):
    return flip(g, axis=axis)


def _roll_rule(x: Sequence[int], shift: int | Sequence[int], axis: int | Sequence[int]) -> Rule:
    if len(whole_numbers(shift, "Roll")) != len(whole_numbers(axis, "Roll")):
        raise ShapeError(f"Roll: shift {shift} and axis {axis} must be of one length")
    return _moved_rule(x, axis, "Roll")


@operator("Roll", rule=_roll_rule, linear=((0,),), flops=0)
def roll(x, *, shift, axis):
    """Move elements `shift` places on along an axis, from the end on to the start; both may be tuples."""
    return np.roll(x, shift, axis)


@roll.exchange
def _(attrs, placement):
    shape, block = placement.operands[0].shape, placement.local_result()
    shifts = dict(zip(_axes_of(attrs["axis"], len(shape)), whole_numbers(attrs["shift"], "Roll"), strict=True))
    windows = []
    for dim, parts in _split_dims(placement, [dim in shifts for dim in range(len(shape))]):
        run = picked(-shifts.pop(dim), 1, shape[dim], block[dim], parts)
        windows.append(_window(placement, dim, run, wraps=True))
    return Exchange(tuple(windows), {"shift": tuple(shifts.values()), "axis": tuple(shifts)})


def _axes_of(axis: int | Sequence[int], rank: int) -> list[int]:
    """The axes in the order in which they are named, counted from the front."""
    return [axis_index(one, rank, "Roll") for one in whole_numbers(axis, "Roll")]


@roll.gradient
def _(g, y, x, shift, axis):
    back = tuple(-one for one in shift) if isinstance(shift, tuple) else -shift
    return roll(g, shift=back, axis=axis)


# -- triangles


@operator("Tril", rule="... m n -> ... m n", linear=((0,),), flops=0)
def tril(x, *, diagonal=0, row=0, column=0):
    """Zeros above a diagonal of the last two dims; x starts at (`row`, `column`) of the whole matrix."""
    return np.tril(x, diagonal + row - column)


@operator("Triu", rule="... m n -> ... m n", linear=((0,),), flops=0)
def triu(x, *, diagonal=0, row=0, column=0):
    """Zeros below a diagonal of the last two dims; x starts at (`row`, `column`) of the whole matrix."""
    return np.triu(x, diagonal + row - column)


@tril.gradient
def _(g, y, x, **attrs):
    return tril(g, **attrs)


@triu.gradient
def _(g, y, x, **attrs):
    return triu(g, **attrs)


@tril.localize
@triu.localize
def _(attrs, placement):
    return {"row": placement.result_offset(-2), "column": placement.result_offset(-1)}


# -- ranges


def _count(start: float, limit: float, delta: float) -> int:
    if delta == 0 or (limit - start) / delta <= 0:
        raise ShapeError(f"Range from {start} to {limit} by {delta} is empty")
    return math.ceil((limit - start) / delta)


def _range_rule(start: float, limit: float, delta: float, dtype: str, offset: int, count: int | None) -> Rule:
    return source_rule((_count(start, limit, delta) if count is None else count,))


@operator("Range", rule=_range_rule, dtype=lambda dtype, **_: dtype, flops=1, constant="source")
def arange(*, start=0, limit, delta=1, dtype="i32", offset=0, count=None):
    """start, start + delta, ... below limit; of those, `count` (default all) from number `offset` on."""
    count = _count(start, limit, delta) if count is None else count
    return start + delta * np.arange(offset, offset + count)


@arange.gradient
def _(g, y, **attrs):
    return ()


@arange.localize
def _(attrs, placement):
    return {"offset": placement.result_offset(0), "count": placement.local_result()[0]}
