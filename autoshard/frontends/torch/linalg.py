"""Overloads of linear algebra. torch raises for matrices without an inverse or a factor; here those give NaN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autoshard import ops
from autoshard.frontends.torch.reduce import total
from autoshard.frontends.torch.shapes import cut, numbers, spread, swapped, zeros_as
from autoshard.frontends.torch.table import Call, do, number, translates


def turned(x: Any) -> Any:
    """Matrices with rows for columns."""
    return swapped(x, len(x.shape) - 2, len(x.shape) - 1)


def product(x: Any, y: Any) -> Any:
    return do(ops.batch_matmul, x, y)


def _matrices(x: Any, batch: Sequence[int]) -> Any:
    """Matrices, repeated to a batch of that shape."""
    return spread(x, (*batch, *x.shape[-2:]))


def _together(x: Any, y: Any) -> tuple[Any, Any]:
    """Two batches of matrices with the same leading dims."""
    batch = np.broadcast_shapes(tuple(x.shape[:-2]), tuple(y.shape[:-2]))
    return _matrices(x, batch), _matrices(y, batch)


# -- inverse and determinant


@translates("aten.linalg_inv.default", "aten.inverse.default")
def _(call: Call, x: Any) -> Any:
    return do(ops.matrix_inverse, x)


@translates("aten.linalg_inv_ex.default")
def _(call: Call, x: Any, *, check_errors: bool = False) -> Any:
    return do(ops.matrix_inverse, x), _info(call, x, 1)


def _info(call: Call, x: Any, result: int) -> Any:
    """LAPACK's info of a factorization by rows, if it is used."""
    return do(ops.lu, x)[2] if call.used(result) else np.zeros(x.shape[:-2], np.int32)


@translates("aten.linalg_det.default")
def _(call: Call, x: Any) -> Any:
    return do(ops.matrix_determinant, x)


@translates("aten._linalg_det.default")
def _(call: Call, x: Any) -> Any:
    return do(ops.matrix_determinant, x), *_factors(call, x, 1)


@translates("aten.linalg_slogdet.default", "aten.slogdet.default")
def _(call: Call, x: Any) -> Any:
    return do(ops.log_matrix_determinant, x)


@translates("aten._linalg_slogdet.default")
def _(call: Call, x: Any) -> Any:
    return *do(ops.log_matrix_determinant, x), *_factors(call, x, 2)


def _factors(call: Call, x: Any, result: int) -> tuple[Any, Any]:
    """The compact factors and pivots from result `result` on, zeros where nobody uses them."""
    if call.used(result) or call.used(result + 1):
        factors, rows, _ = do(ops.lu, x)
        return factors, _pivots(rows)
    return zeros_as(call, result), zeros_as(call, result + 1)


def _pivots(rows: Any) -> Any:
    """Rows counted from 1, as LAPACK does."""
    return do(ops.scalar_add, rows, addend=1)


@translates("aten.logdet.default")
def _(call: Call, x: Any) -> Any:
    sign, size = do(ops.log_matrix_determinant, x)
    negative = do(ops.less, sign, number(0, call.dtype))
    return do(ops.select, negative, number(math.nan, call.dtype), size)


@translates("aten.linalg_matrix_exp.default", "aten.matrix_exp.default")
def _(call: Call, x: Any) -> Any:
    return do(ops.matrix_exp, x)


# -- solutions


def _solved(a: Any, b: Any, left: bool = True) -> Any:
    vector = len(b.shape) == 1 or (len(a.shape) - 1 == len(b.shape) and tuple(b.shape) == tuple(a.shape[:-1]))
    b = do(ops.expand_dims, b, axis=-1) if vector else b
    a, b = _together(a if left else turned(a), b if left else turned(b))
    x = do(ops.matrix_solve, a, b)
    x = x if left else turned(x)
    return do(ops.squeeze, x, axis=(len(x.shape) - 1,)) if vector else x


@translates("aten.linalg_solve.default")
def _(call: Call, a: Any, b: Any, *, left: bool = True) -> Any:
    return _solved(a, b, left)


@translates("aten.linalg_solve_ex.default")
def _(call: Call, a: Any, b: Any, *, left: bool = True, check_errors: bool = False) -> Any:
    return _solved(a, b, left), _info(call, a, 1)


@translates("aten._linalg_solve_ex.default")
def _(call: Call, a: Any, b: Any, *, left: bool = True, check_errors: bool = False) -> Any:
    return _solved(a, b, left), *_factors(call, a, 1), _info(call, a, 3)


def _triangular(a: Any, b: Any, **attrs: Any) -> Any:
    return do(ops.triangular_solve, *_together(a, b), **attrs)


