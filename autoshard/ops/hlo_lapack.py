"""What LAPACK's routines compute, for the custom calls `lapack_<letter><routine>_ffi` that JAX emits for CPUs.

Operands and results are those of XLA's calls: leading dims are batches, what a routine overwrites is a result, and the
last result of most is `info`, 0 where all went well. Results beyond what the routine defines are returned as given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autoshard.ops.hlo_custom import CustomCall, custom_call_run
from autoshard.ops.hlo_linalg import triangular_solve

_REAL, _COMPLEX = "sd", "cz"


def routine(name: str, like: np.ndarray) -> Callable:
    """LAPACK's routine of that name for the element type of `like`."""
    # Imported here: scipy takes longer to import than all else together.
    from scipy.linalg import get_lapack_funcs

    return get_lapack_funcs((name,), (like,))[0]


def _letter(call: CustomCall, name: str) -> str:
    """A LAPACK option, which calls hold as the number of its letter."""
    return chr(call.get(name))


def _lapack(routine: str, letters: str = _REAL + _COMPLEX) -> Callable:
    """Register `function(*matrices, call=...) -> results`, for one matrix of each operand, to run on whole batches."""

    def register(function: Callable) -> Callable:
        targets = (f"lapack_{letter}{routine}_ffi" for letter in letters)

        @custom_call_run(*targets)
        def run(*operands: np.ndarray, call: CustomCall) -> Any:
            return _batched(function, operands, call)

        return function

    return register


def _batched(function: Callable, operands: Sequence[np.ndarray], call: CustomCall) -> Any:
    """The function on the matrices of each place in the batch."""
    return _over(function, operands, call, int(call.get("num_batch_dims")))


def _over(function: Callable, operands: Sequence[np.ndarray], call: CustomCall, leading: int) -> Any:
    """The function on each element of the first `leading` dims, one call after the other."""
    batch = operands[0].shape[:leading]
    results = tuple(np.empty(of.shape, of.dtype.numpy) for of in call.results)
    for position in np.ndindex(batch):
        found = function(*(operand[position] for operand in operands), call=call)
        for result, one in zip(results, found, strict=True):
            result[position] = one
    return results[0] if len(results) == 1 else results


# -- triangular factors


@_lapack("potrf")
def _(a: np.ndarray, *, call: CustomCall) -> tuple:
    return routine("potrf", a)(a, lower=_letter(call, "uplo") == "L", clean=False)


@_lapack("getrf")
def _(a: np.ndarray, *, call: CustomCall) -> tuple:
    """Factors in one matrix; pivots count from 1, as in Fortran."""
    factors, pivots, info = routine("getrf", a)(a)
    return factors, pivots + 1, info


def _solve(a: np.ndarray, b: np.ndarray, *, call: CustomCall) -> np.ndarray:
    transposes = {"N": "NO_TRANSPOSE", "T": "TRANSPOSE", "C": "ADJOINT"}
    return triangular_solve.run(
        a,
        b,
        left_side=_letter(call, "side") == "L",
        lower=_letter(call, "uplo") == "L",
        unit_diagonal=_letter(call, "diag") == "U",
        transpose_a=transposes[_letter(call, "trans_x")],
    )


custom_call_run(*(f"lapack_{letter}trsm_ffi" for letter in _REAL + _COMPLEX))(_solve)


@_lapack("gtsv")
def _(low: np.ndarray, middle: np.ndarray, high: np.ndarray, b: np.ndarray, *, call: CustomCall) -> tuple:
    """A tridiagonal system; the diagonals beside the middle one are as long as it, with one element unused."""
    *_, x, info = routine("gtsv", b)(low[1:], middle, high[:-1], b)
    return low, middle, high, x, info


# -- orthogonal factors


@_lapack("geqrf")
def _factored(a: np.ndarray, *, call: CustomCall) -> tuple:
    factors, taus, _, _ = routine("geqrf", a)(a)
    return factors, taus


def _orthogonal(a: np.ndarray, taus: np.ndarray, *, call: CustomCall) -> tuple:
    name = "ungqr" if np.iscomplexobj(a) else "orgqr"
    return (routine(name, a)(a, taus)[0],)


_lapack("orgqr", _REAL)(_orthogonal)
_lapack("ungqr", _COMPLEX)(_orthogonal)


