"""StableHLO's scatter: slices of updates are combined into copies of the inputs at computed places.

Updates whose slice does not lie fully inside are left out. Several updates of one place are combined in the order
in which they stand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from autoshard.core.rule import REDUCTION, REPLICATE, Rule
from autoshard.core.tensortype import DType
from autoshard.ops.attributes import OperatorPlacement
from autoshard.ops.body import Body
from autoshard.ops.factors import FactorBuilder
from autoshard.ops.hlo_gather import ABSENT, CUT, DROPPED, IMPLICIT, VECTOR, DimLink, IndexDims, Slices
from autoshard.ops.options import Filling
from autoshard.ops.registry import operator
from autoshard.ops.windows import Exchange
from autoshard.util.errors import ShapeError

Shape = tuple[int, ...]
Dims = tuple[int, ...]
T = TypeVar("T")
REPLACE = Body("replace")  # the update itself; the last one stays
_UFUNCS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
# What an input holds on ranks other than the first of those that share the updates of one place.
_NEUTRAL = {"sum": 0, "prod": 1}


_DIMS = (
    "update_window_dims", "inserted_window_dims", "input_batching_dims", "scatter_indices_batching_dims",
    "scatter_dims_to_operand_dims", "index_vector_dim",
)  # fmt: skip


def scatter_dims(attrs: Mapping[str, Any]) -> IndexDims:
    return IndexDims(*(attrs[name] for name in _DIMS))


def _tensors(operands: Sequence[T]) -> tuple[Sequence[T], T, Sequence[T]]:
    """Inputs, indices, updates."""
    count = len(operands) // 2
    if len(operands) != 2 * count + 1 or not count:
        raise ShapeError(f"Scatter takes inputs, indices and as many updates as inputs, not {len(operands)} operands")
    return operands[:count], operands[count], operands[count + 1 :]


# -- rule


def _shapes(*shapes: Shape, **attrs) -> tuple[Shape, ...]:
    inputs, indices, updates = _tensors(shapes)
    extents = tuple(extent for _, extent in attrs.get("block", ())) or inputs[0]
    _check(inputs, indices, updates, scatter_dims(attrs), extents)
    return tuple(inputs)


def _rule(*shapes: Shape, body: Body, **attrs) -> Rule:
    inputs, indices, updates = _tensors(shapes)
    count = len(_shapes(*shapes, **attrs))
    builder = FactorBuilder(list(map(len, shapes)), list(map(len, inputs)))
    for link in scatter_dims(attrs).links(inputs[0], indices, updates[0]):
        _add_factor(builder, link, count, body, inputs[0], indices, updates[0])
    return replace(builder.build(), reduction=body.reduction or "sum")


def _check(inputs: Sequence[Shape], indices: Shape, updates: Sequence[Shape], dims: IndexDims, extents: Shape) -> None:
    dims.check("Scatter", inputs[0], indices, len(updates[0]))
    if any(shape != inputs[0] for shape in inputs) or any(shape != updates[0] for shape in updates):
        raise ShapeError(f"Scatter: inputs {inputs} must have one shape, and updates {updates} as well")
    batch = dims.batch_shape(indices)
    kept = dims.kept(len(inputs[0]))
    too_wide = any(updates[0][at] > extents[dim] for at, dim in zip(dims.window, kept, strict=True))
    if too_wide or tuple(updates[0][i] for i in dims.batch(len(updates[0]))) != batch:
        raise ShapeError(
            f"Scatter: updates of shape {updates[0]} do not fit inputs of shape {inputs[0]} and indices of shape "
            f"{indices}; the window dims {dims.window} must lie inside the input, the others must be {batch}"
        )


def _add_factor(
    builder: FactorBuilder, link: DimLink, count: int, body: Body, operand: Shape, indices: Shape, slices: Shape
) -> None:
    inputs = {i: link.operand for i in (*range(count), *range(2 * count + 1, 3 * count + 1))}  # and results
    updates = {i: link.slices for i in range(count + 1, 2 * count + 1)}
    if link.role == CUT:
        # Each rank writes what falls into its block.
        size = operand[link.operand]
        builder.factor(inputs, size, REPLICATE, exchange=size if size > 1 else 0)
        builder.factor(updates, slices[link.slices], REPLICATE)
        return
    everywhere = {**inputs, count: link.indices, **updates}
    places = {tensor: dim for tensor, dim in everywhere.items() if dim != ABSENT}
    if link.role == IMPLICIT:
        builder.factor(places, slices[link.slices], REDUCTION if body.reduction else REPLICATE)
    elif link.role == VECTOR:
        builder.factor(places, indices[link.indices], REPLICATE)
    else:
        builder.factor(places, operand[link.operand])


# -- meaning


def _scatter(
    operands: Sequence[np.ndarray], body: Body, dims: IndexDims, block: Sequence[tuple[int, int]], parts: Sequence[int]
) -> tuple[np.ndarray, ...]:
    inputs, indices, updates = _tensors(operands)
    if body.reduction in _NEUTRAL and any(parts):
        inputs = [np.full_like(one, _NEUTRAL[body.reduction]) for one in inputs]
    places = _Places(dims, indices, inputs[0].shape, updates[0].shape, block)
    olds = [places.opened(one) for one in inputs]
    news = [places.listed(one) for one in updates]
    return tuple(places.closed(one) for one in _combined(olds, news, places.rows, body))


class _Places:
    """The input as a matrix, and in which of its rows each slice goes that lies inside.

    Input dims that slices cover in full are the columns, all others together the rows.
    """

    def __init__(
        self, dims: IndexDims, indices: np.ndarray, shape: Shape, updates: Shape, block: Sequence[tuple[int, int]]
    ) -> None:
        kept = dims.kept(len(shape))
        window = dict(zip(kept, dims.window, strict=True))
        sizes = tuple(updates[window[dim]] if dim in window else 1 for dim in range(len(shape)))
        self.block = block or tuple((0, size) for size in shape)
        self.slices = Slices(dims, sizes, tuple(dim for dim in kept if sizes[dim] == self.block[dim][1]))
        self.shape = shape
        self.columns = math.prod(shape[dim] for dim in self.slices.full)
        self.inside, self.rows = self._rows(dims.starts(indices, len(shape)), dims.batch_shape(indices.shape))

    def _rows(self, starts: list[np.ndarray], batch: Shape, everywhere: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Which of the slices' rows lie inside, and the numbers of those; of all if `everywhere`."""
        sizes, cuts = self.slices.sizes, self.slices.cuts
        inside = np.ones(batch, bool)
        for start, size, (_, extent) in zip(starts, sizes, self.block, strict=True):
            inside &= (start >= 0) & (start <= extent - size)
        full = batch + tuple(sizes[dim] for dim in cuts)
        inside = np.broadcast_to(inside.reshape(batch + (1,) * len(cuts)), full)
        row = np.zeros((), np.int64)
        for dim, index in zip(self.slices.sought, self.slices.index(starts, batch), strict=True):
            (offset, extent), here = self.block[dim], self.shape[dim]
            if offset or here < extent:
                index = index - offset
                inside = inside & (index >= 0) & (index < here)
            row = row * here + index
        rows = np.broadcast_to(row, full)
        return inside, rows if everywhere else rows[inside]

    def opened(self, array: np.ndarray) -> np.ndarray:
        """An input as a new matrix."""
        rows = math.prod(self.shape[dim] for dim in self.slices.sought)
        return np.array(array.transpose(self.slices.order), order="C").reshape(rows, self.columns)

    def closed(self, matrix: np.ndarray) -> np.ndarray:
        order = self.slices.order
        return matrix.reshape([self.shape[dim] for dim in order]).transpose(np.argsort(order))

    def listed(self, array: np.ndarray) -> np.ndarray:
        """What the slices bring to their rows."""
        moved = array.transpose(self.slices.slices_order(array.ndim))
        return moved[self.inside].reshape(len(self.rows), self.columns)


