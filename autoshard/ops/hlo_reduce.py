"""StableHLO's reduce over whole dims, and map: any number of inputs, any scalar function.

A reduced dim is a reduction factor. Where partial results combine by a sum, product, maximum or minimum, ranks that
hold parts of it end with terms; for any other function, and for several inputs together (the position of an extreme),
they gather what their blocks come to and put it together by the function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from autoshard.core.rule import PASS, REDUCTION, Rule
from autoshard.core.tensortype import DType
from autoshard.ops.attributes import OperatorPlacement
from autoshard.ops.axes import axis_indices
from autoshard.ops.body import Body
from autoshard.ops.factors import FactorBuilder
from autoshard.ops.folding import combine, fold
from autoshard.ops.options import Filling, Spreading
from autoshard.ops.registry import operator
from autoshard.ops.windows import Exchange, Totals
from autoshard.util.errors import ShapeError

Shape = tuple[int, ...]
ADD = Body("add")


def _inputs(shapes: Sequence[Shape], dimensions: Sequence[int], what: str) -> int:
    """How many of the operands are inputs: the first half; the others are their initial values."""
    count = len(shapes) // 2
    if not shapes or len(shapes) % 2 or any(shape != shapes[0] for shape in shapes[:count]) or any(shapes[count:]):
        shown = ", ".join(map(str, shapes)) or "none"
        raise ShapeError(f"{what} takes inputs of one shape, then as many scalars to start from; not {shown}")
    axis_indices(dimensions, len(shapes[0]), what)
    return count


def _reduce_rule(*shapes: Shape, dimensions: Sequence[int], body: Body = ADD, **_: object) -> Rule:
    count = _inputs(shapes, dimensions, "Reduce")
    x = shapes[0]
    kept = [dim for dim in range(len(x)) if dim not in dimensions]
    splittable = count == 1 and body.reduction is not None
    # Of several dims one can be put together again; the largest.
    gathered = max(dimensions, key=lambda dim: (x[dim], -dim), default=None)
    builder = FactorBuilder([*[len(x)] * count, *[0] * count], [len(kept)] * count)
    for dim, size in enumerate(x):
        places = {tensor: dim for tensor in range(count)}
        if dim in kept:
            results = {2 * count + tensor: kept.index(dim) for tensor in range(count)}
            builder.factor(places | results, size, PASS)
        else:
            exchange = size if not splittable and dim == gathered and size > 1 else 0
            builder.factor(places, size, REDUCTION, whole=not splittable, exchange=exchange)
    return replace(builder.build(), reduction=body.reduction or "sum")


def _reduced_shapes(*shapes: Shape, dimensions: Sequence[int], **_: object) -> tuple[Shape, ...]:
    count = _inputs(shapes, dimensions, "Reduce")
    return (tuple(size for dim, size in enumerate(shapes[0]) if dim not in dimensions),) * count


def _starting_types(*dtypes: DType, **_: object) -> tuple[DType, ...]:
    """Results are of the types of the initial values, which may be wider than the inputs."""
    return dtypes[len(dtypes) // 2 :]


def _reduced(xs: Sequence[np.ndarray], dimensions: Sequence[int], body: Body, first: Sequence[int]) -> tuple:
    """The inputs folded, after the initial values.

    `first` says where the block starts along each dimension: the initial values count once, on the ranks that hold
    the first block.
    """
    count = len(xs) // 2
    starts = xs[count:]
    inputs = tuple(x.astype(start.dtype, copy=False) for x, start in zip(xs[:count], starts, strict=True))
    if 0 in (inputs[0].shape[dim] for dim in dimensions):
        shape = [size for dim, size in enumerate(inputs[0].shape) if dim not in dimensions]
        return tuple(np.broadcast_to(start, shape) for start in starts)
    folded = fold(body, inputs, dimensions)
    if any(first):
        return folded
    spread = tuple(np.broadcast_to(start, one.shape) for start, one in zip(starts, folded, strict=True))
    return combine(body, spread, folded)


@operator("Reduce", rule=_reduce_rule, shape=_reduced_shapes, dtype=_starting_types, filling=Filling(neutral="yes"))
def reduce_with(*xs, dimensions, body, first=()):
    """Inputs put together along `dimensions` by `body`; operands are the inputs, then a scalar for each to start from.

    The body takes as many values as there are operands: those so far, then those to add.
    """
    return _reduced(xs, dimensions, body, first)


@operator(
    "ReduceAdd",
    rule=_reduce_rule,
    shape=_reduced_shapes,
    dtype=_starting_types,
    linear=((0, 1),),
)
def reduce_add(x, start, *, dimensions, first=()):
    """The sum of x along `dimensions` plus the scalar `start`: Reduce by addition, which passes terms of sums on."""
    return _reduced((x, start), dimensions, ADD, first)


def _where(attrs: Mapping[str, Any], placement: OperatorPlacement) -> dict[str, Any]:
    return {"first": tuple(placement.operand_offset(0, dim) for dim in attrs["dimensions"])}


def begins_with_nothing(starts: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> bool:
    """Whether initial values of a reduction or scatter change nothing, however often they count: 0 of a sum."""
    body = attrs.get("body", ADD)
    others = [np.asarray([-7, 0, 11]).astype(start.dtype) for start in starts]
    same = combine(body, [np.broadcast_to(start, one.shape) for start, one in zip(starts, others, strict=True)], others)
    return all(np.array_equal(one, other) for one, other in zip(same, others, strict=True))


for _operator in (reduce_with, reduce_add):
    _operator.localize(_where)


# -- what blocks come to, and putting it together


def _totals_shape(*shapes: Shape, dimensions: Sequence[int], **_: object) -> tuple[Shape, ...]:
    x = shapes[0]
    return (tuple(1 if dim in dimensions else size for dim, size in enumerate(x)),) * (len(shapes) // 2)


@operator("BlockReduce", rule=None, shape=_totals_shape, dtype=_starting_types)
def block_reduce(*xs, dimensions, body, dim, valid):
    """Inputs put together along `dimensions`, which stay with size 1, without the initial values.

    Only the first `valid` elements along `dim` count; where there are none, the initial values stand.
    """
    count = len(xs) // 2
    (shape, *_), starts = _totals_shape(*(x.shape for x in xs), dimensions=dimensions), xs[count:]
    if not valid:
        return tuple(np.broadcast_to(start, shape) for start in starts)
    real = (slice(None),) * dim + (slice(0, valid),)
    inputs = tuple(x[real].astype(start.dtype, copy=False) for x, start in zip(xs[:count], starts, strict=True))
    return tuple(one.reshape(shape) for one in fold(body, inputs, dimensions))


def _after_shape(*shapes: Shape, dimensions: Sequence[int], **_: object) -> tuple[Shape, ...]:
    x = shapes[0]
    return (tuple(size for dim, size in enumerate(x) if dim not in dimensions),) * (len(shapes) // 3)


@operator(
    "ReduceAfter",
    rule=None,
    shape=_after_shape,
    dtype=lambda *dtypes, **_: dtypes[len(dtypes) // 3 :][: len(dtypes) // 3],
)
def reduce_after(*xs, dimensions, body):
    """Reduce of inputs and initial values, from what all blocks of the inputs come to."""
    count = len(xs) // 3
    return _reduced((*xs[2 * count :], *xs[count : 2 * count]), dimensions, body, ())


@reduce_with.exchange
def _(attrs: Mapping[str, Any], placement: OperatorPlacement) -> Exchange:
    layout, dimensions = placement.operand_layouts[0], attrs["dimensions"]
    dim = next(dim for dim in dimensions if layout.dims[dim])
    valid = placement.operand_valid(0, dim)
    total = {"dimensions": dimensions, "body": attrs["body"], "dim": dim, "valid": valid}
    return Exchange((), None, Totals(tuple(range(len(placement.operands))), dim, block_reduce, total, reduce_after))


# -- map


def _map_rule(*shapes: Shape, **_: object) -> Rule:
    if not shapes or any(shape != shapes[0] for shape in shapes):
        raise ShapeError(f"Map takes operands of one shape, not {', '.join(map(str, shapes)) or 'none'}")
    return FactorBuilder([len(shapes[0])] * len(shapes), [len(shapes[0])]).pointwise(shapes[0]).build()


@operator("Map", rule=_map_rule, dtype=lambda *_, dtype, **__: dtype, spread=Spreading(foreign=True))
def map_elements(*xs, body, dtype):
    """The scalar function `body` on corresponding elements; its result is of element type `dtype`."""
    (result,) = body(*xs)
    return np.broadcast_to(result, xs[0].shape)
