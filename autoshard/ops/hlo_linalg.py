"""StableHLO's operators on whole matrices or signals: cholesky, triangular_solve, fft. Leading dims are batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autoshard.core.rule import PASS, REPLICATE, Rule
from autoshard.core.tensortype import DType
from autoshard.ops.factors import FactorBuilder
from autoshard.ops.folding import widened
from autoshard.ops.registry import operator
from autoshard.util.errors import ShapeError

Shape = tuple[int, ...]


def _square(a: Shape, what: str) -> None:
    if len(a) < 2 or a[-1] != a[-2]:
        raise ShapeError(f"{what} takes square matrices in the last two dims, not {a}")


# -- cholesky


def _cholesky_rule(a: Shape, **_: object) -> Rule:
    _square(a, "Cholesky")
    return FactorBuilder([len(a)], [len(a)]).pointwise(a, lambda dim: PASS if dim < len(a) - 2 else REPLICATE).build()


@operator("Cholesky", rule=_cholesky_rule)
def cholesky(a, *, lower=True):
    """The triangular l with a = l lᴴ (or u with a = uᴴ u), from that triangle of a alone; NaN if there is none."""
    wide = widened(a)
    factor = _factors(wide if lower else _adjoint(wide))
    return factor if lower else _adjoint(factor)


def _adjoint(a: np.ndarray) -> np.ndarray:
    return np.conj(np.swapaxes(a, -1, -2))


def _factors(a: np.ndarray) -> np.ndarray:
    """Numpy's factors; matrix by matrix once one of them has none."""
    try:
        return np.linalg.cholesky(a)
    except np.linalg.LinAlgError:
        if a.ndim == 2:
            return np.full_like(a, np.nan)
        return np.stack([_factors(one) for one in a])


# -- triangular solve


def _solve_rule(a: Shape, b: Shape, *, left_side: bool, transpose_a: str, **_: object) -> Rule:
    _square(a, "TriangularSolve")
    rank = len(a)
    if a[:-2] != b[:-2] or len(b) != rank or b[-2 if left_side else -1] != a[-1]:
        raise ShapeError(
            f"TriangularSolve: {a} cannot be solved for {b} with a on the {'left' if left_side else 'right'}"
        )
    builder = FactorBuilder([rank, rank], [rank]).pointwise(a[:-2])
    rows, columns = rank - 2, rank - 1
    solved, free = (rows, columns) if left_side else (columns, rows)
    # op(a) meets b in the dim `outer` of a and the result in `inner`.
    outer, inner = (rows, columns) if left_side == (transpose_a == "NO_TRANSPOSE") else (columns, rows)
    known = ({0: outer, 1: solved}, a[outer])
    other = ({1: free, 2: free}, b[free])
    for places, size in (known, other) if left_side else (other, known):
        builder.factor(places, size, REPLICATE)
    return builder.factor({0: inner, 2: solved}, a[inner], REPLICATE).build()


@operator("TriangularSolve", rule=_solve_rule, shape=lambda a, b, **_: (b,), linear=((1,),))
def triangular_solve(a, b, *, left_side=True, lower=True, unit_diagonal=False, transpose_a="NO_TRANSPOSE"):
    """x with op(a) x = b, or x op(a) = b; only one triangle of a is read, and its diagonal taken for 1 if unit.

    `transpose_a` is NO_TRANSPOSE, TRANSPOSE or ADJOINT.
    """
    matrix, right = widened(a), widened(b)
    if transpose_a != "NO_TRANSPOSE":
        matrix, lower = np.swapaxes(matrix, -1, -2), not lower
        matrix = np.conj(matrix) if transpose_a == "ADJOINT" else matrix
    if not left_side:
        matrix, right, lower = np.swapaxes(matrix, -1, -2), np.swapaxes(right, -1, -2), not lower
    solution = _substituted(matrix, right, lower, unit_diagonal)
    return solution if left_side else np.swapaxes(solution, -1, -2)


def _substituted(a: np.ndarray, b: np.ndarray, lower: bool, unit: bool) -> np.ndarray:
    """Row after row, from what is solved already."""
    x = np.zeros_like(b)
    rows = range(a.shape[-1]) if lower else reversed(range(a.shape[-1]))
    with np.errstate(divide="ignore", invalid="ignore"):
        for i in rows:
            done = slice(0, i) if lower else slice(i + 1, None)
            rest = b[..., i, :] - (a[..., i, None, done] @ x[..., done, :])[..., 0, :]
            x[..., i, :] = rest if unit else rest / a[..., i, i, None]
    return x


# -- Fourier transforms

_TRANSFORMS: dict[str, Callable] = {
    "FFT": np.fft.fftn,
    "IFFT": np.fft.ifftn,
    "RFFT": np.fft.rfftn,
    "IRFFT": np.fft.irfftn,
}


def _fft_shape(x: Shape, *, kind: str, length: Sequence[int]) -> tuple[Shape]:
    whole = tuple(length)
    if kind not in _TRANSFORMS or not 1 <= len(whole) <= len(x):
        raise ShapeError(f"Fft of {x}: kind {kind!r} of {', '.join(_TRANSFORMS)}, over its last dims, not {whole}")
    half = (*whole[:-1], whole[-1] // 2 + 1)
    taken, given = (half, whole) if kind == "IRFFT" else (whole, half if kind == "RFFT" else whole)
    if x[-len(whole) :] != taken:
        raise ShapeError(f"Fft of {x}: {kind} of length {whole} takes last dims {taken}")
    return ((*x[: -len(whole)], *given),)


def _fft_rule(x: Shape, *, kind: str, length: Sequence[int]) -> Rule:
    (result,) = _fft_shape(x, kind=kind, length=length)
    builder = FactorBuilder([len(x)], [len(x)]).pointwise(x[: -len(length)])
    for dim in range(len(x) - len(length), len(x)):
        builder.along(dim, x[dim], REPLICATE, blocked=x[dim] != result[dim])
    return builder.build()


def _fft_type(x: DType, *, kind: str, **_: object) -> Any:
    wide = x.name in ("f64", "c128")
    return ("f64" if wide else "f32") if kind == "IRFFT" else ("c128" if wide else "c64")


@operator("Fft", rule=_fft_rule, shape=_fft_shape, dtype=_fft_type, linear=((0,),))
def fft(x, *, kind, length):
    """The discrete Fourier transform over the last dims: FFT, IFFT, RFFT (of reals) or IRFFT (to reals)."""
    axes = tuple(range(x.ndim - len(length), x.ndim))
    return _TRANSFORMS[kind](x, s=tuple(length), axes=axes)
