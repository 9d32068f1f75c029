"""Primitives with MindSpore's names and meaning that look up by index, and that order."""

from __future__ import annotations

from typing import Any

import numpy as np

from autoshard import ops as core
from autoshard.core.tensortype import dtype as element
from autoshard.mindspore.ops.entries import dims_of, refused, taken
from autoshard.mindspore.ops.primitive import plain, primitive
from autoshard.ops.hlo_scatter import REPLACE
from autoshard.util.errors import ShapeError


@primitive("Gather", core.gather)
def Gather(input_params, input_indices, axis, *, batch_dims=0):
    """Slices along `axis`, one per index. Indices from -size on count from the back; others outside are an error."""
    if batch_dims:
        raise ShapeError(f"Gather: batch_dims is {batch_dims}; only 0 is offered here, GatherD looks up row by row")
    axis = plain(axis)
    return core.gather(input_params, input_indices, axis=axis, bound=input_params.shape[axis])


@primitive("GatherD", core.gather_d)
def GatherD(x, dim, index):
    """result[i, j] = x[i, index[i, j]] for dim 1, and likewise for others; indices as for Gather."""
    dim = plain(dim)
    sizes, picks = list(x.shape), list(index.shape)
    if len(sizes) == len(picks):
        # MindSpore takes an index with less in other dims, and looks up where it has something.
        ends = tuple(size if i == dim % len(sizes) else min(size, picks[i]) for i, size in enumerate(sizes))
        x = x if list(ends) == sizes else core.strided_slice(x, begin=(0,) * len(ends), end=ends)
    return core.gather_d(x, index, dim=dim, bound=x.shape[dim])


def _one_hot_strategy(attrs: Any, given: Any, out: Any) -> tuple[Any, Any]:
    """MindSpore's strategy has the parts of indices and depth, and two empty tuples for the values."""
    ranks = [dims_of(one) for one in given] if isinstance(given, tuple) else []
    if len(ranks) != 3 or not ranks[0] or ranks[1:] != [0, 0]:
        raise refused(given, "(parts of the result, (), ()), such as ((2, 4), (), ())")
    depth = attrs["axis"] % ranks[0]
    return (taken(given[0], [i for i in range(ranks[0]) if i != depth]),), out or (given[0],)


@primitive("OneHot", core.one_hot, _one_hot_strategy)
def OneHot(indices, depth, on_value, off_value, *, axis=-1):
    """`on_value` where a new axis of size `depth` has the index, else `off_value`, whose type is the result's."""
    kind = (
        element(on_value.dtype).name if hasattr(on_value, "dtype") else "f32" if isinstance(on_value, float) else "i64"
    )
    return core.one_hot(
        indices, axis=axis, depth=plain(depth), on_value=plain(on_value), off_value=plain(off_value), dtype=kind
    )


@primitive("TopK", core.top_k)
def TopK(input_x, k, *, sorted=True):
    """The k largest elements of the last dim, largest first, and their places (int32)."""
    return core.top_k(input_x, k=plain(k), sorted=sorted)


@primitive("Sort", core.arg_sort)
def Sort(x, *, axis=-1, descending=False):
    """The elements in order along `axis`, and their places (int32)."""
    order = core.arg_sort(x, axis=axis, descending=descending)
    return core.gather_d(x, order, dim=axis), order


@primitive("UnsortedSegmentSum", core.gather_grad)
def UnsortedSegmentSum(input_x, segment_ids, num_segments):
    """Slices added up by number: slice i of the result is the sum of those with the number i; below 0 none."""
    picks = len(segment_ids.shape)
    if tuple(input_x.shape[:picks]) != tuple(segment_ids.shape):
        raise ShapeError(
            f"UnsortedSegmentSum: segment_ids {tuple(segment_ids.shape)} must be the first of {tuple(input_x.shape)}"
        )
    return core.gather_grad(input_x, segment_ids, size=plain(num_segments), axis=0)


@primitive("EmbeddingLookup", core.gather)
def EmbeddingLookup(input_params, input_indices, offset):
    """Slices along the first dim, one per index less `offset`; an index outside gives zeros."""
    offset = plain(offset)
    indices = core.scalar_add(input_indices, addend=-offset) if offset else input_indices
    return core.gather(input_params, indices, axis=0)


# -- by indices with a number for each of the first dims, in their last dim


