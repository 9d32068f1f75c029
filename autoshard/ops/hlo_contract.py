"""StableHLO's contraction: dot_general, with any batch and contracting dims and a given element type of the result.

dot_general(x, w, lhs_contract=(1,), rhs_contract=(0,), dtype="f32")         x @ w
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from autoshard.core.rule import REDUCTION, Rule
from autoshard.core.tensortype import dtype as element_type
from autoshard.ops.axes import axis_indices, words
from autoshard.ops.contract import parse_equation
from autoshard.ops.factors import FactorBuilder
from autoshard.ops.options import Spreading
from autoshard.ops.registry import operator
from autoshard.util.errors import ShapeError

Shape = tuple[int, ...]
Dims = tuple[int, ...]
_SMALL_FLOAT_BITS = 32


@dataclass(frozen=True)
class _Operand:
    """The dims of one operand by role."""

    rank: int
    batch: Dims
    contract: Dims

    @cached_property
    def free(self) -> Dims:
        return tuple(i for i in range(self.rank) if i not in self.batch and i not in self.contract)


@lru_cache(maxsize=4096)
def _operands(ranks: tuple[int, int], batch: tuple[Dims, Dims], contract: tuple[Dims, Dims]) -> tuple[_Operand, ...]:
    return tuple(_Operand(*one) for one in zip(ranks, batch, contract, strict=True))


def _rule(
    lhs: Shape, rhs: Shape, lhs_batch: Dims, rhs_batch: Dims, lhs_contract: Dims, rhs_contract: Dims, **_: object
) -> Rule:
    """Factors in Shardy's order: batch, free dims of the left, of the right, contracted."""
    _check((lhs, rhs), (lhs_batch, rhs_batch), (lhs_contract, rhs_contract))
    left, right = _operands((len(lhs), len(rhs)), (lhs_batch, rhs_batch), (lhs_contract, rhs_contract))
    made = iter(range(len(lhs) + len(rhs)))
    builder = FactorBuilder([len(lhs), len(rhs)], [len(left.batch) + len(left.free) + len(right.free)])
    for i, j in zip(left.batch, right.batch, strict=True):
        builder.factor({0: i, 1: j, 2: next(made)}, lhs[i])
    for i in left.free:
        builder.factor({0: i, 2: next(made)}, lhs[i])
    for j in right.free:
        builder.factor({1: j, 2: next(made)}, rhs[j])
    for i, j in zip(left.contract, right.contract, strict=True):
        builder.factor({0: i, 1: j}, lhs[i], REDUCTION)
    return builder.build()


def _check(shapes: Sequence[Shape], batch: Sequence[Dims], contract: Sequence[Dims]) -> None:
    """Raise ShapeError unless the paired dims exist, are named once each, and have equal sizes."""
    for shape, some, others in zip(shapes, batch, contract, strict=True):
        axis_indices((*some, *others), len(shape), "DotGeneral")
    for what, (left, right) in (("batch", batch), ("contracting", contract)):
        sizes = [shapes[0][i] for i in left], [shapes[1][j] for j in right]
        if sizes[0] != sizes[1]:
            raise ShapeError(
                f"DotGeneral of {shapes[0]} and {shapes[1]}: {what} dims {left} and {right} have the sizes "
                f"{tuple(sizes[0])} and {tuple(sizes[1])}; they must be equal"
            )


@operator("DotGeneral", rule=_rule, dtype=lambda *_, dtype, **__: dtype, linear=((0,), (1,)))
def dot_general(lhs, rhs, *, lhs_batch=(), rhs_batch=(), lhs_contract=(), rhs_contract=(), dtype, precision=()):
    """Products summed over the contracting dims; the result has batch dims, free dims of lhs, free dims of rhs.

    `dtype` is the element type of the result; sums are kept in it or in an operand's type where that is wider, floats
    in f32 at least. `precision` is what the user asked of the hardware, one word per operand; numpy has only one way.
    """
    left, right = _operands((lhs.ndim, rhs.ndim), (lhs_batch, rhs_batch), (lhs_contract, rhs_contract))
    wide = _accumulator(lhs.dtype, rhs.dtype, element_type(dtype).numpy)
    x = lhs.transpose(left.batch + left.free + left.contract).astype(wide, copy=False)
    w = rhs.transpose(right.batch + right.contract + right.free).astype(wide, copy=False)
    batch, rows, inner = _sizes(lhs, left.batch), _sizes(lhs, left.free), math.prod(_sizes(lhs, left.contract))
    columns = _sizes(rhs, right.free)
    product = np.matmul(x.reshape((*batch, math.prod(rows), inner)), w.reshape((*batch, inner, math.prod(columns))))
    return product.reshape((*batch, *rows, *columns))


def _sizes(x: np.ndarray, dims: Dims) -> Shape:
    return tuple(x.shape[i] for i in dims)


def _accumulator(*dtypes: np.dtype) -> np.dtype:
    """The type to sum in: the widest of all; f32 in place of any narrower float, i32 of ints that numpy has not."""
    known = [element_type(one) for one in dtypes]
    wide = [np.dtype(np.float32) if one.is_float and one.bits < _SMALL_FLOAT_BITS else _native(one) for one in known]
    return np.result_type(*wide)


def _native(of):
    return np.dtype(np.int32) if of.extended else of.numpy


@dot_general.gradient
def _(g, y, lhs, rhs, **attrs):
    batch = attrs["lhs_batch"], attrs["rhs_batch"]
    contract = attrs["lhs_contract"], attrs["rhs_contract"]
    left, right = _operands((len(lhs.shape), len(rhs.shape)), batch, contract)
    return _slope(g, lhs, rhs, left, right, False), _slope(g, rhs, lhs, right, left, True)


def _slope(g, own, other, mine: _Operand, others: _Operand, second: bool):
    """The gradient of one operand: g contracted with the other operand over that one's free dims, dims put in order."""
    count = len(mine.batch)
    start = count if second else count + len(mine.free)
    contract = tuple(range(start, start + len(others.free)))
    product = dot_general(
        g,
        other,
        lhs_batch=tuple(range(count)),
        rhs_batch=others.batch,
        lhs_contract=contract,
        rhs_contract=others.free,
        dtype=str(element_type(own.dtype)),
    )
    # The product's dims: batch, own free dims, then the other's contracted dims as they stand in the other.
    partner = dict(zip(others.contract, mine.contract, strict=True))
    order = mine.batch + mine.free + tuple(partner[i] for i in sorted(partner))
    from autoshard.ops.shape import transpose  # late: only gradients need it

    return transpose(product, perm=tuple(order.index(i) for i in range(mine.rank)))


# -- einsum


def _einsum_rule(*shapes: Shape, equation: str, dtype: str) -> str:
    operands, result = parse_equation(equation)
    return f"{', '.join(map(words, operands))} -> {words(result)}"


@operator(
    "HloEinsum", rule=_einsum_rule, dtype=lambda *_, dtype, **__: dtype, linear=((0,),), spread=Spreading(foreign=True)
)
def hlo_einsum(*xs, equation, dtype):
    """Sum of products over the letters missing on the right, for one or two operands; `dtype` as in `dot_general`."""
    wide = _accumulator(*(x.dtype for x in xs), element_type(dtype).numpy)
    return np.einsum(equation, *(x.astype(wide, copy=False) for x in xs))
