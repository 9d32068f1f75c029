"""StableHLO's slices at places known only when they run: dynamic_slice and dynamic_update_slice.

Start indices are scalar operands, one per dim; they are clamped so that the slice lies inside the operand.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoshard.errors import ShapeError
from autoshard.ops.factors import FactorBuilder
from autoshard.ops.registry import operator
from autoshard.rule import PASS, REPLICATE, Rule
from autoshard.tensortype import DType

Shape = tuple[int, ...]


def start_index(index: np.ndarray) -> np.ndarray:
    """Indices of any width as signed numbers; those beyond 63 bits become the largest."""
    if index.dtype == np.uint64:
        index = np.minimum(index, np.uint64(np.iinfo(np.int64).max))
    return index.astype(np.int64, copy=False)


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


def _slice_shape(x: Shape, *starts: Shape, sizes: Sequence[int]) -> tuple[Shape, ...]:
    _check("DynamicSlice", x, sizes, starts)
    return (tuple(sizes),)


def _slice_rule(x: Shape, *starts: Shape, sizes: Sequence[int]) -> Rule:
    """A dim that is cut cannot be handed on without knowing the start: needed whole, and blocked."""
    _slice_shape(x, *starts, sizes=sizes)
    builder = FactorBuilder([len(x), *(0 for _ in starts)], [len(x)])
    return builder.matched(x, sizes, REPLICATE, blocked=True).build()


@operator(
    "DynamicSlice",
    rule=_slice_rule,
    shape=_slice_shape,
    dtype=_first_type,
    linear=((0,),),
    flops=0,
    spread="slice",
)
def dynamic_slice(x, *starts, sizes):
    """The slice of x of these sizes that begins at `starts`, moved back inside where it would reach beyond."""
    rows = zip(_starts(starts, x.shape, sizes), sizes, strict=True)
    return x[tuple(slice(start, start + size) for start, size in rows)]


@dynamic_slice.localize
def _(attrs, place):
    return {"sizes": place.local_result()}


# -- dynamic_update_slice


def _update_shape(x: Shape, update: Shape, *starts: Shape, block: Sequence = (), **_: object) -> tuple[Shape, ...]:
    # Of a part of the operand, the update has to lie inside the whole.
    _check("DynamicUpdateSlice", tuple(extent for _, extent in block) or x, update, starts)
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
    offsets, extents = zip(*block, strict=True) if block else ((0,) * x.ndim, x.shape)
    whole = _starts(starts, extents, update.shape)
    out = x.copy()
    lows = [start - offset for start, offset in zip(whole, offsets, strict=True)]
    inside = [
        (max(low, 0), min(low + size, extent)) for low, size, extent in zip(lows, update.shape, x.shape, strict=True)
    ]
    if all(begin < end for begin, end in inside):
        source = tuple(slice(begin - low, end - low) for (begin, end), low in zip(inside, lows, strict=True))
        out[tuple(slice(begin, end) for begin, end in inside)] = update[source]
    return out


@dynamic_update_slice.localize
def _(attrs, place):
    whole, update, local = place.operands[0].shape, place.operands[1].shape, place.local_operand(0)
    return {
        "block": tuple(
            # A dim that is written in full begins at 0 on every rank.
            (0, local[dim]) if update[dim] == size else (place.operand_offset(0, dim), size)
            for dim, size in enumerate(whole)
        )
    }