@_lapack("gehrd")
def _(a: np.ndarray, *, call: CustomCall) -> tuple:
    return routine("gehrd", a)(a, lo=int(call.get("low")) - 1, hi=int(call.get("high")) - 1)


def _tridiagonal(a: np.ndarray, *, call: CustomCall) -> tuple:
    name = "hetrd" if np.iscomplexobj(a) else "sytrd"
    return routine(name, a)(a, lower=_letter(call, "uplo") == "L")


_lapack("sytrd", _REAL)(_tridiagonal)
_lapack("hetrd", _COMPLEX)(_tridiagonal)


# -- singular values and eigenvalues


@_lapack("gesdd")
def _(a: np.ndarray, *, call: CustomCall) -> tuple:
    mode = _letter(call, "mode")
    u, values, vt, info = routine("gesdd", a)(a, compute_uv=mode != "N", full_matrices=mode == "A")
    if mode == "N":
        u, vt = 0, 0
    return a, values, u, vt, info


def _symmetric(a: np.ndarray, *, call: CustomCall) -> tuple:
    name = "heevd" if np.iscomplexobj(a) else "syevd"
    vectors = _letter(call, "mode") == "V"
    values, v, info = routine(name, a)(a, compute_v=vectors, lower=_letter(call, "uplo") == "L")
    return (v if vectors else a), values, info


_lapack("syevd", _REAL)(_symmetric)
_lapack("heevd", _COMPLEX)(_symmetric)


@_lapack("geev", _REAL)
def _(a: np.ndarray, *, call: CustomCall) -> tuple:
    left, right = _letter(call, "compute_left") == "V", _letter(call, "compute_right") == "V"
    real, imaginary, vl, vr, info = routine("geev", a)(a, compute_vl=left, compute_vr=right)
    return real, imaginary, _unpacked(vl, imaginary, left), _unpacked(vr, imaginary, right), info


def _unpacked(packed: np.ndarray, imaginary: np.ndarray, wanted: bool) -> Any:
    """Complex vectors: a pair of conjugate eigenvalues has its real and its imaginary part as two columns."""
    if not wanted:
        return 0
    vectors = packed.astype(np.result_type(packed, np.complex64))
    for i in np.flatnonzero(imaginary > 0):
        vectors[:, i] = packed[:, i] + 1j * packed[:, i + 1]
        vectors[:, i + 1] = vectors[:, i].conj()
    return vectors


@_lapack("geev", _COMPLEX)
def _(a: np.ndarray, *, call: CustomCall) -> tuple:
    left, right = _letter(call, "compute_left") == "V", _letter(call, "compute_right") == "V"
    values, vl, vr, info = routine("geev", a)(a, compute_vl=left, compute_vr=right)
    return values, vl if left else 0, vr if right else 0, info


@_lapack("gees", _REAL)
def _(a: np.ndarray, *, call: CustomCall) -> tuple:
    t, count, real, imaginary, vectors, _, info = routine("gees", a)(lambda *_: 0, a, compute_v=_schur_vectors(call))
    return t, vectors if _schur_vectors(call) else 0, real, imaginary, count, info


@_lapack("gees", _COMPLEX)
def _(a: np.ndarray, *, call: CustomCall) -> tuple:
    t, count, values, vectors, _, info = routine("gees", a)(lambda *_: 0, a, compute_v=_schur_vectors(call))
    return t, vectors if _schur_vectors(call) else 0, values, count, info


def _schur_vectors(call: CustomCall) -> bool:
    return _letter(call, "mode") == "V"


# -- the same routines under the names of other devices


@custom_call_run("Eigh")
def _(a: np.ndarray, *, call: CustomCall) -> Any:
    values, vectors = np.linalg.eigh(a)
    return vectors, values


@custom_call_run("Qr", "QrDecompositionBlock")
def _(a: np.ndarray, *, call: CustomCall) -> Any:
    return _over(_factored, (a,), call, a.ndim - 2)


@custom_call_run("ProductOfElementaryHouseholderReflectors")
def _(a: np.ndarray, taus: np.ndarray, *, call: CustomCall) -> Any:
    return _over(_orthogonal, (a, taus), call, a.ndim - 2)
