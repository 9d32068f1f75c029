"""Gradients of StableHLO's gather, of scatters, of top_k and of sorts: a gather turns into a scatter and back.

The dims of one are those of the other under other names. Gathers move slices back inside and scatters leave out those
that reach beyond, so indices are moved, or updates left out, before the roles change (lax/slicing.py of JAX).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autoshard.core.tensortype import dtype
from autoshard.ops.axes import axis_index
from autoshard.ops.body import Body
from autoshard.ops.hlo_chlo import chlo_top_k
from autoshard.ops.hlo_gather import gather_slices
from autoshard.ops.hlo_pointwise import bitwise_and, convert
from autoshard.ops.hlo_scatter import REPLACE, scatter_add_slices, scatter_slices
from autoshard.ops.hlo_shape import broadcast_in_dim, iota
from autoshard.ops.hlo_shape_grad import zeros
from autoshard.ops.hlo_sort import sort_along
from autoshard.ops.index import gather_d_grad
from autoshard.ops.pointwise import add, div, equal, greater_equal, less_equal, maximum, minimum, mul, select, sub
from autoshard.ops.reduce import reduce_all
from autoshard.util.errors import NoGradientError


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


def _gathered(values: Any, operand: Any, indices: Any, updates: Any, attrs: dict[str, Any]) -> Any:
    """The slices of `values`, shaped like a scatter's operand, that its updates meet; of the shape of the updates."""
    window, gone = attrs["update_window_dims"], (*attrs["inserted_window_dims"], *attrs["input_batching_dims"])
    sizes = iter(updates.shape[dim] for dim in window)
    return gather_slices(
        values,
        indices,
        offset_dims=window,
        collapsed_slice_dims=attrs["inserted_window_dims"],
        operand_batching_dims=attrs["input_batching_dims"],
        start_indices_batching_dims=attrs["scatter_indices_batching_dims"],
        start_index_map=attrs["scatter_dims_to_operand_dims"],
        index_vector_dim=attrs["index_vector_dim"],
        slice_sizes=tuple(1 if dim in gone else next(sizes) for dim in range(len(operand.shape))),
    )


def _written(operand: Any, indices: Any, updates: Any, attrs: dict[str, Any]) -> Any:
    """Which elements of a scatter's updates are not left out: those of slices that lie inside; of their shape."""
    window, gone = attrs["update_window_dims"], (*attrs["inserted_window_dims"], *attrs["input_batching_dims"])
    sizes = iter(updates.shape[dim] for dim in window)
    vector = attrs["index_vector_dim"]
    last = tuple(size - (1 if dim in gone else next(sizes)) for dim, size in enumerate(operand.shape))
    bounds = _bounds(indices, attrs["scatter_dims_to_operand_dims"], vector, last)
    inside = bitwise_and(greater_equal(indices, np.zeros_like(bounds)), less_equal(indices, bounds))
    if vector < len(indices.shape):
        inside = reduce_all(inside, axis=(vector,))
    batch = tuple(dim for dim in range(len(updates.shape)) if dim not in window)
    return broadcast_in_dim(inside, shape=tuple(updates.shape), dims=batch)


@scatter_add_slices.gradient
def _(g, y, x, indices, updates, **attrs):
    slices = _gathered(g, x, indices, updates, attrs)
    return g, None, select(_written(x, indices, updates, attrs), slices, zeros(updates))


@scatter_slices.gradient
def _(g, y, *operands, body, block, parts, **attrs):
    """Of updates that replace or multiply, and of extremes, which elements that attain them share equally.

    Raises:
        NoGradientError: for several inputs, and for bodies of other kinds.
    """
    if len(operands) != 3 or body not in (REPLACE, Body("max"), Body("min"), Body("mul")):
        what = f"by {body.name}" if body.name else "by a function of its own"
        raise NoGradientError(
            f"Scatter of {len(operands) // 2} inputs {what} has no gradient; only replacements, sums, products, "
            "maxima and minima of one input have"
        )
    if body == REPLACE:
        return _replaced(g, *operands, attrs)
    if body == Body("mul"):
        return _multiplied(g, *operands, attrs)
    return _extreme(g, y, *operands, attrs)


