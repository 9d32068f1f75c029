"""Gradients of StableHLO's gather, of scatter by addition, and of top_k: a gather turns into a scatter and back.

The dims of one are those of the other under other names. Gathers move slices back inside and scatters leave out those
that reach beyond, so indices are moved, or updates left out, before the roles change (lax/slicing.py of JAX).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autoshard.core.tensortype import dtype
from autoshard.ops.hlo_chlo import chlo_top_k
from autoshard.ops.hlo_gather import gather_slices
from autoshard.ops.hlo_pointwise import bitwise_and
from autoshard.ops.hlo_scatter import scatter_add_slices
from autoshard.ops.hlo_shape import broadcast_in_dim
from autoshard.ops.hlo_shape_grad import zeros
from autoshard.ops.index import gather_d_grad
from autoshard.ops.pointwise import greater_equal, less_equal, maximum, minimum, select
from autoshard.ops.reduce import reduce_all


def _bounds(indices: Any, index_map: tuple[int, ...], vector: int, last: tuple[int, ...]) -> np.ndarray:
    """The largest start of a slice for each component of the indices, broadcast against them."""
    found = np.asarray([last[dim] for dim in index_map], dtype(indices.dtype).numpy)
    if vector >= len(indices.shape):
        return found.reshape(())
    return found.reshape([-1 if dim == vector else 1 for dim in range(len(indices.shape))])


@gather_slices.gradient
def _(g, y, operand, indices, slice_sizes, index_vector_dim, start_index_map, **attrs):
    last = tuple(size - taken for size, taken in zip(operand.shape, slice_sizes, strict=True))
    bounds = _bounds(indices, start_index_map, index_vector_dim, last)
    inside = minimum(maximum(indices, np.zeros_like(bounds)), bounds)
    added = scatter_add_slices(
        zeros(operand),
        inside,
        g,
        update_window_dims=attrs["offset_dims"],
        inserted_window_dims=attrs["collapsed_slice_dims"],
        input_batching_dims=attrs["operand_batching_dims"],
        scatter_indices_batching_dims=attrs["start_indices_batching_dims"],
        scatter_dims_to_operand_dims=start_index_map,
        index_vector_dim=index_vector_dim,
    )
    return added, None


@scatter_add_slices.gradient
def _(g, y, x, indices, updates, index_vector_dim, scatter_dims_to_operand_dims, **attrs):
    window, gone = attrs["update_window_dims"], (*attrs["inserted_window_dims"], *attrs["input_batching_dims"])
    sizes = iter(updates.shape[dim] for dim in window)
    taken = tuple(1 if dim in gone else next(sizes) for dim in range(len(x.shape)))
    found = gather_slices(
        g,
        indices,
        offset_dims=window,
        collapsed_slice_dims=attrs["inserted_window_dims"],
        operand_batching_dims=attrs["input_batching_dims"],
        start_indices_batching_dims=attrs["scatter_indices_batching_dims"],
        start_index_map=scatter_dims_to_operand_dims,
        index_vector_dim=index_vector_dim,
        slice_sizes=taken,
    )
    last = tuple(size - one for size, one in zip(x.shape, taken, strict=True))
    bounds = _bounds(indices, scatter_dims_to_operand_dims, index_vector_dim, last)
    inside = bitwise_and(greater_equal(indices, np.zeros_like(bounds)), less_equal(indices, bounds))
    if index_vector_dim < len(indices.shape):
        inside = reduce_all(inside, axis=(index_vector_dim,))
    batch = tuple(dim for dim in range(len(updates.shape)) if dim not in window)
    written = broadcast_in_dim(inside, shape=tuple(updates.shape), dims=batch)
    return g, None, select(written, found, zeros(updates))


@chlo_top_k.gradient
def _(g, y, x, k):
    return None if g[0] is None else gather_d_grad(g[0], y[1], size=x.shape[-1], dim=len(x.shape) - 1)