def _combined(olds: list[np.ndarray], news: list[np.ndarray], rows: np.ndarray, body: Body) -> Sequence[np.ndarray]:
    """`olds` with `news` combined into their rows, changed in place."""
    if body == REPLACE:
        for old, new in zip(olds, news, strict=True):
            old[rows] = new  # numpy keeps the last of equal rows
        return olds
    if body.reduction is None:
        return _one_by_one(olds, news, rows, body)
    for old, new in zip(olds, news, strict=True):
        if old.dtype.kind in "biuc" or old.dtype.itemsize >= 4:
            _grouped(old, new, rows, _UFUNCS[body.name])
        else:
            # Narrow floats lose digits at each step, and the steps decide which.
            _one_by_one([old], [new], rows, _UFUNCS[body.name])
    return olds


def _grouped(old: np.ndarray, new: np.ndarray, rows: np.ndarray, ufunc: np.ufunc) -> None:
    """Reduce the slices of each row first, in their order, then combine each row once."""
    if not len(rows):
        return
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    begins = np.flatnonzero(np.r_[True, rows[1:] != rows[:-1]])
    old[rows[begins]] = ufunc(old[rows[begins]], ufunc.reduceat(new[order], begins, axis=0, dtype=old.dtype))


def _one_by_one(
    olds: list[np.ndarray], news: list[np.ndarray], rows: np.ndarray, function: Callable
) -> Sequence[np.ndarray]:
    """All first slices of each row at once, then all second ones, ...: as if each slice came in turn."""
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    begins = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(rows) else np.zeros(0, np.int64)
    turn = np.arange(len(rows)) - np.repeat(begins, np.diff(np.r_[begins, len(rows)]))
    for number in range(int(turn.max(initial=-1)) + 1):
        chosen = order[turn == number]
        at = rows[chosen]
        results = function(*(old[at] for old in olds), *(new[chosen] for new in news))
        for old, result in zip(olds, results if isinstance(results, tuple) else (results,), strict=True):
            old[at] = result
    return olds


