"""Samples of operators on whole matrices, split over batches; matrices are far from having no inverse."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from autoshard.ops import hlo_linalg, linalg
from autoshard.ops import linalg_orthogonal as orthogonal
from autoshard.ops import linalg_triangular as triangular

from .sample import Sample

Make = Callable[[np.random.Generator], Sequence[np.ndarray]]


def _regular(*shapes: tuple[int, ...]) -> Make:
    """Matrices near one, the first of them; others are normal numbers."""

    def make(rng: np.random.Generator) -> list[np.ndarray]:
        first, *rest = shapes
        near = np.eye(*first[-2:]) * 3 + 0.4 * rng.standard_normal(first)
        return [near.astype(np.float32), *(rng.standard_normal(shape).astype(np.float32) for shape in rest)]

    return make


def _after(shape: tuple[int, ...], made: Callable[..., Sequence[np.ndarray]], *before: tuple[int, ...]) -> Make:
    """Gradients of the shapes `before`, then what `made` makes of regular matrices."""

    def make(rng: np.random.Generator) -> list[np.ndarray]:
        (a,) = _regular(shape)(rng)
        return [*(rng.standard_normal(one).astype(np.float32) for one in before), *made(a)]

    return make


def _symmetric(shape: tuple[int, ...]) -> Make:
    def make(rng: np.random.Generator) -> list[np.ndarray]:
        a = rng.standard_normal(shape)
        return [(a + np.swapaxes(a, -1, -2) + 3 * np.diag(np.arange(shape[-1]))).astype(np.float32)]

    return make


def _definite(shape: tuple[int, ...]) -> Make:
    def make(rng: np.random.Generator) -> list[np.ndarray]:
        a = rng.standard_normal(shape)
        return [(a @ np.swapaxes(a, -1, -2) + 3 * np.eye(shape[-1])).astype(np.float32)]

    return make


def _reflections(rng: np.random.Generator) -> list[np.ndarray]:
    return [0.3 * rng.standard_normal((24, 5, 3)), rng.standard_normal((24, 3))]


def _factor(rng: np.random.Generator) -> list[np.ndarray]:
    (a,) = _definite((24, 5, 5))(rng)
    return [rng.standard_normal((24, 5, 8)), np.linalg.cholesky(a)]


def _pseudo(a: np.ndarray) -> list[np.ndarray]:
    return [a, np.full(a.shape[:-2], 1e-6, np.float32)]


A, TALL, BROAD = (8, 6, 5, 5), (24, 6, 4), (24, 4, 6)
SAMPLES = (
    Sample(linalg.matrix_inverse, ("f32[8, 6, 5, 5]",), make=_regular(A)),
    Sample(linalg.matrix_solve, ("f32[24, 5, 5]", "f32[24, 5, 8]"), make=_regular((24, 5, 5), (24, 5, 8))),
    Sample(linalg.matrix_determinant, ("f32[8, 6, 5, 5]",), make=_regular(A)),
    Sample(linalg.matrix_cofactors, ("f32[24, 5, 5]",), {}, False, make=_regular((24, 5, 5))),
    Sample(linalg.log_matrix_determinant, ("f32[24, 5, 5]",), make=_regular((24, 5, 5))),
    Sample(linalg.matrix_exp, ("f32[24, 3, 3]",), make=_regular((24, 3, 3))),
    Sample(linalg.matrix_exp_grad, ("f32[24, 3, 3]", "f32[24, 3, 3]"), {}, False),
    Sample(linalg.pseudo_inverse, ("f32[24, 6, 4]", "f32[24]"), {}, False, make=_after(TALL, _pseudo)),
    Sample(linalg.pseudo_inverse, ("f32[24, 4, 6]", "f32[24]"), {}, False, make=_after(BROAD, _pseudo)),
    Sample(hlo_linalg.cholesky, ("f32[24, 5, 5]",), {"lower": False}, make=_definite((24, 5, 5))),
    Sample(triangular.cholesky_info, ("f32[24, 5, 5]",), {}, False, make=_symmetric((24, 5, 5))),
    Sample(
        triangular.cholesky_grad, ("f32[24, 5, 5]", "f32[24, 5, 5]"), {}, False, make=_regular((24, 5, 5), (24, 5, 5))
    ),
    Sample(triangular.cholesky_solve, ("f32[24, 5, 8]", "f32[24, 5, 5]"), make=_factor),
    Sample(triangular.lu, ("f32[24, 5, 5]",), make=_regular((24, 5, 5))),
    Sample(triangular.lu, ("f32[24, 6, 4]",), make=_regular(TALL)),
    Sample(triangular.lu, ("f32[24, 4, 6]",), make=_regular(BROAD)),
    Sample(
        triangular.lu_grad,
        ("f32[24, 5, 5]", "f32[24, 5, 5]", "i32[24, 5]"),
        {},
        False,
        make=_after((24, 5, 5), lambda a: triangular.lu.run(a)[:2], (24, 5, 5)),
    ),
    Sample(triangular.row_order, ("i32[24, 3]",), {"size": 5}, False, make=lambda rng: [rng.integers(2, 5, (24, 3))]),
    Sample(orthogonal.qr, ("f32[24, 6, 4]",), make=_regular(TALL)),
    Sample(orthogonal.qr, ("f32[24, 4, 6]",), {"full": True}, make=_regular(BROAD)),
    Sample(
        orthogonal.qr_grad,
        ("f32[24, 6, 4]", "f32[24, 4, 4]", "f32[24, 6, 4]", "f32[24, 4, 4]"),
        {},
        False,
        make=_after(TALL, lambda a: orthogonal.qr.run(a), (24, 6, 4), (24, 4, 4)),
    ),
    Sample(orthogonal.svd, ("f32[24, 6, 4]",), make=_regular(TALL)),
    Sample(
        orthogonal.svd_values_grad,
        ("f32[24, 4]", "f32[24, 6, 4]", "f32[24, 4, 4]"),
        {},
        False,
        make=_after(TALL, lambda a: orthogonal.svd.run(a)[::2], (24, 4)),
    ),
    Sample(
        orthogonal.svd_grad,
        ("f32[24, 6, 4]", "f32[24, 4]", "f32[24, 4, 4]") * 2,
        {},
        False,
        make=_after(TALL, lambda a: orthogonal.svd.run(a), (24, 6, 4), (24, 4), (24, 4, 4)),
    ),
    Sample(orthogonal.self_adjoint_eig, ("f32[24, 5, 5]",), make=_symmetric((24, 5, 5))),
    Sample(
        orthogonal.eig_grad,
        ("f32[24, 5]", "f32[24, 5, 5]") * 2,
        {},
        False,
        make=_after((24, 5, 5), lambda a: np.linalg.eigh(a), (24, 5), (24, 5, 5)),
    ),
    Sample(orthogonal.geqrf, ("f32[24, 6, 4]",), {}, False, make=_regular(TALL)),
    Sample(orthogonal.householder_product, ("f32[24, 5, 3]", "f32[24, 3]"), make=_reflections),
    Sample(
        orthogonal.householder_grad,
        ("f32[24, 5, 3]", "f32[24, 5, 3]", "f32[24, 3]"),
        {},
        False,
        make=lambda rng: [rng.standard_normal((24, 5, 3)), *_reflections(rng)],
    ),
)
