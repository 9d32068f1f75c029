"""Orthogonal factors of matrices: QR, singular values, eigenvalues, Householder vectors, with their gradients.

Leading dims are batches, and only these can be split. Formulas of the gradients: Townsend (2016), Differentiating the
singular value decomposition; Walter and Lehmann (2012), Algorithmic differentiation of linear algebra functions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoshard.ops.hlo_lapack import routine
from autoshard.ops.linalg import each, flipped, matrix, of_finite, real_matrices, square, times, wide
from autoshard.ops.pointwise import mul
from autoshard.ops.registry import operator
from autoshard.ops.shape import expand_dims
from autoshard.ops.source import zeros_like
from autoshard.util.errors import ShapeError

Shape = Sequence[int]


# -- QR


def _qr_rule(a: Shape, *, full: bool) -> tuple[str, dict[str, int]]:
    rows, _, least = matrix(a, "Qr")
    return "... [m] [n] -> ... [m] [p], ... [p] [n]", {"p": rows if full else least}


@operator(
    "Qr", rule=_qr_rule, dtype=lambda a, full: (real_matrices("Qr")(a),) * 2, flops=lambda a, **_: 4 * min(a[-2:])
)
def qr(a, *, full=False):
    """Orthogonal q and upper triangular r with a = q r; `full` makes q square."""
    return tuple(np.linalg.qr(a, mode="complete" if full else "reduced"))


@qr.gradient
def _(g, y, a, full):
    if full and a.shape[-2] > a.shape[-1]:
        raise ShapeError("Qr has no gradient for a full q of more rows than columns, which is not unique")
    return qr_grad(*(zeros_like(of) if one is None else one for one, of in zip(g, y, strict=True)), *y)


@operator(
    "QrGrad",
    rule="... [m] [p], ... [p] [n], ... [m] [p], ... [p] [n] -> ... [m] [n]",
    dtype=lambda gq, *_: gq,
    linear=((0, 1),),
    flops=20,
)
def qr_grad(gq, gr, q, r):
    """Gradient of Qr for what it factors."""
    gq, gr, q, r = map(wide, (gq, gr, q, r))
    least = q.shape[-1]
    first, beyond = r[..., :least], r[..., least:]
    gq = gq + q @ beyond @ flipped(gr[..., least:])
    met = gr[..., :least] @ flipped(first) - flipped(q) @ gq
    low = np.triu(met)
    both = low + flipped(low)
    both[..., range(least), range(least)] *= 0.5
    found = flipped(each(np.linalg.solve, first, flipped(gq + q @ both)))
    return np.concatenate((found, q @ gr[..., least:]), axis=-1)


# -- singular values


def _svd_rule(a: Shape, *, full: bool) -> tuple[str, dict[str, int]]:
    rows, columns, least = matrix(a, "Svd")
    sizes = {"k": least, "p": rows if full else least, "q": columns if full else least}
    return "... [m] [n] -> ... [m] [p], ... [k], ... [q] [n]", sizes


@operator(
    "Svd", rule=_svd_rule, dtype=lambda a, full: (real_matrices("Svd")(a),) * 3, flops=lambda a, **_: 20 * min(a[-2:])
)
def svd(a, *, full=False):
    """u, the singular values from the largest on, and vᵀ with a = u values vᵀ; `full` makes u and v square."""
    return of_finite(lambda finite: np.linalg.svd(finite, full_matrices=full), a)


@svd.gradient
def _(g, y, a, full):
    u, values, vt = y
    gu, gs, gvt = g
    if gu is None and gvt is None:
        return None if gs is None else svd_values_grad(gs, u, vt)
    return svd_grad(*(zeros_like(of) if one is None else one for one, of in zip(g, y, strict=True)), *y)


@operator(
    "SvdValuesGrad",
    rule="... [k], ... [m] [p], ... [q] [n] -> ... [m] [n]",
    dtype=lambda g, *_: g,
    linear=((0,),),
    flops=2,
)
def svd_values_grad(g, u, vt):
    """Gradient of the singular values alone."""
    least = g.shape[-1]
    return (u[..., :least] * g[..., None, :]) @ vt[..., :least, :]


@operator(
    "SvdGrad",
    rule="... [m] [p], ... [k], ... [q] [n], ... [m] [p], ... [k], ... [q] [n] -> ... [m] [n]",
    dtype=lambda gu, *_: gu,
    linear=((0, 1, 2),),
    flops=20,
)
def svd_grad(gu, gs, gvt, u, values, vt):
    """Gradient of Svd; vectors beyond the singular values are not unique, and have none."""
    gu, gs, gvt, u, values, vt = map(wide, (gu, gs, gvt, u, values, vt))
    least = values.shape[-1]
    gu, u, gv, v = gu[..., :least], u[..., :least], flipped(gvt[..., :least, :]), flipped(vt[..., :least, :])
    squares = values**2
    apart = squares[..., None, :] - squares[..., None]
    apart[..., range(least), range(least)] = 1
    row, column = values[..., None, :], values[..., None]
    with np.errstate(divide="ignore", invalid="ignore"):
        inner = _skew(flipped(u) @ gu) / apart * row + column * (_skew(flipped(v) @ gv) / apart)
        inner[..., range(least), range(least)] += gs
        found = u @ inner @ flipped(v)
        if u.shape[-2] > least:
            found += (gu - u @ (flipped(u) @ gu)) / row @ flipped(v)
        if v.shape[-2] > least:
            found += u @ flipped((gv - v @ (flipped(v) @ gv)) / row)
    return found


def _skew(x: np.ndarray) -> np.ndarray:
    return x - flipped(x)


# -- eigenvalues of symmetric matrices


def _eigh_rule(a: Shape, *, lower: bool) -> str:
    square(a, "SelfAdjointEig")
    return "... [m] [n] -> ... [n], ... [m] [n]"


@operator(
    "SelfAdjointEig",
    rule=_eigh_rule,
    dtype=lambda a, lower: (real_matrices("SelfAdjointEig")(a),) * 2,
    flops=lambda a, **_: 9 * a[-1],
)
def self_adjoint_eig(a, *, lower=True):
    """Eigenvalues of symmetric matrices in rising order, and the vectors as columns; one triangle of a is read."""
    return of_finite(lambda finite: np.linalg.eigh(finite, UPLO="L" if lower else "U"), a)


@self_adjoint_eig.gradient
def _(g, y, a, lower):
    values, vectors = y
    if g[1] is None:
        scaled = None if g[0] is None else mul(vectors, expand_dims(g[0], axis=-2))
        return None if scaled is None else times(scaled, vectors, transpose_b=True)
    return eig_grad(zeros_like(values) if g[0] is None else g[0], g[1], values, vectors)


@operator(
    "SelfAdjointEigGrad",
    rule="... [n], ... [m] [n], ... [n], ... [m] [n] -> ... [m] [n]",
    dtype=lambda g, *_: g,
    linear=((0, 1),),
    flops=8,
)
def eig_grad(g_values, g_vectors, values, vectors):
    """Gradient of SelfAdjointEig."""
    g_values, g_vectors, values, vectors = map(wide, (g_values, g_vectors, values, vectors))
    size = values.shape[-1]
    apart = values[..., None, :] - values[..., None]
    apart[..., range(size), range(size)] = 1
    with np.errstate(divide="ignore", invalid="ignore"):
        inner = _skew(flipped(vectors) @ g_vectors) / (2 * apart)
    inner[..., range(size), range(size)] = g_values
    return vectors @ inner @ flipped(vectors)


# -- Householder vectors


def _vectors_rule(a: Shape) -> tuple[str, dict[str, int]]:
    _, _, least = matrix(a, "Geqrf")
    return "... [m] [n] -> ... [m] [n], ... [k]", {"k": least}


@operator(
    "Geqrf", rule=_vectors_rule, dtype=lambda a: (real_matrices("Geqrf")(a),) * 2, flops=lambda a: 4 * min(a[-2:])
)
def geqrf(a):
    """Householder vectors below the diagonal of r, and their factors (LAPACK's geqrf)."""
    factors, taus = np.empty_like(a), np.empty((*a.shape[:-2], min(a.shape[-2:])), a.dtype)
    for position in np.ndindex(a.shape[:-2]):
        if a.size:
            factors[position], taus[position], _, _ = routine("geqrf", a)(a[position])
    return factors, taus


def _product_rule(a: Shape, taus: Shape) -> tuple[str, dict[str, int]]:
    rows, columns, _ = matrix(a, "HouseholderProduct")
    if rows < columns or taus[-1] > columns:
        raise ShapeError(f"HouseholderProduct of {tuple(a)} and {tuple(taus)}: there are more vectors than rows")
    return "... [m] [n], ... [k] -> ... [m] [n]", {}


@operator(
    "HouseholderProduct",
    rule=_product_rule,
    dtype=real_matrices("HouseholderProduct"),
    flops=lambda a, taus: 4 * taus[-1],
)
def householder_product(a, taus):
    """The first columns of the product of 1 - tau v vᵀ; v is a column of a below a one on its diagonal."""
    return _products(wide(a), wide(taus))[0]


def _products(a: np.ndarray, taus: np.ndarray) -> list[np.ndarray]:
    """The product of all reflections, of those from the second on, ..., of none."""
    found = [np.broadcast_to(np.eye(*a.shape[-2:]), a.shape)]
    for i in reversed(range(taus.shape[-1])):
        found.append(_reflected(_column(a, i), taus[..., i], found[-1]))
    return found[::-1]


def _column(a: np.ndarray, i: int) -> np.ndarray:
    v = a[..., i, None].copy()
    v[..., :i, :], v[..., i, :] = 0, 1
    return v


def _reflected(v: np.ndarray, tau: np.ndarray, x: np.ndarray) -> np.ndarray:
    return x - tau[..., None, None] * v @ (flipped(v) @ x)


@householder_product.gradient
def _(g, y, a, taus):
    return householder_grad(g, a, taus)


@operator(
    "HouseholderProductGrad",
    rule="... [m] [n], ... [m] [n], ... [k] -> ... [m] [n], ... [k]",
    dtype=lambda g, *_: (g, g),
    linear=((0,),),
    flops=lambda g, a, taus: 12 * taus[-1],
)
def householder_grad(g, a, taus):
    """Gradients of HouseholderProduct for the vectors and for their factors, one reflection after the other."""
    g, a, taus = map(wide, (g, a, taus))
    products, g_a, g_taus = _products(a, taus), np.zeros(a.shape), np.zeros(taus.shape)
    for i in range(taus.shape[-1]):
        v, rest = _column(a, i), products[i + 1]
        down, met = flipped(g) @ v, flipped(rest) @ v
        g_taus[..., i] = -(down * met).sum((-1, -2))
        column = -taus[..., i, None, None] * (g @ met + rest @ down)
        g_a[..., i + 1 :, i] = column[..., i + 1 :, 0]
        g = _reflected(v, taus[..., i], g)
    return g_a, g_taus