@translates("aten.linalg_solve_triangular.default")
def _(call: Call, a: Any, b: Any, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    return _triangular(a, b, left_side=left, lower=not upper, unit_diagonal=unitriangular)


@translates("aten.triangular_solve.default")
def _(call: Call, b: Any, a: Any, upper: bool = True, transpose: bool = False, unitriangular: bool = False) -> Any:
    turn = "TRANSPOSE" if transpose else "NO_TRANSPOSE"
    x = _triangular(a, b, lower=not upper, unit_diagonal=unitriangular, transpose_a=turn)
    return x, _matrices(a, x.shape[:-2])


# -- Cholesky


@translates("aten.cholesky.default", "aten.linalg_cholesky.default")
def _(call: Call, x: Any, upper: bool = False) -> Any:
    return _cholesky(x, upper)


def _cholesky(x: Any, upper: bool) -> Any:
    """torch reads the triangle that it is to make; ours is always made of the lower one."""
    factor = do(ops.cholesky, turned(x) if upper else x)
    return turned(factor) if upper else factor


@translates("aten.linalg_cholesky_ex.default")
def _(call: Call, x: Any, *, upper: bool = False, check_errors: bool = False) -> Any:
    info = do(ops.cholesky_info, x, lower=not upper) if call.used(1) else np.zeros(x.shape[:-2], np.int32)
    return _cholesky(x, upper), info


@translates("aten.cholesky_solve.default")
def _(call: Call, b: Any, factor: Any, upper: bool = False) -> Any:
    b, factor = _together(b, factor)
    return do(ops.cholesky_solve, b, factor, upper=upper)


@translates("aten.cholesky_inverse.default")
def _(call: Call, factor: Any, upper: bool = False) -> Any:
    ones = spread(_ones(factor.shape[-1], call), tuple(factor.shape))
    return do(ops.cholesky_solve, ones, factor, upper=upper)


def _ones(size: int, call: Call, columns: int | None = None) -> Any:
    rows, more = numbers(size), numbers(size if columns is None else columns)
    return call.cast(do(ops.equal, do(ops.expand_dims, rows, axis=1), more))


# -- LU


@translates("aten.linalg_lu_factor_ex.default", "aten.linalg_lu_factor.default", "aten._lu_with_info.default")
def _(call: Call, x: Any, *options: Any, pivot: bool = True, check_errors: bool = False) -> Any:
    if not pivot or options and not options[0]:
        call.refuse("LU without exchanging rows (pivot=False)")
    factors, rows, info = do(ops.lu, x)
    return (factors, _pivots(rows), info)[: len(call.results)]


def _unpacked(factors: Any, rows: Any, call: Call) -> tuple[Any, Any, Any]:
    """Permutation, lower and upper factor out of the compact ones; rows are counted from 0."""
    count, columns = factors.shape[-2:]
    least = min(count, columns)
    lower = do(ops.tril, cut(factors, len(factors.shape) - 1, 0, least), diagonal=-1)
    lower = do(ops.add, lower, _ones(count, call, least))
    upper = do(ops.triu, cut(factors, len(factors.shape) - 2, 0, least))
    return _permutation(rows, count, call), lower, upper


def _permutation(rows: Any, count: int, call: Call) -> Any:
    """The matrix p of a = p l u, from the rows that were exchanged."""
    order = do(ops.row_order, rows, size=count)
    made = do(ops.equal, do(ops.expand_dims, numbers(count, of="i32"), axis=1), do(ops.expand_dims, order, axis=-2))
    return call.cast(made)


@translates("aten.linalg_lu.default")
def _(call: Call, x: Any, *, pivot: bool = True) -> Any:
    if not pivot:
        call.refuse("LU without exchanging rows (pivot=False)")
    factors, rows, _ = do(ops.lu, x)
    return _unpacked(factors, rows, call)


@translates("aten.lu_unpack.default")
def _(call: Call, factors: Any, pivots: Any, unpack_data: bool = True, unpack_pivots: bool = True) -> Any:
    if not (unpack_data and unpack_pivots):
        call.refuse("lu_unpack of the data or of the pivots alone; leave what you do not need unused")
    return _unpacked(factors, do(ops.scalar_add, pivots, addend=-1), call)


@translates("aten.linalg_lu_solve.default")
def _(call: Call, factors: Any, pivots: Any, b: Any, *, left: bool = True, adjoint: bool = False) -> Any:
    return _lu_solved(call, factors, pivots, b, left, adjoint)


@translates("aten.lu_solve.default")
def _(call: Call, b: Any, factors: Any, pivots: Any) -> Any:
    return _lu_solved(call, factors, pivots, b, True, False)


def _lu_solved(call: Call, factors: Any, pivots: Any, b: Any, left: bool, adjoint: bool) -> Any:
    b = b if left else turned(b)
    adjoint = adjoint if left else not adjoint
    permutation = _permutation(do(ops.scalar_add, pivots, addend=-1), factors.shape[-1], call)
    steps = [{"lower": True, "unit_diagonal": True}, {"lower": False}]
    if adjoint:
        for step in reversed(steps):
            b = _triangular(factors, b, **step, transpose_a="TRANSPOSE")
        x = product(*_together(permutation, b))
    else:
        b = product(*_together(turned(permutation), b))
        for step in steps:
            b = _triangular(factors, b, **step)
        x = b
    return x if left else turned(x)


# -- orthogonal factors


@translates("aten.linalg_qr.default")
def _(call: Call, x: Any, mode: str = "reduced") -> Any:
    if mode == "r":
        if call.training:
            call.refuse("the gradient of qr in mode 'r', which torch has not either; use mode 'reduced'")
        return zeros_as(call, 0), do(ops.qr, x)[1]
    return do(ops.qr, x, full=mode == "complete")


@translates("aten.qr.default")
def _(call: Call, x: Any, some: bool = True) -> Any:
    return do(ops.qr, x, full=not some)


@translates("aten.geqrf.default")
def _(call: Call, x: Any) -> Any:
    return do(ops.geqrf, x)


@translates("aten.linalg_householder_product.default", "aten.orgqr.default")
def _(call: Call, vectors: Any, taus: Any) -> Any:
    return do(ops.householder_product, vectors, taus)


@translates("aten.ormqr.default")
def _(call: Call, vectors: Any, taus: Any, x: Any, left: bool = True, transpose: bool = False) -> Any:
    vectors = cut(vectors, len(vectors.shape) - 1, 0, taus.shape[-1])
    rows, columns = vectors.shape[-2:]
    if rows > columns:
        pairs = [(0, 0)] * (len(vectors.shape) - 1) + [(0, rows - columns)]
        vectors = do(ops.pad, vectors, paddings=tuple(pairs))
    q = do(ops.householder_product, vectors, taus)
    q = turned(q) if transpose else q
    return product(q, x) if left else product(x, q)


@translates("aten._linalg_svd.default")
def _(call: Call, x: Any, full_matrices: bool = False, compute_uv: bool = True, *, driver: Any = None) -> Any:
    if not compute_uv:
        return zeros_as(call, 0), do(ops.svd, x)[1], zeros_as(call, 2)
    return do(ops.svd, x, full=full_matrices)


@translates("aten.linalg_svd.default")
def _(call: Call, x: Any, full_matrices: bool = True, *, driver: Any = None) -> Any:
    return do(ops.svd, x, full=full_matrices)


@translates("aten.linalg_svdvals.default")
def _(call: Call, x: Any, *, driver: Any = None) -> Any:
    return do(ops.svd, x)[1]


@translates("aten._linalg_eigh.default")
def _(call: Call, x: Any, UPLO: str = "L", compute_v: bool = True) -> Any:
    values, vectors = do(ops.self_adjoint_eig, x, lower=UPLO.upper() == "L")
    return values, vectors if compute_v else zeros_as(call, 1)


@translates("aten.linalg_eigh.default")
def _(call: Call, x: Any, UPLO: str = "L") -> Any:
    return do(ops.self_adjoint_eig, x, lower=UPLO.upper() == "L")


@translates("aten.linalg_eigvalsh.default")
def _(call: Call, x: Any, UPLO: str = "L") -> Any:
    return do(ops.self_adjoint_eig, x, lower=UPLO.upper() == "L")[0]


# -- pseudo-inverse


@translates("aten.linalg_pinv.atol_rtol_tensor")
def _(call: Call, x: Any, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Any:
    """Singular values of at most max(atol, rtol times the largest) count as 0; see torch.linalg.pinv."""
    count, columns = x.shape[-2:]
    if not count or not columns:
        return zeros_as(call, 0)
    if rtol is None:
        none_given = atol is None or isinstance(atol, np.ndarray) and not atol.any()
        relative = number(max(count, columns) * float(np.finfo(np.float32).eps), call.dtype)
        rtol = relative if none_given else _unless(atol, relative, call)
    fixed = do(ops.stop_gradient, x)
    values = do(ops.self_adjoint_eig, fixed)[0] if hermitian else do(ops.svd, fixed)[1]
    largest = do(ops.reduce_max, do(ops.abs, values), axis=-1)
    least = do(ops.mul, largest, call.cast(rtol))
    if atol is not None:
        least = do(ops.maximum, least, call.cast(atol))
    return do(ops.pseudo_inverse, x, spread(least, tuple(x.shape[:-2])), hermitian=hermitian)


def _unless(atol: Any, relative: Any, call: Call) -> Any:
    """torch's relative tolerance where none is given: 0 where there is an absolute one."""
    given = do(ops.greater, call.cast(atol), number(0, call.dtype))
    return do(ops.select, given, number(0, call.dtype), relative)


@translates("aten.trace.default")
def _(call: Call, x: Any) -> Any:
    x = call.cast(x)
    least = min(x.shape)
    return total(do(ops.mul, cut(cut(x, 0, 0, least), 1, 0, least), _ones(least, call)))
