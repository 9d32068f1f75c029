"""Triangular factors of matrices, LU and Cholesky's, with their gradients; only leading dims, batches, can be split.

Formulas of the gradients: Giles (2008), An extended collection of matrix derivative results.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoshard.core.tensortype import dtype
from autoshard.ops.hlo_lapack import routine
from autoshard.ops.hlo_linalg import cholesky, triangular_solve
from autoshard.ops.linalg import each, flipped, matrix, real_matrices, square, times, turned, wide
from autoshard.ops.options import Filling
from autoshard.ops.pointwise import add
from autoshard.ops.registry import operator
from autoshard.ops.slices import tril, triu
from autoshard.ops.unary import neg
from autoshard.util.errors import ShapeError

Shape = Sequence[int]


# -- LU


def _lu_rule(a: Shape) -> tuple[str, dict[str, int]]:
    _, _, least = matrix(a, "Lu")
    return "... [m] [n] -> ... [m] [n], ... [k], ...", {"k": least}


@operator("Lu", rule=_lu_rule, dtype=real_matrices("Lu", "i32", "i32"), flops=lambda a: 2 * min(a[-2:]) / 3)
def lu(a):
    """Both triangular factors in one matrix, the row (counted from 0) that each row was exchanged with, and `info`.

    The ones on the diagonal of the lower factor are left out; `info` is the number of the first row (from 1) with a
    zero on the diagonal of the upper one, 0 if there is none.
    """
    factors, rows = np.empty_like(a), np.zeros((*a.shape[:-2], min(a.shape[-2:])), np.int32)
    info = np.zeros(a.shape[:-2], np.int32)
    for position in np.ndindex(a.shape[:-2]):
        if a.size:
            factors[position], rows[position], info[position] = routine("getrf", a)(a[position])
    return factors, rows, info


@lu.gradient
def _(g, y, a):
    return None if g[0] is None else lu_grad(g[0], y[0], y[1])


@operator(
    "LuGrad",
    rule="... [m] [n], ... [m] [n], ... [k] -> ... [m] [n]",
    dtype=lambda g, factors, rows: g,
    linear=((0,),),
    flops=20,
    filling=Filling(fills={2: 0}),
)
def lu_grad(g, factors, rows):
    """Gradient of Lu for what it factors, from that of the factors."""
    g, factors = wide(g), wide(factors)
    count, columns = factors.shape[-2:]
    least = min(count, columns)
    g_lower, g_upper = np.tril(g, -1)[..., :least], np.triu(g)[..., :least, :]
    lower, upper = np.tril(factors, -1)[..., :least] + np.eye(count, least), np.triu(factors)[..., :least, :]
    top, first = lower[..., :least, :], upper[..., :least]
    met = flipped(lower) @ g_lower - g_upper @ flipped(upper)
    if count <= columns:
        left = g_upper.copy()
        left[..., :least] += flipped(each(np.linalg.solve, first, flipped(np.tril(met, -1))))
        found = each(np.linalg.solve, flipped(top), left)
    else:
        found = g_lower.copy()
        found[..., :least, :] -= each(np.linalg.solve, flipped(top), np.triu(met))
        found = flipped(each(np.linalg.solve, first, flipped(found)))
    return _exchanged_back(found, rows)


def _exchanged_back(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The rows of x before they were exchanged one after the other."""
    out = x.copy()
    for i in reversed(range(rows.shape[-1])):
        other = rows[..., i, None, None].astype(np.intp)
        there = np.take_along_axis(out, other, -2)[..., 0, :].copy()
        np.put_along_axis(out, other, out[..., i, None, :], -2)
        out[..., i, :] = there
    return out


def _order_rule(rows: Shape, *, size: int) -> tuple[str, dict[str, int]]:
    return "... [k] -> ... [m]", {"m": size}


