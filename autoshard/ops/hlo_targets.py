"""The targets of custom calls that Shardy has rules for (CustomCallOp of its rule registry), with their meanings."""

from __future__ import annotations

from typing import Any

import numpy as np

from autoshard.core.rule import REPLICATE, Rule
from autoshard.ops.factors import FactorBuilder
from autoshard.ops.folding import widened
from autoshard.ops.hlo_custom import CustomCall, custom_call_rule, custom_call_run
from autoshard.util.errors import ShapeError

_SAME = ("annotate_device_placement", "InspectSharding", "LayoutConstraint", "MoveToDevice", "MoveToHost")
_ELEMENTWISE = (*_SAME, "mhlo.erf", "X64SplitHigh", "X64SplitLow")
# Their dims correspond, but none of them can be computed in parts.
_CORRESPONDING = (
    "Cholesky",
    "CompactWyHelper",
    "InvertDiagBlocksLowerTriangular",
    "InvertDiagBlocksUpperTriangular",
    "xla.megascale.provide_metadata",
    *(f"_SPMDInternalOp_{name}" for name in ("MultiPad", "RotateRight", "MultiRotate", "MultiSlice", "Wrap")),
)


def _builder(call: CustomCall) -> FactorBuilder:
    return FactorBuilder([len(shape) for shape in call.operands], [len(shape) for shape in call.shapes])


@custom_call_rule(*_ELEMENTWISE)
def _(call: CustomCall) -> Rule:
    return _builder(call).pointwise(call.shapes[0]).build()


@custom_call_rule(*_CORRESPONDING)
def _(call: CustomCall) -> Rule:
    made = _builder(call)
    for dim, size in enumerate(call.shapes[0]):
        made.along(dim, size, whole=True)
    return made.build()


@custom_call_run(*_SAME, "Sharding")
def _(*xs: np.ndarray, call: CustomCall) -> Any:
    return xs[0] if len(xs) == 1 else xs


@custom_call_run("mhlo.erf")
def _(x: np.ndarray, *, call: CustomCall) -> Any:
    # Imported here: scipy takes longer to import than all else together.
    from scipy.special import erf

    return erf(widened(x))


# -- numbers of 64 bits as two of 32


@custom_call_run("X64SplitLow")
def _(x: np.ndarray, *, call: CustomCall) -> Any:
    return x.astype(np.uint64).astype(np.uint32)


@custom_call_run("X64SplitHigh")
def _(x: np.ndarray, *, call: CustomCall) -> Any:
    return (x.astype(np.uint64) >> np.uint64(32)).astype(np.uint32)


@custom_call_rule("X64Combine")
def _(call: CustomCall) -> Rule:
    """Elementwise; the state of a generator has to stay whole, and nothing may be asked of it."""
    made = _builder(call)
    for dim, size in enumerate(call.shapes[0]):
        if call.fixed:
            made.along(dim, size, REPLICATE, blocked=True)
        else:
            made.along(dim, size)
    return made.build()


@custom_call_run("X64Combine")
def _(low: np.ndarray, high: np.ndarray, *, call: CustomCall) -> Any:
    return low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))


# -- factors of matrices; rows and columns are the last two dims


@custom_call_rule("Eigh")
def _(call: CustomCall) -> Rule:
    """A row of the matrix is one of the vectors; a column is one too, and a value."""
    shape = call.operands[0]
    rows, columns = len(shape) - 2, len(shape) - 1
    made = _builder(call).pointwise(shape[:-2])
    made.factor({0: rows, 1: rows}, shape[rows], whole=True)
    return made.factor({0: columns, 1: columns, 2: rows}, shape[columns], whole=True).build()


@custom_call_rule("Qr", "QrDecompositionBlock")
def _(call: CustomCall) -> Rule:
    shape = call.operands[0]
    rows, columns = len(shape) - 2, len(shape) - 1
    made = _builder(call).pointwise(shape[:-2])
    made.factor({0: rows, 1: rows}, shape[rows], REPLICATE)
    made.factor({0: columns, 1: columns}, shape[columns], REPLICATE)
    return made.factor({2: rows}, call.shapes[1][rows], REPLICATE).build()


@custom_call_rule("ProductOfElementaryHouseholderReflectors")
def _(call: CustomCall) -> Rule:
    shape, taus = call.operands
    rows, columns = len(shape) - 2, len(shape) - 1
    made = _builder(call).pointwise(shape[:-2])
    made.factor({0: rows, 2: rows}, shape[rows], REPLICATE)
    made.factor({0: columns, 2: columns}, shape[columns], REPLICATE)
    return made.factor({1: rows}, taus[rows], REPLICATE).build()


# -- the largest elements


@custom_call_rule("mhlo.topk")
def _(call: CustomCall) -> Rule:
    """The last dim is searched; it is whole on every rank also where all of it is kept."""
    made = _builder(call)
    (shape,) = call.operands
    for dim, (size, kept) in enumerate(zip(shape, call.shapes[0], strict=True)):
        if size == kept:
            made.along(dim, size, whole=dim == len(shape) - 1)
        else:
            made.along(dim, size, REPLICATE, blocked=True)
    return made.build()


@custom_call_run("mhlo.topk")
def _(x: np.ndarray, *, call: CustomCall) -> Any:
    order = _first(x, x.ndim - 1, int(call.get("k")), bool(call.config.get("largest", True)))
    return np.take_along_axis(x, order, -1), order


@custom_call_rule("ApproxTopK", "PartialReduce")
def _(call: CustomCall) -> Rule:
    """Operands are values, their numbers, and a scalar of each; a searched dim is another one in the results."""
    made = _builder(call)
    searched = call.config.get("reduction_dim")
    for dim, (size, kept) in enumerate(zip(call.operands[0], call.shapes[0], strict=True)):
        if size == kept:
            made.along(dim, size, whole=searched in (None, dim))
        else:
            made.factor({0: dim, 1: dim}, size, whole=True)
            made.factor({4: dim, 5: dim}, kept, REPLICATE, blocked=True)
    return made.build()


@custom_call_run("ApproxTopK")
def _(x: np.ndarray, numbers: np.ndarray, *_: np.ndarray, call: CustomCall) -> Any:
    """The best elements, exactly: what XLA does where it has no faster way."""
    dim, count = int(call.get("reduction_dim")), int(call.get("top_k"))
    if call.shapes[0][dim] != count:
        raise ShapeError(f"ApproxTopK: {call.shapes[0][dim]} candidates for the best {count} are not computed")
    comparator = str(call.get("called_computations"))
    if "_gt_" not in comparator and "_lt_" not in comparator:
        raise ShapeError(f"ApproxTopK: the comparator {comparator} is neither 'gt' nor 'lt'")
    order = _first(x, dim, count, "_gt_" in comparator)
    return np.take_along_axis(x, order, dim), np.take_along_axis(numbers, order, dim)


def _first(x: np.ndarray, dim: int, count: int, largest: bool) -> np.ndarray:
    """Where the `count` best elements along dim are, the best first, the first of equal ones first."""
    key = widened(x)
    if largest:
        last = key.shape[dim] - 1
        order = last - np.flip(np.argsort(np.flip(key, dim), axis=dim, kind="stable"), dim)
    else:
        order = np.argsort(key, axis=dim, kind="stable")
    return np.take(order, range(count), axis=dim).astype(np.int32)