# -- the operators


def _types(*dtypes: DType, **_: object) -> tuple[DType, ...]:
    return tuple(_tensors(dtypes)[0])


# Their time goes into moving bytes: the rule's index combinations would count each update at each place.
@operator(
    "ScatterSlices", rule=_rule, shape=_shapes, dtype=_types, flops=0, filling=Filling(neutral="yes", fills={1: 0})
)
def scatter_slices(
    *operands,
    body,
    update_window_dims,
    inserted_window_dims,
    input_batching_dims=(),
    scatter_indices_batching_dims=(),
    scatter_dims_to_operand_dims,
    index_vector_dim,
    block=(),
    parts=(),
):
    """StableHLO's scatter of (inputs..., indices, updates...): as many results as inputs.

    A body known by name, and REPLACE, treats each input with its own updates; any other takes an element of each input,
    then of each update, and returns the new elements. `block` holds, per dim, the (offset, extent) of the whole inputs
    that these are parts of; `parts` says where the updates start along dims whose updates meet in the results: ranks
    that are not first in all of them bring no inputs of their own.
    """
    dims = IndexDims(
        update_window_dims, inserted_window_dims, input_batching_dims, scatter_indices_batching_dims,
        scatter_dims_to_operand_dims, index_vector_dim,
    )  # fmt: skip
    return _scatter(operands, body, dims, block, parts)


@operator(
    "ScatterAddSlices",
    rule=lambda *shapes, **attrs: _rule(*shapes, body=Body("add"), **attrs),
    shape=_shapes,
    dtype=_types,
    linear=((0, 2),),
    flops=0,
)
def scatter_add_slices(
    operand,
    indices,
    updates,
    *,
    update_window_dims,
    inserted_window_dims,
    input_batching_dims=(),
    scatter_indices_batching_dims=(),
    scatter_dims_to_operand_dims,
    index_vector_dim,
    block=(),
    parts=(),
):
    """StableHLO's scatter of one input by addition, which is linear: see `scatter_slices`."""
    dims = IndexDims(
        update_window_dims, inserted_window_dims, input_batching_dims, scatter_indices_batching_dims,
        scatter_dims_to_operand_dims, index_vector_dim,
    )  # fmt: skip
    return _scatter((operand, indices, updates), Body("add"), dims, block, parts)


@scatter_slices.exchange
@scatter_add_slices.exchange
def _(attrs, placement: OperatorPlacement) -> Exchange:
    """Nothing is fetched: all updates are here, and each rank writes those of its block."""
    return Exchange()


@scatter_slices.localize
@scatter_add_slices.localize
def _(attrs, placement: OperatorPlacement):
    inputs, indices, updates = _tensors([one.shape for one in placement.operands])
    links = list(scatter_dims(attrs).links(inputs[0], indices, updates[0]))
    # Slices begin at 0 in dims that they cover, and batching dims are split like the indices.
    sought = [link.operand for link in links if link.role in (CUT, DROPPED)]
    first, local = len(inputs) + 1, placement.local_operand(0)
    return {
        "block": tuple(
            (placement.operand_offset(0, dim), size) if dim in sought else (0, local[dim])
            for dim, size in enumerate(inputs[0])
        ),
        "parts": tuple(placement.operand_offset(first, link.slices) for link in links if link.role == IMPLICIT),
    }