@operator("RowOrder", rule=_order_rule, dtype="i32", filling=Filling(fills={0: 0}))
def row_order(rows, *, size):
    """Where rows come from after row i was exchanged with row `rows[i]`, one after the other: a[order] = l u."""
    order = np.broadcast_to(np.arange(size, dtype=np.int32), (*rows.shape[:-1], size)).copy()
    for i in range(rows.shape[-1]):
        other = rows[..., i, None].astype(np.intp)
        there = np.take_along_axis(order, other, -1)[..., 0].copy()
        np.put_along_axis(order, other, order[..., i, None], -1)
        order[..., i] = there
    return order


# -- Cholesky


@operator("CholeskyInfo", rule="... [m] [n] -> ...", dtype="i32")
def cholesky_info(a, *, lower=True):
    """The order of the first leading minor that is not positive, 0 where there is none: what potrf of LAPACK tells."""
    info = np.zeros(a.shape[:-2], np.int32)
    for position in np.ndindex(info.shape):
        info[position] = routine("potrf", a)(a[position], lower=lower)[1] if a.shape[-1] else 0
    return info


@operator(
    "CholeskyGrad",
    rule="... [m] [n], ... [m] [n] -> ... [m] [n]",
    dtype=lambda g, factor: g,
    linear=((0,),),
    flops=4,
)
def cholesky_grad(g, factor):
    """Gradient of Cholesky for what it factors, from the lower factor and its gradient; it is symmetric."""
    g, factor = wide(g), wide(factor)
    met = np.tril(flipped(factor) @ g)
    met[..., range(met.shape[-1]), range(met.shape[-1])] *= 0.5
    found = flipped(each(np.linalg.solve, flipped(factor), flipped(each(np.linalg.solve, flipped(factor), met))))
    return (found + flipped(found)) / 2


@cholesky.gradient
def _(g, y, a, lower):
    real_matrices("The gradient of Cholesky")(dtype(a.dtype))
    return cholesky_grad(g, y) if lower else cholesky_grad(turned(g), turned(y))


def _cholesky_solve_rule(b: Shape, factor: Shape, **_: object) -> str:
    if square(factor, "CholeskySolve") != b[-2] or tuple(b[:-2]) != tuple(factor[:-2]):
        raise ShapeError(f"CholeskySolve: the factor {tuple(factor)} does not fit {tuple(b)}")
    return "... [m] k, ... [m] [n] -> ... [m] k"


@operator("CholeskySolve", rule=_cholesky_solve_rule, dtype=real_matrices("CholeskySolve"), linear=((0,),))
def cholesky_solve(b, factor, *, upper=False):
    """x with l lᵀ x = b (`upper`: uᵀ u x = b); one triangle of the factor is read."""
    first, second = ("TRANSPOSE", "NO_TRANSPOSE") if upper else ("NO_TRANSPOSE", "TRANSPOSE")
    half = triangular_solve.run(factor, b, lower=not upper, transpose_a=first)
    return triangular_solve.run(factor, half, lower=not upper, transpose_a=second)


@cholesky_solve.gradient
def _(g, y, b, factor, upper):
    """Of the factor as a full matrix, as torch has it."""
    back = cholesky_solve(g, factor, upper=upper)
    both = add(times(back, y, transpose_b=True), times(y, back, transpose_b=True))
    return back, neg(times(factor, both) if upper else times(both, factor))


@triangular_solve.gradient
def _(g, y, a, b, left_side, lower, unit_diagonal, transpose_a):
    """For b the solution with the matrix turned around; for a the triangle of its product with the solution."""
    real_matrices("The gradient of TriangularSolve")(dtype(a.dtype))
    straight = transpose_a == "NO_TRANSPOSE"
    back = triangular_solve(
        a, g, left_side=left_side, lower=lower, unit_diagonal=unit_diagonal,
        transpose_a="TRANSPOSE" if straight else "NO_TRANSPOSE",
    )  # fmt: skip
    if left_side:
        found = times(back, y, transpose_b=True) if straight else times(y, back, transpose_b=True)
    else:
        found = times(y, back, transpose_a=True) if straight else times(back, y, transpose_a=True)
    within = tril(found, diagonal=-unit_diagonal) if lower else triu(found, diagonal=int(unit_diagonal))
    return neg(within), back
