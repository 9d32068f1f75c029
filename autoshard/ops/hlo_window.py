"""StableHLO's operators on sliding windows: reduce_window and select_and_scatter (pooling and its gradient).

A dim along which the window is one element, in steps of one, without padding, is untouched and can be split freely;
any other one needs neighbours.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from autoshard.errors import ShapeError
from autoshard.ops.body import Body
from autoshard.ops.factors import FactorBuilder
from autoshard.ops.folding import combine, fold_windows
from autoshard.ops.registry import operator
from autoshard.rule import PERMUTATION, REPLICATE, Rule
from autoshard.tensortype import DType

Shape = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]


class Window(NamedTuple):
    """How a window moves along one dim: its size, its steps, and what is put between and around the elements."""

    size: int
    stride: int
    base: int
    dilation: int
    low: int
    high: int

    @property
    def trivial(self) -> bool:
        """Whether element i is window i, dilations aside, at which Shardy does not look (rule of ReduceWindowOp)."""
        return (self.size, self.stride, self.low, self.high) == (1, 1, 0, 0)

    @property
    def extent(self) -> int:
        """How many elements of the padded dim a window reaches over."""
        return (self.size - 1) * self.dilation + 1

    def padded(self, size: int) -> int:
        return max(0, (size - 1) * self.base + 1 if size else 0) + self.low + self.high

    def count(self, size: int) -> int:
        """The number of windows over a dim of `size` elements."""
        room = self.padded(size) - self.extent
        return room // self.stride + 1 if room >= 0 else 0


def windows(rank: int, what: str, **given: Any) -> tuple[Window, ...]:
    """A Window per dim, from attributes that name one number (for padding, one pair) per dim or are () for the usual.

    Raises:
        ShapeError: another number of entries than dims, or sizes and steps below 1.
    """
    columns = []
    for name, usual in (("dimensions", 1), ("strides", 1), ("base_dilations", 1), ("window_dilations", 1)):
        values = given.get(name) or (usual,) * rank
        if len(values) != rank or min(values, default=1) < 1:
            raise ShapeError(f"{what} of {rank} dims: {name} {values} must be {rank} numbers of at least 1")
        columns.append(values)
    padding = given.get("padding") or ((0, 0),) * rank
    if len(padding) != rank or any(len(pair) != 2 for pair in padding):
        raise ShapeError(f"{what} of {rank} dims: padding {padding} must be {rank} pairs (before, after)")
    return tuple(Window(*numbers, *pair) for *numbers, pair in zip(*columns, padding, strict=True))


def dilated(x: np.ndarray, fill: Any, base: Sequence[int], padding: Pairs) -> np.ndarray:
    """x with base - 1 elements `fill` between its elements, and `fill` around it; negative padding cuts off."""
    if all(step == 1 for step in base) and not any(map(any, padding)):
        return x
    inner = [max(0, (size - 1) * step + 1) for size, step in zip(x.shape, base, strict=True)]
    outer = [max(0, size + low + high) for size, (low, high) in zip(inner, padding, strict=True)]
    out = np.full(outer, fill, x.dtype)
    if all(outer) and x.size:
        kept = [_kept(*one) for one in zip(x.shape, base, padding, outer, strict=True)]
        out[tuple(to for to, _ in kept)] = x[tuple(taken for _, taken in kept)]
    return out


def _kept(size: int, step: int, pad: tuple[int, int], room: int) -> tuple[slice, slice]:
    """Along one dim, where elements go in the padded dim, and which of them find a place there."""
    first = max(0, -(pad[0] // step))
    start = pad[0] + first * step
    count = max(0, min(size - first, (room - 1 - start) // step + 1))
    return slice(start, start + (count - 1) * step + 1 if count else start, step), slice(first, first + count)


# -- reduce_window


def _pooled(x: Shape, **attrs: Any) -> tuple[Window, ...]:
    return windows(len(x), "ReduceWindow", **attrs)


def _reduce_window_rule(*shapes: Shape, blocked: bool = False, **attrs: Any) -> Rule:
    count = len(shapes) // 2
    if not shapes or len(shapes) % 2 or any(shape != shapes[0] for shape in shapes[:count]) or any(shapes[count:]):
        raise ShapeError(f"ReduceWindow takes inputs of one shape, then as many scalars; not {shapes}")
    x = shapes[0]
    builder = FactorBuilder([*[len(x)] * count, *[0] * count], [len(x)] * count)
    for dim, (size, window) in enumerate(zip(x, _pooled(x, **attrs), strict=True)):
        if window.trivial:
            builder.along(dim, window.count(size), whole=window.base != 1)
        else:
            builder.along(dim, window.count(size), PERMUTATION, blocked)
    return builder.build()


def _window_shapes(*shapes: Shape, **attrs: Any) -> tuple[Shape, ...]:
    x = shapes[0]
    result = tuple(window.count(size) for size, window in zip(x, _pooled(x, **attrs), strict=True))
    return (result,) * (len(shapes) // 2)


def _starting_types(*dtypes: DType, **_: object) -> tuple[DType, ...]:
    return dtypes[len(dtypes) // 2 :]


@operator("ReduceWindow", rule=_reduce_window_rule, shape=_window_shapes, dtype=_starting_types)
def reduce_window(*xs, dimensions, strides=(), base_dilations=(), window_dilations=(), padding=(), body):
    """What `body` makes of the elements in each window; operands are inputs, then a scalar for each to start from.

    Padding, and what `base_dilations` puts between elements, has the value of that scalar.
    """
    count = len(xs) // 2
    starts = xs[count:]
    moves = _pooled(
        xs[0].shape,
        dimensions=dimensions,
        strides=strides,
        base_dilations=base_dilations,
        window_dilations=window_dilations,
        padding=padding,
    )
    base, pads = tuple(one.base for one in moves), tuple((one.low, one.high) for one in moves)
    arrays = tuple(
        dilated(x.astype(start.dtype, copy=False), start, base, pads)
        for x, start in zip(xs[:count], starts, strict=True)
    )
    shape = tuple(window.count(size) for size, window in zip(xs[0].shape, moves, strict=True))
    if 0 in shape:
        return tuple(np.empty(shape, start.dtype) for start in starts)
    for axis, window in enumerate(moves):
        arrays = fold_windows(body, arrays, axis, window.size, window.stride, window.dilation)
    return combine(body, tuple(np.broadcast_to(start, shape) for start in starts), arrays)


@reduce_window.conservative
def _(*shapes, **attrs):
    return _reduce_window_rule(*shapes, blocked=True, **attrs)


# -- select_and_scatter


def _scattered(operand: Shape, source: Shape, dimensions: Any, strides: Any, padding: Any) -> tuple[Window, ...]:
    moves = windows(len(operand), "SelectAndScatter", dimensions=dimensions, strides=strides, padding=padding)
    counts = tuple(window.count(size) for size, window in zip(operand, moves, strict=True))
    if counts != tuple(source):
        raise ShapeError(f"SelectAndScatter: {operand} has windows {counts}, but the source is {tuple(source)}")
    return moves


def _scatter_rule(
    operand: Shape, source: Shape, start: Shape, *, dimensions: Any, strides: Any, padding: Any, **options: Any
) -> Rule:
    blocked = bool(options.get("blocked"))
    moves = _scattered(operand, source, dimensions, strides, padding)
    builder = FactorBuilder([len(operand), len(source), len(start)], [len(operand)])
    for dim, (size, count, window) in enumerate(zip(operand, source, moves, strict=True)):
        if window.trivial:
            builder.factor({0: dim, 1: dim, 3: dim}, size)
        else:
            builder.factor({1: dim}, count, REPLICATE, blocked)
            builder.factor({0: dim, 3: dim}, size, PERMUTATION, blocked)
    return builder.build()


@operator(
    "SelectAndScatter",
    rule=_scatter_rule,
    shape=lambda operand, *_, **__: (operand,),
    dtype=lambda operand, *_, **__: operand,
)
def select_and_scatter(operand, source, start, *, dimensions, strides=(), padding=(), select, scatter):
    """Each element of source added, by `scatter`, where its window of operand has the element that `select` prefers.

    select(a, b) tells whether a stays against b; `start` is what elements hold that no window chose. Padding is never
    chosen.
    """
    moves = _scattered(operand.shape, source.shape, dimensions, strides, padding)
    chosen = _chosen(operand, moves, select)
    lows = tuple((one.low, one.high) for one in moves)
    room = tuple(one.padded(size) for size, one in zip(operand.shape, moves, strict=True))
    sums = np.full(room, start, operand.dtype)
    for number, place in enumerate(_places(moves, source.shape)):
        here = sums[place]
        added = combine(scatter, (here,), (source.astype(operand.dtype, copy=False),))[0]
        sums[place] = np.where(chosen == number, added, here)
    return dilated(sums, start, (1,) * operand.ndim, tuple((-low, -high) for low, high in lows))


@select_and_scatter.conservative
def _(*shapes, **attrs):
    return _scatter_rule(*shapes, blocked=True, **attrs)


def _places(moves: Sequence[Window], counts: Shape) -> Iterator[tuple[slice, ...]]:
    """For each place in a window, where all windows have it: slices of the padded tensor. Two never overlap in one."""
    for offsets in itertools.product(*(range(one.size) for one in moves)):
        yield tuple(
            slice(at, at + (count - 1) * one.stride + 1, one.stride)
            for at, count, one in zip(offsets, counts, moves, strict=True)
        )


def _chosen(operand: np.ndarray, moves: Sequence[Window], select: Body) -> np.ndarray:
    """Which place of each window holds the element that `select` keeps; -1 where all of it is padding."""
    pads = tuple((one.low, one.high) for one in moves)
    padded = dilated(operand, operand.dtype.type(0), (1,) * operand.ndim, pads)
    real = dilated(np.ones(operand.shape, bool), False, (1,) * operand.ndim, pads)
    counts = tuple(one.count(size) for size, one in zip(operand.shape, moves, strict=True))
    best, chosen = np.zeros(counts, operand.dtype), np.full(counts, -1)
    for number, place in enumerate(_places(moves, counts)):
        stays = np.asarray(select(best, padded[place])[0], bool) & (chosen >= 0)
        taken = real[place] & ~stays
        best, chosen = np.where(taken, padded[place], best), np.where(taken, number, chosen)
    return chosen