def _replaced(g: Any, x: Any, indices: Any, updates: Any, attrs: dict[str, Any]) -> tuple[Any, None, Any]:
    """The last of several updates of one place stays, so it alone gets the gradient; found by numbering updates."""
    numbers, nobody = _numbered(tuple(updates.shape)), np.asarray(-1, np.int64)
    winners = scatter_slices(
        broadcast_in_dim(nobody, shape=tuple(x.shape), dims=()), indices, numbers, body=REPLACE, **attrs
    )
    wins = equal(_gathered(winners, x, indices, updates, attrs), numbers)
    stays = bitwise_and(wins, _written(x, indices, updates, attrs))
    untouched = equal(winners, nobody)
    return select(untouched, g, zeros(x)), None, select(stays, _gathered(g, x, indices, updates, attrs), zeros(updates))


def _numbered(shape: tuple[int, ...]) -> Any:
    """Elements numbered in their order, i64."""
    numbers: Any = np.zeros((), np.int64)
    for dim, size in enumerate(shape):
        numbers = add(mul(numbers, np.asarray(size, np.int64)), iota(shape=shape, dim=dim, dtype="i64"))
    return numbers


def _multiplied(g: Any, x: Any, indices: Any, updates: Any, attrs: dict[str, Any]) -> tuple[Any, None, Any]:
    """An update's gradient is the product of all others of its place: that of those that are not 0, unless one is."""
    one, none = np.ones((), dtype(g.dtype).numpy), np.zeros((), dtype(g.dtype).numpy)
    is_zero = equal(updates, none)
    nonzero = select(is_zero, broadcast_in_dim(one, shape=tuple(updates.shape), dims=()), updates)
    ones = broadcast_in_dim(one, shape=tuple(x.shape), dims=())
    product = scatter_slices(ones, indices, nonzero, body=Body("mul"), **attrs)
    zero_count = scatter_add_slices(zeros(x), indices, convert(is_zero, dtype=g.dtype), **attrs)
    other_zeros = sub(_gathered(zero_count, x, indices, updates, attrs), convert(is_zero, dtype=g.dtype))
    slices = div(_gathered(mul(g, mul(x, product)), x, indices, updates, attrs), nonzero)
    counts = bitwise_and(equal(other_zeros, none), _written(x, indices, updates, attrs))
    return select(equal(zero_count, none), mul(g, product), zeros(x)), None, select(counts, slices, zeros(updates))


def _extreme(g: Any, y: Any, x: Any, indices: Any, updates: Any, attrs: dict[str, Any]) -> tuple[Any, None, Any]:
    """JAX's convention (lax/slicing.py, `_scatter_extremal_jvp`): elements that are equal to the result share alike."""
    attain = bitwise_and(equal(updates, _gathered(y, x, indices, updates, attrs)), _written(x, indices, updates, attrs))
    stays = equal(x, y)
    count = scatter_add_slices(convert(stays, dtype=g.dtype), indices, convert(attain, dtype=g.dtype), **attrs)
    share = div(g, maximum(count, np.ones((), dtype(g.dtype).numpy)))
    slices = _gathered(share, x, indices, updates, attrs)
    return select(stays, share, zeros(x)), None, select(attain, slices, zeros(updates))


@chlo_top_k.gradient
def _(g, y, x, k):
    return None if g[0] is None else gather_d_grad(g[0], y[1], size=x.shape[-1], dim=len(x.shape) - 1)


@sort_along.gradient
def _(g, y, *xs, dimension, body, compared, **_):
    """Each element's goes back to where it stood: the places, sorted along, say where."""
    at = axis_index(dimension, len(xs[0].shape), "Sort")
    places = iota(shape=tuple(xs[0].shape), dim=at, dtype="i32")
    *_, order = sort_along(*xs, places, dimension=dimension, body=body, compared=compared or len(xs))
    slopes = (g,) if len(xs) == 1 else g
    return tuple(None if one is None else gather_d_grad(one, order, size=xs[0].shape[at], dim=at) for one in slopes)
