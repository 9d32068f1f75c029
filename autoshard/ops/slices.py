"""Operators that take, place or mask elements by position: slices, padding, reversal, triangles, ranges.

A dim that is touched is whole on every rank while the operator runs (a permutation factor, with the size of
the uncut tensor); dims that are taken as they are, triangles and ranges can be split freely.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autoshard.errors import ShapeError
from autoshard.ops.axes import axis_indices, letters, sized, whole_numbers, words
from autoshard.ops.registry import operator, source_rule
from autoshard.rule import Rule

Ends = Sequence[int | None]


def _touched_rule(shape: Sequence[int], touched: Sequence[bool]) -> Rule:
    """`a <b> -> a <b>`, where b is touched."""
    names = letters(len(shape))
    dims = words(f"<{name}>" if hit else name for name, hit in zip(names, touched, strict=True))
    return sized(f"{dims} -> {dims}", names, shape)


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
        if not indices:
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
    return _touched_rule(x, _cut(x, _taken(x, begin, end, strides)))


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
)
def strided_slice(x, *, begin, end, strides=()):
    """x[begin:end:strides] per dim, as Python slices: negative ends count from the back, None is open.

    Dims beyond those given are taken whole. A slice that takes nothing is an error.
    """
    return x[_slices(x.shape, begin, end, strides)]


@strided_slice.gradient
def _(g, y, x, begin, end, strides):
    return strided_slice_grad(g, shape=x.shape, begin=begin, end=end, strides=strides)


@strided_slice.localize
def _(attrs, place):
    return _open_ends(place.operands[0].shape, attrs)


def _placed_rule(g: Sequence[int], shape: Sequence[int], begin: Ends, end: Ends, strides: Sequence[int]) -> Rule:
    taken = _taken(shape, begin, end, strides)
    sizes = tuple(map(len, taken))
    if tuple(g) != sizes:
        raise ShapeError(f"StridedSliceGrad: a slice of {shape} has shape {sizes}, not {tuple(g)}")
    return _touched_rule(shape, _cut(shape, taken))


@operator("StridedSliceGrad", rule=_placed_rule, linear=((0,),), flops=0)
def strided_slice_grad(g, *, shape, begin, end, strides=()):
    """Zeros of `shape` in which the slice (see `strided_slice`) is g."""
    out = np.zeros(shape, g.dtype)
    out[_slices(shape, begin, end, strides)] = g
    return out


@strided_slice_grad.gradient
def _(g, y, x, shape, begin, end, strides):
    return strided_slice(g, begin=begin, end=end, strides=strides)


@strided_slice_grad.localize
def _(attrs, place):
    return {"shape": place.local_result(), **_open_ends(attrs["shape"], attrs)}


# -- padding


def _padded(x: Sequence[int], paddings: Sequence[Sequence[int]]) -> tuple[int, ...]:
    pairs = all(isinstance(pair, tuple) and len(pair) == 2 for pair in paddings)
    if not pairs or len(paddings) != len(x) or any(min(whole_numbers(pair, "Pad")) < 0 for pair in paddings):
        raise ShapeError(f"Pad of {tuple(x)}: paddings {paddings} must be a (before, after) pair per dim")
    return tuple(size + before + after for size, (before, after) in zip(x, paddings, strict=True))


def _pad_rule(x: Sequence[int], paddings: Sequence[Sequence[int]], value: float) -> Rule:
    return _touched_rule(x, [new != old for new, old in zip(_padded(x, paddings), x, strict=True)])


@operator("Pad", rule=_pad_rule, shape=lambda x, paddings, value: (_padded(x, paddings),), flops=0)
def pad(x, *, paddings, value=0):
    """x with `value` around it: paddings[i] = (before, after) elements along dim i."""
    out = np.full(_padded(x.shape, paddings), value, x.dtype)
    out[tuple(slice(low, low + size) for (low, _), size in zip(paddings, x.shape, strict=True))] = x
    return out


@pad.gradient
def _(g, y, x, paddings, value):
    lows = tuple(low for low, _ in paddings)
    ends = tuple(low + size for low, size in zip(lows, x.shape, strict=True))
    return strided_slice(g, begin=lows, end=ends)


# -- order along an axis


def _moved_rule(x: Sequence[int], axis: int | Sequence[int], what: str) -> Rule:
    moved = axis_indices(axis, len(x), what)
    return _touched_rule(x, [i in moved for i in range(len(x))])


@operator("ReverseV2", rule=lambda x, axis: _moved_rule(x, axis, "ReverseV2"), linear=((0,),), flops=0)
def flip(x, *, axis):
    """Reverse the order along an axis, or a tuple of them."""
    return np.flip(x, axis)


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
def _(attrs, place):
    return {"row": place.result_offset(-2), "column": place.result_offset(-1)}


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
def _(attrs, place):
    return {"offset": place.result_offset(0), "count": place.local_result()[0]}
