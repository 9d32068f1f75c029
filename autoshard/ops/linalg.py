"""Inverse, solution, determinant and exponential of matrices; leading dims are batches, and only these can be split.

Matrices are of real numbers. A matrix that has no inverse gives infinities or NaN, where LAPACK's callers would raise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autoshard.core.tensortype import DType, promote
from autoshard.ops.contract import batch_matmul
from autoshard.ops.known import surely
from autoshard.ops.options import Filling
from autoshard.ops.pointwise import mul, sub
from autoshard.ops.registry import operator
from autoshard.ops.shape import expand_dims, transpose
from autoshard.ops.unary import neg
from autoshard.util.errors import ShapeError

Shape = Sequence[int]


def square(a: Shape, what: str) -> int:
    """The size of square matrices.

    Raises:
        ShapeError: the last two dims are no such.
    """
    if len(a) < 2 or a[-1] != a[-2]:
        raise ShapeError(f"{what} takes square matrices in the last two dims, not {tuple(a)}")
    return a[-1]


def matrix(a: Shape, what: str) -> tuple[int, int, int]:
    """Rows, columns, and the smaller of them.

    Raises:
        ShapeError: there are fewer than two dims.
    """
    if len(a) < 2:
        raise ShapeError(f"{what} takes matrices in the last two dims, not {tuple(a)}")
    return a[-2], a[-1], min(a[-2:])


def wide(a: np.ndarray) -> np.ndarray:
    """In f64, in which gradients are computed: divisions by differences lose digits."""
    return a.astype(np.float64, copy=False)


def flipped(a: np.ndarray) -> np.ndarray:
    """Arrays with rows for columns."""
    return np.swapaxes(a, -1, -2)


def real_matrices(what: str, *more: str) -> Callable[..., Any]:
    """The element type of the operands, then `more`.

    Raises:
        ShapeError: they are no floats.
    """

    def element(*operands: DType, **_: object) -> Any:
        common = promote(operands)
        if not common.is_float:
            raise ShapeError(f"{what} is known of matrices of real floats, not of {common}")
        return (common, *more) if more else common

    return element


def each(run: Callable, *arrays: np.ndarray) -> np.ndarray:
    """`run` on whole batches; matrix by matrix, with NaN for those that it raises for, once it raises."""
    try:
        return run(*arrays)
    except np.linalg.LinAlgError:
        if arrays[0].ndim == 2:
            return np.full_like(arrays[-1], np.nan)
        return np.stack([each(run, *ones) for ones in zip(*arrays, strict=True)])


def of_finite(run: Callable, a: np.ndarray) -> tuple[np.ndarray, ...]:
    """`run` on a batch of matrices, with NaN for those that hold what is not finite, as padded blocks may: numpy's
    decompositions raise for a whole batch where one of them does not converge."""
    fine = np.asarray(np.isfinite(a).all(axis=(-2, -1)))
    if surely(fine.all()):
        return tuple(run(a))
    found = run(np.where(fine[..., None, None], a, 0))
    return tuple(np.where(fine.reshape(fine.shape + (1,) * (one.ndim - fine.ndim)), one, np.nan) for one in found)


def turned(x: Any) -> Any:
    """Matrices with rows for columns."""
    rank = len(x.shape)
    return transpose(x, perm=(*range(rank - 2), rank - 1, rank - 2))


def times(x: Any, y: Any, *, transpose_a: bool = False, transpose_b: bool = False) -> Any:
    return batch_matmul(x, y, transpose_a=transpose_a, transpose_b=transpose_b)


# -- inverse and solution


def _square_rule(what: str, text: str) -> Callable[..., str]:
    def rule(a: Shape, **_: object) -> str:
        square(a, what)
        return text

    return rule


@operator(
    "MatrixInverse",
    rule=_square_rule("MatrixInverse", "... [m] [n] -> ... [m] [n]"),
    dtype=real_matrices("MatrixInverse"),
    flops=lambda a, **_: 2 * a[-1],
)
def matrix_inverse(a):
    """The matrix whose product with a is one."""
    return each(np.linalg.inv, a)


@matrix_inverse.gradient
def _(g, y, a):
    return neg(times(times(y, g, transpose_a=True), y, transpose_b=True))


def _solve_rule(a: Shape, b: Shape) -> str:
    square(a, "MatrixSolve")
    if len(a) != len(b) or tuple(a[:-1]) != tuple(b[:-1]):
        raise ShapeError(f"MatrixSolve: {tuple(a)} cannot be solved for {tuple(b)}")
    return "... [m] [n], ... [m] k -> ... [n] k"


@operator(
    "MatrixSolve", rule=_solve_rule, dtype=real_matrices("MatrixSolve"), linear=((1,),), flops=lambda a, b: 2 * a[-1]
)
def matrix_solve(a, b):
    """x with a x = b."""
    return each(np.linalg.solve, a, b)


@matrix_solve.gradient
def _(g, y, a, b):
    back = matrix_solve(turned(a), g)
    return neg(times(back, y, transpose_b=True)), back


# -- determinants


@operator(
    "MatrixDeterminant",
    rule=_square_rule("MatrixDeterminant", "... [m] [n] -> ..."),
    dtype=real_matrices("MatrixDeterminant"),
)
def matrix_determinant(a):
    """The determinant."""
    return np.linalg.det(a)


@matrix_determinant.gradient
def _(g, y, a):
    return mul(expand_dims(expand_dims(g, axis=-1), axis=-1), matrix_cofactors(a))


@operator(
    "MatrixCofactors",
    rule=_square_rule("MatrixCofactors", "... [m] [n] -> ... [m] [n]"),
    dtype=real_matrices("MatrixCofactors"),
    flops=lambda a, **_: 20 * a[-1],
    filling=Filling(fills={0: 0}),
)
def matrix_cofactors(a):
    """The derivative of the determinant for each element, also of matrices without an inverse."""
    u, values, vt = np.linalg.svd(a.astype(np.float64, copy=False))
    count = values.shape[-1]
    rest = np.broadcast_to(values[..., None, :], (*values.shape, count)).copy()
    rest[..., range(count), range(count)] = 1
    sign = np.round(np.linalg.det(u) * np.linalg.det(vt))
    return sign[..., None, None] * (u * rest.prod(-1)[..., None, :] @ vt)


@operator(
    "LogMatrixDeterminant",
    rule=_square_rule("LogMatrixDeterminant", "... [m] [n] -> ..., ..."),
    dtype=lambda a: (real_matrices("LogMatrixDeterminant")(a),) * 2,
)
def log_matrix_determinant(a):
    """Sign of the determinant, and the logarithm of its size."""
    return tuple(np.linalg.slogdet(a))


@log_matrix_determinant.gradient
def _(g, y, a):
    if g[1] is None:
        return None
    return mul(expand_dims(expand_dims(g[1], axis=-1), axis=-1), turned(matrix_inverse(a)))


# -- exponential


@operator(
    "MatrixExp",
    rule=_square_rule("MatrixExp", "... [m] [n] -> ... [m] [n]"),
    dtype=real_matrices("MatrixExp"),
    flops=lambda a, **_: 20 * a[-1],
)
def matrix_exp(a):
    """1 + a + a a / 2 + a a a / 6 + ..."""
    return _exponential(a)


def _exponential(a: np.ndarray) -> np.ndarray:
    # Imported here: scipy takes longer to import than all else together.
    from scipy.linalg import expm

    return expm(a.astype(np.float64)).astype(a.dtype) if a.size else a


@matrix_exp.gradient
def _(g, y, a):
    return matrix_exp_grad(g, a)


def _alike_rule(g: Shape, a: Shape) -> str:
    square(a, "MatrixExpGrad")
    return "... [m] [n], ... [m] [n] -> ... [m] [n]"


@operator(
    "MatrixExpGrad",
    rule=_alike_rule,
    dtype=real_matrices("MatrixExpGrad"),
    linear=((0,),),
    flops=lambda g, a: 160 * a[-1],
)
def matrix_exp_grad(g, a):
    """Gradient of MatrixExp: the upper right block of the exponential of [[aᵀ, g], [0, aᵀ]] (Mathias 1996)."""
    n = a.shape[-1]
    block = np.zeros((*a.shape[:-2], 2 * n, 2 * n), a.dtype)
    block[..., :n, :n] = block[..., n:, n:] = np.swapaxes(a, -1, -2)
    block[..., :n, n:] = g
    return _exponential(block)[..., :n, n:]


# -- pseudo-inverse


def _pseudo_rule(a: Shape, least: Shape, **_: object) -> str:
    if len(a) < 2:
        raise ShapeError(f"PseudoInverse takes matrices in the last two dims, not {tuple(a)}")
    return "... [m] [n], ... -> ... [n] [m]"


@operator(
    "PseudoInverse",
    rule=_pseudo_rule,
    dtype=real_matrices("PseudoInverse"),
    flops=lambda a, *_, **__: 20 * a[-1],
    filling=Filling(fills={0: 0}),
)
def pseudo_inverse(a, least, *, hermitian=False):
    """The inverse on what a reaches (Moore and Penrose): singular values of at most `least`, one per matrix, are 0.

    `hermitian` says that the matrices are symmetric, of which the lower triangle is read.
    """
    if hermitian:
        values, vectors = np.linalg.eigh(a)
        u, vt = vectors, np.swapaxes(vectors, -1, -2)
    else:
        u, values, vt = np.linalg.svd(a, full_matrices=False)
    kept = np.abs(values) > least[..., None]
    inverse = np.where(kept, 1 / np.where(kept, values, 1), 0).astype(a.dtype)
    return np.swapaxes(vt, -1, -2) @ (inverse[..., None] * np.swapaxes(u, -1, -2))


@pseudo_inverse.gradient
def _(g, y, a, least, hermitian):
    """Golub and Pereyra (1973): the differential of a pseudo-inverse at constant rank."""
    down, plus = turned(g), turned(y)
    if a.shape[-2] <= a.shape[-1]:
        k = times(down, y)
        across = times(k, plus)
        return _total(
            sub(across, times(times(a, y), across)),
            times(times(plus, y), sub(down, times(k, a))),
            turned(times(y, k)),
        ), None
    k = times(y, down)
    across = times(plus, k)
    return _total(
        times(times(sub(down, times(a, k)), y), plus),
        sub(across, times(times(across, y), a)),
        turned(times(k, y)),
    ), None


def _total(x: Any, y: Any, taken: Any) -> Any:
    return sub(sub(x, neg(y)), taken)
