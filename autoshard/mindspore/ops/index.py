"""Primitives with MindSpore's names and meaning that look up by index, and that order."""

from __future__ import annotations

from typing import Any

import numpy as np

from autoshard import ops as core
from autoshard.core.tensortype import dtype as element
from autoshard.mindspore.ops.entries import dims_of, refused, taken
from autoshard.mindspore.ops.primitive import plain, primitive
from autoshard.ops.body import Body
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
    _check_segments(input_x, segment_ids, "UnsortedSegmentSum")
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


def _scatter_by(name: str, body: str, doc: str) -> Any:
    """The primitive that puts updates together with what stands at their places."""

    def function(input_x, indices, updates):
        operands = _updated(input_x, indices, updates, name)
        return core.scatter_slices(*operands, body=Body(body), **_places(input_x, indices))

    function.__doc__ = doc
    return primitive(name, core.scatter_slices)(function)


TensorScatterMax = _scatter_by("TensorScatterMax", "max", "The larger of each element and its updates (see GatherNd).")
TensorScatterMin = _scatter_by("TensorScatterMin", "min", "The smaller of each element and its updates (see GatherNd).")
TensorScatterMul = _scatter_by("TensorScatterMul", "mul", "The tensor with its updates multiplied in (see GatherNd).")


@primitive("TensorScatterDiv", core.scatter_slices)
def TensorScatterDiv(input_x, indices, updates):
    """The tensor divided by its updates (see GatherNd)."""
    return TensorScatterMul.function(input_x, indices, core.reciprocal(updates))


@primitive("TensorScatterElements", core.last_along)
def TensorScatterElements(data, indices, updates, *, axis=0, reduction="none"):
    """The tensor with updates[i, j] at [indices[i, j], j] for axis 0, and likewise for others; "add" adds them."""
    rank, dim = len(data.shape), axis % max(1, len(data.shape))
    inner = [size for i, size in enumerate(indices.shape) if i != dim]
    whole = [size for i, size in enumerate(data.shape) if i != dim]
    if tuple(indices.shape) != tuple(updates.shape) or len(indices.shape) != rank or inner != whole:
        raise ShapeError(
            f"TensorScatterElements of {tuple(data.shape)}: indices are {tuple(indices.shape)}, updates "
            f"{tuple(updates.shape)}; they have one shape, that of data but for axis {axis}"
        )
    size = data.shape[dim]
    if reduction == "add":
        return core.add(data, core.gather_d_grad(updates, indices, size=size, dim=dim, bound=size))
    if reduction != "none":
        raise ShapeError(f"TensorScatterElements: reduction is {reduction!r}; it is 'none' or 'add'")
    last = core.last_along(_counted(indices, size), size=size, dim=dim)
    made = core.last_elements(updates, last, _counted(indices, size), dim=dim)
    return core.select(core.greater_equal(last, np.int32(0)), made, data)


def _counted(indices: Any, size: int) -> Any:
    """Indices from the front; those outside are an error of the run."""
    table = np.arange(size, dtype=element(indices.dtype).numpy)
    return core.gather(table, indices, axis=0, bound=size)


# -- by number of a segment


def _segments(name: str, body: str, start: Any, doc: str) -> Any:
    def function(x, segment_ids, num_segments):
        picks, kind = len(segment_ids.shape), element(x.dtype)
        _check_segments(x, segment_ids, name)
        shape = (plain(num_segments), *x.shape[picks:])
        begin = core.fill(shape=shape, value=start(kind), dtype=kind.name)
        return core.scatter_slices(
            begin,
            core.expand_dims(segment_ids, axis=picks),
            x,
            body=Body(body),
            update_window_dims=tuple(range(picks, len(x.shape))),
            inserted_window_dims=(0,),
            scatter_dims_to_operand_dims=(0,),
            index_vector_dim=picks,
        )

    function.__doc__ = doc
    return primitive(name, core.scatter_slices)(function)


def _bound(kind: Any, largest: bool) -> Any:
    limits = np.finfo(kind.numpy) if kind.is_float else np.iinfo(kind.numpy)
    found = limits.max if largest else limits.min
    return float(found) if kind.is_float else int(found)


UnsortedSegmentMax = _segments(
    "UnsortedSegmentMax", "max", lambda kind: _bound(kind, False),
    "The largest of the slices of each number; the least number that there is where none is. Below 0 none.",
)  # fmt: skip
UnsortedSegmentMin = _segments(
    "UnsortedSegmentMin", "min", lambda kind: _bound(kind, True),
    "The smallest of the slices of each number; the largest number that there is where none is. Below 0 none.",
)  # fmt: skip
UnsortedSegmentProd = _segments(
    "UnsortedSegmentProd", "mul", lambda kind: 1, "The product of the slices of each number; 1 where none is."
)


def _check_segments(x: Any, segment_ids: Any, what: str) -> None:
    if tuple(x.shape[: len(segment_ids.shape)]) != tuple(segment_ids.shape):
        raise ShapeError(f"{what}: segment_ids {tuple(segment_ids.shape)} must be the first dims of {tuple(x.shape)}")


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
        columns.append(_counted(core.squeeze(column, axis=(len(lead),)), x.shape[dim]))
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
