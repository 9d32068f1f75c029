"""StableHLO's operations that take sizes or bounds as operands, for results of static shape; and torch_index_select.

Sizes are known only when they run, so the dims of operands and results do not belong together: most have no rule.
Sizes that would make another shape than `shape` are an error when they run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from autoshard.core.tensortype import DType
from autoshard.core.tensortype import dtype as element_type
from autoshard.ops.axes import axis_index, letters, unsplit_words, words
from autoshard.ops.hlo_dynamic import start_index
from autoshard.ops.hlo_gather import gather_slices
from autoshard.ops.options import Spreading
from autoshard.ops.registry import operator
from autoshard.util.errors import ShapeError

Shape = tuple[int, ...]


def _given(*_: object, shape: Shape, **__: object) -> tuple[Shape, ...]:
    return (shape,)


def _first(x: DType, *_: DType, **__: object) -> DType:
    return x


def _numbers(array: np.ndarray) -> Shape:
    return tuple(map(int, start_index(array)))


def _expect(what: str, made: Sequence[int], shape: Shape) -> None:
    if tuple(made) != shape:
        raise ShapeError(f"{what}: its operands ask for the shape {tuple(made)}, but its type says {shape}")


def _sized(name: str) -> Callable:
    """An operator without rule whose result has the shape `shape` and the type of the first operand."""
    return operator(name, rule=None, shape=_given, dtype=_first)


@_sized("DynamicReshape")
def dynamic_reshape(x, sizes, *, shape):
    """The elements of x in row-major order under the shape `sizes`."""
    _expect("DynamicReshape", _numbers(sizes), shape)
    return x.reshape(shape)


@_sized("DynamicBroadcastInDim")
def dynamic_broadcast_in_dim(x, sizes, *, shape, dims):
    """x repeated to the shape `sizes`; dim i of x becomes dim dims[i]."""
    _expect("DynamicBroadcastInDim", _numbers(sizes), shape)
    apart = [1] * len(shape)
    for size, dim in zip(x.shape, dims, strict=True):
        apart[dim] = size
    return np.broadcast_to(x.transpose(np.argsort(dims)).reshape(apart), shape)


@operator("DynamicIota", rule=None, shape=_given, dtype=lambda *_, dtype, **__: dtype)
def dynamic_iota(sizes, *, shape, dim, dtype):
    """0, 1, ... along `dim` of the shape `sizes`."""
    _expect("DynamicIota", _numbers(sizes), shape)
    line = np.arange(shape[dim]).astype(element_type(dtype).numpy)
    return np.broadcast_to(line.reshape([-1 if i == dim else 1 for i in range(len(shape))]), shape)


@_sized("DynamicPad")
def dynamic_pad(x, value, low, high, between, *, shape):
    """x with `value` around it and between its elements; negative numbers cut elements off."""
    lows, highs, gaps = _numbers(low), _numbers(high), _numbers(between)
    rows = list(zip(x.shape, lows, highs, gaps, strict=True))
    _expect("DynamicPad", [a + max((n - 1) * (gap + 1) + 1, 0) * (n > 0) + b for n, a, b, gap in rows], shape)
    at = [a + np.arange(n) * (gap + 1) for n, a, _, gap in rows]
    inside = [np.flatnonzero((one >= 0) & (one < size)) for one, size in zip(at, shape, strict=True)]
    out = np.full(shape, value, x.dtype)
    out[np.ix_(*(one[kept] for one, kept in zip(at, inside, strict=True)))] = x[np.ix_(*inside)]
    return out


@_sized("RealDynamicSlice")
def real_dynamic_slice(x, starts, limits, strides, *, shape):
    """x[starts:limits:strides] per dim."""
    bounds = zip(_numbers(starts), _numbers(limits), _numbers(strides), strict=True)
    taken = x[tuple(slice(*one) for one in bounds)]
    _expect("RealDynamicSlice", taken.shape, shape)
    return taken


@_sized("DynamicGather")
def dynamic_gather(
    operand,
    indices,
    slice_sizes,
    *,
    shape,
    offset_dims,
    collapsed_slice_dims,
    operand_batching_dims=(),
    start_indices_batching_dims=(),
    start_index_map,
    index_vector_dim,
):
    """A gather (see `gather_slices`) of slices of the sizes `slice_sizes`."""
    found = gather_slices.run(
        operand,
        indices,
        offset_dims=offset_dims,
        collapsed_slice_dims=collapsed_slice_dims,
        operand_batching_dims=operand_batching_dims,
        start_indices_batching_dims=start_indices_batching_dims,
        start_index_map=start_index_map,
        index_vector_dim=index_vector_dim,
        slice_sizes=_numbers(slice_sizes),
    )
    _expect("DynamicGather", found.shape, shape)
    return found


# -- torch_index_select


def _select_rule(x: Shape, index: Shape, dim: int, batch_dims: int) -> str:
    axis = axis_index(dim, len(x), "TorchIndexSelect")
    if not 0 <= batch_dims <= min(axis, len(index)):
        raise ShapeError(
            f"TorchIndexSelect of {x} at {index}: {batch_dims} batch dims; there can be at most as many as dims before "
            f"dim {axis}, and as the index has"
        )
    rows = letters(len(x))
    picks = rows[:batch_dims] + letters(len(index) - batch_dims, skip=len(x))
    result = rows[:axis] + picks[batch_dims:] + rows[axis + 1 :]
    return f"{unsplit_words(rows, (axis,))}, {words(picks)} -> {words(result)}"


@operator("TorchIndexSelect", rule=_select_rule, dtype=_first, linear=((0,),), flops=0, spread=Spreading(foreign=True))
def torch_index_select(x, index, *, dim, batch_dims=0):
    """Slices of x along `dim`, one per index, whose dims replace it; the first `batch_dims` dims go along with x's.

    An index outside counts as the nearest one inside.
    """
    axis = dim % x.ndim
    rows = np.clip(start_index(index), 0, x.shape[axis] - 1)
    if not batch_dims:
        return np.take(x, rows, axis)
    # Batch dims become index arrays; the dims between them and the axis are moved behind it.
    grids = np.ogrid[tuple(slice(size) for size in index.shape)][:batch_dims]
    between = axis - batch_dims
    moved = np.moveaxis(x, axis, batch_dims)
    picked = moved[(*grids, rows)]
    where = tuple(range(index.ndim, index.ndim + between))
    return np.moveaxis(picked, where, tuple(range(batch_dims, axis)))
