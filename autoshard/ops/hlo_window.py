"""StableHLO's operators on sliding windows: reduce_window and select_and_scatter (pooling and its gradient).

A dim along which the window is one element, in steps of one, without padding, is untouched and can be split freely;
of any other one ranks fetch what their windows read.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from autoshard.core.rule import PASS, PERMUTATION, REPLICATE, Rule
from autoshard.core.tensortype import DType
from autoshard.ops.attributes import OperatorPlacement
from autoshard.ops.body import Body
from autoshard.ops.factors import FactorBuilder
from autoshard.ops.folding import combine, fold_windows
from autoshard.ops.hlo_scan import scan_exchange
from autoshard.ops.registry import operator
from autoshard.ops.windows import Exchange, Numbers, Run, Slide, along, block_starts, common_parts, numbers, slid
from autoshard.ops.windows import OperandWindow as Fetched
from autoshard.util.errors import ShapeError

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


def scanned_dim(shape: Shape, moves: Sequence[Window]) -> int | None:
    """The one dim along which windows reach from an end up to each element; None if there is none, or others move."""
    moving = [dim for dim, move in enumerate(moves) if not move.trivial or move.base != 1]
    if len(moving) != 1:
        return None
    size, move = shape[moving[0]], moves[moving[0]]
    ends = ((size - 1, 0), (0, size - 1))
    return moving[0] if move[:4] == (size, 1, 1, 1) and (move.low, move.high) in ends else None


_MOVES = ("dimensions", "strides", "base_dilations", "window_dilations", "padding")


def _pooled(x: Shape, **attrs: Any) -> tuple[Window, ...]:
    return windows(len(x), "ReduceWindow", **attrs)


def _reduce_window_rule(*shapes: Shape, blocked: bool = False, **attrs: Any) -> Rule:
    count = len(shapes) // 2
    if not shapes or len(shapes) % 2 or any(shape != shapes[0] for shape in shapes[:count]) or any(shapes[count:]):
        raise ShapeError(f"ReduceWindow takes inputs of one shape, then as many scalars; not {shapes}")
    x = shapes[0]
    builder = FactorBuilder([*[len(x)] * count, *[0] * count], [len(x)] * count)
    for dim, (size, window) in enumerate(zip(x, _pooled(x, **attrs), strict=True)):
        windowed = not window.trivial or window.base != 1
        exchange = common_parts(size, window.count(size)) if windowed else 0
        kind, stops = (PASS, False) if window.trivial else (PERMUTATION, blocked)
        builder.along(dim, window.count(size), kind, stops, windowed and not exchange, exchange)
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


@reduce_window.exchange
def _(attrs: Mapping[str, Any], placement: OperatorPlacement) -> Exchange:
    shape, block, layout = placement.operands[0].shape, placement.local_result(), placement.result_layouts[0]
    moves = _pooled(shape, **{name: attrs[name] for name in _MOVES})
    scanned = scanned_dim(shape, moves) if len(placement.results) == 1 else None
    if scanned is not None and layout.parts[scanned] * block[scanned] == shape[scanned]:
        return scan_exchange(
            layout, scanned, shape[scanned], attrs["body"], moves[scanned].high > 0, placement.results[0].dtype
        )
    padding: list[Any] = [(move.low, move.high) for move in moves]
    windows = []
    for dim, (move, parts) in enumerate(zip(moves, layout.parts, strict=True)):
        if parts > 1 and not (move.trivial and move.base == 1):
            slide = Slide(move.size, move.stride, move.base, move.dilation, move.low)
            read = slid(shape[dim], slide, block_starts(block[dim], parts), block[dim])
            windows += [Fetched(i, dim, layout.dims[dim], (read.run,)) for i in range(len(placement.results))]
            padding[dim] = (along(layout, dim, read.low), along(layout, dim, read.high))
    return Exchange(tuple(windows), {"padding": tuple(padding)})


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
    blocked, adds = bool(options.get("blocked")), getattr(options.get("scatter"), "name", "") == "add"
    moves = _scattered(operand, source, dimensions, strides, padding)
    builder = FactorBuilder([len(operand), len(source), len(start)], [len(operand)])
    for dim, (size, count, window) in enumerate(zip(operand, source, moves, strict=True)):
        if window.trivial:
            builder.factor({0: dim, 1: dim, 3: dim}, size)
        else:
            builder.factor({1: dim}, count, REPLICATE, blocked)
            exchange = common_parts(size, count) if adds else 0
            builder.factor({0: dim, 3: dim}, size, PERMUTATION, blocked, exchange=exchange)
            if exchange and count > 1 and size > 1:
                builder.follow_last()
    return builder.build()


@operator(
    "SelectAndScatter",
    rule=_scatter_rule,
    shape=lambda operand, *_, kept=(), **__: (_lengths(operand, kept),),
    dtype=lambda operand, *_, **__: operand,
)
def select_and_scatter(operand, source, start, *, dimensions, strides=(), padding=(), select, scatter, kept=()):
    """Each element of source added, by `scatter`, where its window of operand has the element that `select` prefers.

    select(a, b) tells whether a stays against b; `start` is what elements hold that no window chose. Padding is never
    chosen. `kept` tells of a block, for each dim that is not None, which elements of the result are wanted: (first,
    count).
    """
    moves = _scattered(operand.shape, source.shape, dimensions, strides, padding)
    chosen = _chosen(operand, moves, select)
    lows = tuple((one.low, one.high) for one in moves)
    room = tuple(one.padded(size) for size, one in zip(operand.shape, moves, strict=True))
    sums = np.full(room, start, operand.dtype)
    for number, position in enumerate(_places(moves, source.shape)):
        here = sums[position]
        added = combine(scatter, (here,), (source.astype(operand.dtype, copy=False),))[0]
        sums[position] = np.where(chosen == number, added, here)
    result = dilated(sums, start, (1,) * operand.ndim, tuple((-low, -high) for low, high in lows))
    if not kept:
        return result
    ends = (
        (0, 0) if one is None else (-one[0], sum(one) - size) for one, size in zip(kept, operand.shape, strict=True)
    )
    return dilated(result, start, (1,) * operand.ndim, tuple(ends))


def _lengths(operand: Shape, kept: Sequence) -> Shape:
    return tuple(one[1] if one else size for one, size in zip(kept, operand, strict=True)) if kept else tuple(operand)


@select_and_scatter.exchange
def _(attrs: Mapping[str, Any], placement: OperatorPlacement) -> Exchange:
    """Windows that reach into a rank's block, all that they choose from, and what is left of it then."""
    (operand, source, _), layout, block = (
        (of.shape for of in placement.operands),
        placement.result_layouts[0],
        placement.local_result(),
    )
    moves = _scattered(operand, source, *(attrs[name] for name in ("dimensions", "strides", "padding")))
    padding: list[Any] = [(move.low, move.high) for move in moves]
    kept: list[Any] = [None] * len(operand)
    windows = []
    for dim, (move, parts) in enumerate(zip(moves, layout.parts, strict=True)):
        if parts > 1 and not move.trivial:
            taken = _reaching(move, operand[dim], source[dim], block[dim], parts)
            windows += [Fetched(i, dim, layout.dims[dim], (run,)) for i, run in enumerate(taken.runs)]
            padding[dim] = (along(layout, dim, taken.low), along(layout, dim, taken.high))
            kept[dim] = (along(layout, dim, taken.first), block[dim])
    return Exchange(tuple(windows), {"padding": tuple(padding), "kept": tuple(kept)})


