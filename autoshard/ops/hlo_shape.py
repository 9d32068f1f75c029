"""StableHLO's operators of shape and position that no other module has: broadcast, concatenate, pad, slice, iota, bits.

Factors, their order and kinds are those of Shardy (op_sharding_rule_registry.cc). Of a dim that is touched by position
each rank fetches what its block of the result needs; the attributes of all other dims are made to hold for any block.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autoshard.core.rule import PERMUTATION, REPLICATE, Rule, source_rule
from autoshard.core.tensortype import dtype as element_type
from autoshard.ops.attributes import OperatorPlacement
from autoshard.ops.concatenation import joined_boxes, joined_windows, placed
from autoshard.ops.factors import FactorBuilder
from autoshard.ops.index_map import BoxMap, box
from autoshard.ops.options import Spreading, Storage
from autoshard.ops.registry import operator
from autoshard.ops.windows import Exchange, OperandWindow, Slide, along, block_starts, common_parts, picked, slid
from autoshard.util.errors import ShapeError

Sizes = Sequence[int]


# -- iota


@operator(
    "Iota",
    rule=lambda *, shape, **_: source_rule(shape),
    dtype=lambda *, dtype, **_: element_type(dtype),
    constant="source",
    flops=1,
)
def iota(*, shape, dim, dtype="i32", start=0):
    """`start`, start + 1, ... along `dim`, the same along all other dims."""
    line = np.arange(start, start + shape[dim]).astype(element_type(dtype).numpy)
    return np.broadcast_to(line.reshape([-1 if i == dim else 1 for i in range(len(shape))]), shape)


@iota.localize
def _(attrs: Mapping[str, Any], placement: OperatorPlacement) -> dict[str, Any]:
    return {"shape": placement.local_result(), "start": placement.result_offset(attrs["dim"])}


# -- broadcast


def _broadcast_rule(x: Sizes, shape: Sizes, dims: Sizes) -> Rule:
    if len(dims) != len(x) or len(set(dims)) < len(dims) or not all(0 <= dim < len(shape) for dim in dims):
        raise ShapeError(f"BroadcastInDim of {tuple(x)} to {tuple(shape)}: {tuple(dims)} must name a dim for each dim")
    if any(size not in (1, shape[dim]) for size, dim in zip(x, dims, strict=True)):
        raise ShapeError(f"BroadcastInDim: {tuple(x)} cannot be broadcast to dims {tuple(dims)} of {tuple(shape)}")
    made = FactorBuilder([len(x)], [len(shape)])
    for dim, size in enumerate(shape):
        source = dims.index(dim) if dim in dims else None
        if source is not None and x[source] != size:
            made.factor({0: source}, 1)
            source = None
        made.factor({1: dim} if source is None else {0: source, 1: dim}, size)
    return made.build()


@operator(
    "BroadcastInDim",
    rule=_broadcast_rule,
    linear=((0,),),
    flops=0,
    spread="broadcast",
    constant="fold",
    storage=Storage(view="strided"),
)
def broadcast_in_dim(x, *, shape, dims):
    """Dim i of x becomes dim dims[i] of `shape`; it is repeated if its size is 1, and along all other dims."""
    order = sorted(range(len(dims)), key=lambda i: dims[i])
    sizes = [1] * len(shape)
    for i in order:
        sizes[dims[i]] = x.shape[i]
    return np.broadcast_to(np.transpose(x, order).reshape(sizes), shape)


@broadcast_in_dim.localize
def _(attrs: Mapping[str, Any], placement: OperatorPlacement) -> dict[str, Any]:
    return {"shape": placement.local_result()}


# -- concatenate


def _joined_shape(shapes: Sequence[Sizes], dim: int) -> tuple[int, ...]:
    first = tuple(shapes[0]) if shapes else ()
    fits = 0 <= dim < len(first) and all(
        len(shape) == len(first) and (*shape[:dim], 0, *shape[dim + 1 :]) == (*first[:dim], 0, *first[dim + 1 :])
        for shape in shapes
    )
    if not fits:
        shown = ", ".join(str(tuple(shape)) for shape in shapes) or "nothing"
        raise ShapeError(f"Concatenate along dim {dim} of {shown}: only that dim may differ")
    return (*first[:dim], sum(shape[dim] for shape in shapes), *first[dim + 1 :])


def _concatenate_rule(*shapes: Sizes, dim: int, of_slices: bool, **_: object) -> Rule:
    joined = _joined_shape(shapes, dim)
    made = FactorBuilder([len(joined)] * len(shapes), [len(joined)])
    for i, size in enumerate(joined):
        if i == dim:
            common = common_parts(size, *(shape[dim] for shape in shapes))
            made.along(i, size, PERMUTATION if of_slices else REPLICATE, exchange=common)
        else:
            made.along(i, size)
    return made.build()


def _concatenate_shape(*shapes: Sizes, dim: int, size: int, **_: object) -> tuple[tuple[int, ...], ...]:
    joined = _joined_shape(shapes, dim)
    return ((*joined[:dim], size, *joined[dim + 1 :]) if size else joined,)


@operator("Concatenate", rule=_concatenate_rule, shape=_concatenate_shape, linear=((),), flops=0)
def concatenate(*xs, dim, of_slices=False, places=(), size=0):
    """Join tensors along a dim. `of_slices` tells that all of them are slices.

    `places` tells of a block, `size` long, where in it each operand begins, if not at its end before; what reaches
    beyond is dropped, and where two overlap the later one counts.
    """
    return placed(xs, dim, places, size) if places else np.concatenate(xs, dim)


@concatenate.maps_indices
def _(*shapes: Sizes, dim: int, **_: object) -> BoxMap:
    return joined_boxes(shapes, dim)


@concatenate.exchange
def _(attrs: Mapping[str, Any], placement: OperatorPlacement) -> Exchange:
    windows, places, size = joined_windows(placement, attrs["dim"])
    return Exchange(windows, {"places": places, "size": size})


@concatenate.conservative
def _(*shapes: Sizes, dim: int, **_: object) -> Rule:
    joined = _joined_shape(shapes, dim)
    made = FactorBuilder([len(joined)] * len(shapes), [len(joined)])
    for i, size in enumerate(joined):
        if i != dim:
            made.along(i, size)
    return made.build()


# -- pad


def _padded(x: Sizes, low: Sizes, high: Sizes, interior: Sizes) -> tuple[int, ...]:
    if not len(x) == len(low) == len(high) == len(interior):
        raise ShapeError(f"HloPad of {tuple(x)}: low {low}, high {high} and interior {interior} need an entry per dim")
    ends = zip(x, low, high, interior, strict=True)
    shape = tuple(before + size + max(size - 1, 0) * inner + after for size, before, after, inner in ends)
    if min((*shape, *interior), default=0) < 0:
        raise ShapeError(f"HloPad of {tuple(x)} by low {low}, high {high}, interior {interior} would give {shape}")
    return shape


def _pad_rule(x: Sizes, value: Sizes, low: Sizes, high: Sizes, interior: Sizes, blocked: bool = False) -> Rule:
    shape = _padded(x, low, high, interior)
    made = FactorBuilder([len(x), len(value)], [len(shape)])
    moved = [any(one) for one in zip(low, high, interior, strict=True)]
    for dim, (size, new) in enumerate(zip(x, shape, strict=True)):
        if size == new:
            made.along(dim, size, exchange=common_parts(size) if moved[dim] else 0)
        else:
            made.along(dim, size, PERMUTATION, blocked, exchange=common_parts(size, new))
    return made.build()


@operator(
    "HloPad",
    rule=_pad_rule,
    shape=lambda x, value, low, high, interior: (_padded(x, low, high, interior),),
    dtype=lambda x, value, **_: x,
    linear=((0, 1),),
    flops=0,
)
def hlo_pad(x, value, *, low, high, interior):
    """x with the scalar `value` before, after and between its elements; negative counts take elements away."""
    out = np.full(_padded(x.shape, low, high, interior), value, x.dtype)
    pairs = [_placed(*one) for one in zip(x.shape, out.shape, low, interior, strict=True)]
    out[tuple(target for target, _ in pairs)] = x[tuple(source for _, source in pairs)]
    return out


def _placed(size: int, room: int, low: int, interior: int) -> tuple[slice, slice]:
    """Where the elements of one dim go, and which of them: those that land inside."""
    step = interior + 1
    first = max(0, -(low // step)) if low < 0 else 0
    last = min(size, -((low - room) // step))
    count = max(last - first, 0)
    begin = low + first * step
    return slice(begin, begin + count * step, step) if count else slice(0, 0), slice(first, first + count)


@hlo_pad.maps_indices
def _(x: Sizes, value: Sizes, low: Sizes, high: Sizes, interior: Sizes) -> BoxMap | None:
    if any(inner and size > 1 for inner, size in zip(interior, x, strict=True)):
        return None
    room = [before + size + after for before, size, after in zip(low, x, high, strict=True)]
    source = [max(0, -before) for before in low]
    target = [max(0, before) for before in low]
    columns = zip(x, source, room, target, strict=True)
    count = [min(size - skipped, space - at) for size, skipped, space, at in columns]
    return BoxMap((box(0, source, target, count),) if min(count, default=1) > 0 else (), fill=1)


@hlo_pad.exchange
def _(attrs: Mapping[str, Any], placement: OperatorPlacement) -> Exchange:
    layout, shape, block = placement.operand_layouts[0], placement.operands[0].shape, placement.local_result()
    low, high, windows = list(attrs["low"]), list(attrs["high"]), []
    for dim, inner in enumerate(attrs["interior"]):
        if layout.parts[dim] > 1 and (low[dim], high[dim], inner) != (0, 0, 0):
            slide = Slide(base=inner + 1, low=low[dim])
            read = slid(shape[dim], slide, block_starts(block[dim], layout.parts[dim]), block[dim])
            windows.append(OperandWindow(0, dim, layout.dims[dim], (read.run,)))
            low[dim], high[dim] = (along(layout, dim, ends) for ends in (read.low, read.high))
    return Exchange(tuple(windows), {"low": tuple(low), "high": tuple(high)})


@hlo_pad.conservative
def _(x: Sizes, value: Sizes, low: Sizes, high: Sizes, interior: Sizes) -> Rule:
    return _pad_rule(x, value, low, high, interior, blocked=True)


# -- slice


def _taken(x: Sizes, start: Sizes, limit: Sizes, strides: Sizes) -> tuple[int, ...]:
    fits = len(x) == len(start) == len(limit) == len(strides) and all(
        0 <= first <= last <= size and step > 0
        for size, first, last, step in zip(x, start, limit, strides, strict=True)
    )
    if not fits:
        raise ShapeError(f"Slice of {tuple(x)} from {start} to {limit} by {strides} goes outside")
    return tuple(math.ceil((last - first) / step) for first, last, step in zip(start, limit, strides, strict=True))


def _slice_rule(x: Sizes, start: Sizes, limit: Sizes, strides: Sizes, blocked: bool = False) -> Rule:
    taken = _taken(x, start, limit, strides)
    return FactorBuilder([len(x)], [len(x)]).matched(x, taken, PERMUTATION, blocked, exchanged=True).build()


@operator(
    "Slice",
    rule=_slice_rule,
    shape=lambda x, start, limit, strides: (_taken(x, start, limit, strides),),
    linear=((0,),),
    flops=0,
    constant="fold",
    storage=Storage(view="strided"),
)
def slice_in_dims(x, *, start, limit, strides):
    """The elements start, start + stride, ... below limit, per dim."""
    return x[tuple(map(slice, start, limit, strides))]


@slice_in_dims.maps_indices
def _(x: Sizes, start: Sizes, limit: Sizes, strides: Sizes) -> BoxMap | None:
    taken = _taken(x, start, limit, strides)
    if any(step > 1 and size > 1 for step, size in zip(strides, taken, strict=True)):
        return None
    return BoxMap((box(0, start, [0] * len(x), taken),) if all(taken) else ())


@slice_in_dims.conservative
def _(x: Sizes, start: Sizes, limit: Sizes, strides: Sizes) -> Rule:
    return _slice_rule(x, start, limit, strides, blocked=True)


@slice_in_dims.localize
def _(attrs: Mapping[str, Any], placement: OperatorPlacement) -> dict[str, Any]:
    whole, local = placement.operands[0].shape, placement.local_operand(0)
    cut = zip(attrs["limit"], whole, local, strict=True)
    return {"limit": tuple(last if part == size else part for last, size, part in cut)}


@slice_in_dims.exchange
def _(attrs: Mapping[str, Any], placement: OperatorPlacement) -> Exchange:
    layout, shape, block = placement.operand_layouts[0], placement.results[0].shape, placement.local_result()
    local = {name: list(attrs[name]) for name in ("start", "strides")}
    local["limit"] = list(placement.local_operand(0))
    windows = []
    for dim, parts in enumerate(layout.parts):
        if parts == 1:
            local["limit"][dim] = attrs["limit"][dim]
        elif shape[dim] != placement.operands[0].shape[dim]:
            run = picked(attrs["start"][dim], attrs["strides"][dim], shape[dim], block[dim], parts)
            windows.append(OperandWindow(0, dim, layout.dims[dim], (run,)))
            local["start"][dim], local["limit"][dim], local["strides"][dim] = 0, block[dim], 1
    return Exchange(tuple(windows), {name: tuple(values) for name, values in local.items()})


# -- bits as another type


def _regrouped(x: Sizes, ratio: int, wider: bool) -> tuple[int, ...]:
    if wider and (not x or x[-1] != ratio):
        raise ShapeError(f"BitcastRegroup of {tuple(x)}: the last dim must hold the {ratio} parts of an element")
    return tuple(x[:-1]) if wider else (*x, ratio)


def _regroup_rule(x: Sizes, ratio: int, wider: bool, dtype: str) -> Rule:
    shape = _regrouped(x, ratio, wider)
    made = FactorBuilder([len(x)], [len(shape)])
    for dim, size in enumerate(shape if wider else x):
        made.factor({0: dim, 1: dim}, size)
    last = {0: len(x) - 1} if wider else {1: len(shape) - 1}
    return made.factor(last, ratio, REPLICATE).build()


@operator("BitcastConvert", rule="... -> ...", dtype=lambda x, *, dtype: element_type(dtype), flops=0)
def bitcast_convert(x, *, dtype):
    """The same bits as elements of another type of the same size."""
    return np.ascontiguousarray(x).view(element_type(dtype).numpy).reshape(x.shape)


@operator(
    "BitcastRegroup",
    rule=_regroup_rule,
    shape=lambda x, ratio, wider, dtype: (_regrouped(x, ratio, wider),),
    dtype=lambda x, *, dtype, **_: element_type(dtype),
    flops=0,
)
def bitcast_regroup(x, *, ratio, wider, dtype):
    """The same bits as elements of a type `ratio` times as wide, or as narrow; the last dim holds the narrow parts."""
    target = element_type(dtype)
    whole = element_type(x.dtype)
    if whole.bits % 8 or target.bits % 8:
        raise ShapeError(
            f"BitcastRegroup between {whole} and {target}: types of less than 8 bits cannot be taken apart"
        )
    lines = np.ascontiguousarray(x).reshape(-1, ratio if wider else 1)
    return lines.view(target.numpy).reshape(_regrouped(x.shape, ratio, wider))


# -- sizes


def _sizes_rule(x: Sizes, dim: int, size: int) -> Rule:
    made = FactorBuilder([len(x)], [0])
    for i, extent in enumerate(x):
        made.factor({0: i}, extent)
    return made.build()


@operator("GetDimensionSize", rule=_sizes_rule, dtype="i32", flops=0, spread=Spreading(foreign=True))
def get_dimension_size(x, *, dim, size):
    """`size`, which is that of dim `dim` of the whole x."""
    return np.int32(size)