@primitive("GatherNd", core.gather_slices)
def GatherNd(input_x, indices):
    """Slices by index along the first dims. Below 0 it counts from the back; others outside are an error."""
    sizes, depth = tuple(input_x.shape), _depth(input_x, indices, "GatherNd")
    picks, rest = len(indices.shape) - 1, sizes[depth:]
    return core.gather_slices(
        input_x,
        _inside(input_x, indices, depth),
        offset_dims=tuple(range(picks, picks + len(rest))),
        collapsed_slice_dims=tuple(range(depth)),
        start_index_map=tuple(range(depth)),
        index_vector_dim=picks,
        slice_sizes=(1,) * depth + rest,
    )


@primitive("TensorScatterUpdate", core.scatter_slices)
def TensorScatterUpdate(input_x, indices, updates):
    """The tensor with `updates` for the slices that the indices name (as of GatherNd), of equal ones the last."""
    return core.scatter_slices(
        *_updated(input_x, indices, updates, "TensorScatterUpdate"), body=REPLACE, **_places(input_x, indices)
    )


@primitive("TensorScatterAdd", core.scatter_add_slices)
def TensorScatterAdd(input_x, indices, updates):
    """The tensor with `updates` added to the slices that the indices name (as of GatherNd)."""
    return core.scatter_add_slices(
        *_updated(input_x, indices, updates, "TensorScatterAdd"), **_places(input_x, indices)
    )


@primitive("ScatterNd", core.scatter_add_slices)
def ScatterNd(indices, updates, shape):
    """Zeros of a shape with `updates` added to the slices that the indices name (as of GatherNd)."""
    zeros = core.fill(shape=plain(shape), value=0, dtype=element(updates.dtype).name)
    return core.scatter_add_slices(*_updated(zeros, indices, updates, "ScatterNd"), **_places(zeros, indices))


@primitive("TensorScatterSub", core.scatter_add_slices)
def TensorScatterSub(input_x, indices, updates):
    """The tensor with `updates` taken from the slices that the indices name (as of GatherNd)."""
    return TensorScatterAdd.function(input_x, indices, core.neg(updates))


def _depth(x: Any, indices: Any, what: str) -> int:
    """How many dims an index tells of."""
    shape = tuple(indices.shape)
    if not shape or not 1 <= shape[-1] <= len(x.shape):
        raise ShapeError(
            f"{what}: indices {shape} of input_x {tuple(x.shape)}; their last dim has a number for each of its first "
            f"dims, at most {len(x.shape)}"
        )
    return shape[-1]


def _inside(x: Any, indices: Any, depth: int) -> Any:
    """The indices, counted from the front; those outside are an error of the run."""
    lead = tuple(indices.shape)[:-1]
    begin = (0,) * len(lead)
    columns = []
    for dim in range(depth):
        column = core.strided_slice(indices, begin=(*begin, dim), end=(*lead, dim + 1))
        size = x.shape[dim]
        table = np.arange(size, dtype=element(indices.dtype).numpy)
        columns.append(core.gather(table, core.squeeze(column, axis=(len(lead),)), axis=0, bound=size))
    return core.stack(*columns, axis=len(lead))


def _updated(x: Any, indices: Any, updates: Any, what: str) -> tuple[Any, Any, Any]:
    """The operands of a scatter, checked."""
    depth = _depth(x, indices, what)
    wanted = (*indices.shape[:-1], *x.shape[depth:])
    if tuple(updates.shape) != wanted or element(updates.dtype) != element(x.dtype):
        raise ShapeError(
            f"{what}: updates are {element(updates.dtype)}{list(updates.shape)}; for indices {tuple(indices.shape)} of "
            f"input_x {element(x.dtype)}{list(x.shape)} they are {element(x.dtype)}{list(wanted)}"
        )
    return x, _inside(x, indices, depth), updates


def _places(x: Any, indices: Any) -> dict[str, Any]:
    """Which dims of a scatter's operands belong together."""
    depth, lead = indices.shape[-1], len(indices.shape) - 1
    return {
        "update_window_dims": tuple(range(lead, lead + len(x.shape) - depth)),
        "inserted_window_dims": tuple(range(depth)),
        "scatter_dims_to_operand_dims": tuple(range(depth)),
        "index_vector_dim": lead,
    }