class _Reaching(NamedTuple):
    """The runs of operand and source, the padding of the operand's run, and where in it the block begins."""

    runs: tuple[Run, Run]
    low: Numbers
    high: Numbers
    first: Numbers


def _reaching(move: Window, size: int, count: int, block: int, parts: int) -> _Reaching:
    """What the windows that reach into each block of a dim of `size` elements need; the last may be cut off."""
    begin = block_starts(block, parts)
    end = np.minimum(begin + block, size) - 1
    first = np.maximum(0, -(-(begin + move.low - move.size + 1) // move.stride))
    last = np.minimum(count - 1, (end + move.low) // move.stride)
    counts = np.where(end >= begin, np.maximum(0, last - first + 1), 0)
    width = max(1, int(counts.max()))
    frame = first * move.stride - move.low
    room = (width - 1) * move.stride + move.size
    # The block itself, and what its windows see of the dim.
    low = np.where(counts > 0, np.minimum(begin, np.maximum(0, frame)), begin)
    high = np.where(
        counts > 0, np.maximum(end, np.minimum(size - 1, frame + (counts - 1) * move.stride + move.size - 1)), end
    )
    held = np.maximum(0, high - low + 1)
    longest = max(1, int(held.max()))
    # Where the dim ends inside, its last element is the last held: what is not needed is cut off in front.
    places = np.where((high == size - 1) & (held > 0), longest - held, 0)
    before = np.where(counts > 0, low - places - frame, room)
    operand = Run(numbers(np.where(held > 0, low, 0)), numbers(held), longest, 1, numbers(places))
    source = Run(numbers(np.where(counts > 0, first, 0)), numbers(counts), width)
    return _Reaching(
        (operand, source), numbers(before), numbers(room - before - longest), numbers(begin - low + places)
    )


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
    for number, position in enumerate(_places(moves, counts)):
        stays = np.asarray(select(best, padded[position])[0], bool) & (chosen >= 0)
        taken = real[position] & ~stays
        best, chosen = np.where(taken, padded[position], best), np.where(taken, number, chosen)
    return chosen
