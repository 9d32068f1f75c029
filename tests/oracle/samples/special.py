"""Samples of special functions, of cumulative operators, and of what puts elements together by index."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from autoshard.ops import cumulative, index_fold, index_last, special
from autoshard.ops.hlo_chlo import polygamma
from autoshard.ops.random import uniform_real

from .sample import Sample

Make = Callable[[np.random.Generator], Sequence[np.ndarray]]


def _between(low: float, high: float, *shapes: tuple[int, ...]) -> Make:
    return lambda rng: [rng.uniform(low, high, shape) for shape in shapes]


def _with_indices(values: tuple[int, ...], indices: tuple[int, ...], low: int, high: int) -> Make:
    """Numbers that differ, and indices from low to high - 1."""
    size = int(np.prod(values))
    return lambda rng: [rng.permutation(size).reshape(values) / size + 0.5, rng.integers(low, high, indices)]


def _last(values: tuple[int, ...], index: tuple[int, ...], places: tuple[int, ...]) -> Make:
    return lambda rng: [
        rng.standard_normal(values), rng.integers(-1, index[0], places), rng.integers(0, places[0], index)
    ]  # fmt: skip


def _shares(rng: np.random.Generator) -> list[np.ndarray]:
    x, index = rng.integers(0, 4, (8, 24)).astype(np.float32), rng.integers(0, 6, (8, 24))
    y = index_fold.index_reduce.run(x, index, size=6, dim=1)
    return [rng.standard_normal((8, 6)), y, x, index]


def _few(rng: np.random.Generator) -> list[np.ndarray]:
    """Numbers many of which are equal."""
    return [rng.integers(0, 4, (8, 24))]


_SPECIAL = [
    special.bessel_i0, special.bessel_i0e, special.bessel_i1, special.erfcx, special.log_ndtr,
]  # fmt: skip
_PLAIN = [
    special.bessel_j0, special.bessel_j1, special.bessel_y0, special.bessel_y1, special.bessel_k0, special.bessel_k0e,
    special.bessel_k1, special.bessel_k1e, special.spherical_bessel_j0, special.airy_ai,
]  # fmt: skip
_EIGHT = _between(0.2, 3, (8, 24))
_BY = ("i64[8, 24]",)

SAMPLES = (
    *(Sample(op, ("f32[8, 24]",)) for op in _SPECIAL),
    *(Sample(op, ("f32[8, 24]",), {}, False, make=_EIGHT) for op in _PLAIN),
    Sample(special.ndtri, ("f32[8, 24]",), make=_between(0.1, 0.9, (8, 24))),
    Sample(special.igamma, ("f32[8, 24]", "f32[24]"), {}, False, make=_between(0.2, 3, (8, 24), (24,))),
    Sample(special.igammac, ("f32[8, 24]", "f32[24]"), {}, False, make=_between(0.2, 3, (8, 24), (24,))),
    Sample(polygamma, ("f32[8, 24]", "f32[8, 24]"), {}, make=lambda rng: [np.ones((8, 24)), *_EIGHT(rng)]),
    Sample(special.frexp, ("f32[8, 24]",)),
    Sample(special.frexp_grad, ("f32[8, 24]", "i32[8, 24]"), {}, False),
    Sample(cumulative.cum_prod, ("f32[8, 24]",), {"axis": 0}),
    Sample(cumulative.cum_prod_grad, ("f32[8, 6]", "f32[8, 6]"), {"axis": 1}, False),
    Sample(cumulative.cum_extreme, ("f32[8, 24]",), {"axis": 1}, False),
    Sample(cumulative.cum_extreme, ("f32[6, 24]",), {"axis": 0, "largest": False}, False),
    Sample(cumulative.log_cum_sum_exp, ("f32[8, 24]",), {"axis": 1}),
    Sample(cumulative.log_cum_sum_exp_grad, ("f32[8, 6]",) * 3, {"axis": 1}, False),
    Sample(cumulative.mode_position, ("f32[8, 24]",), {"axis": 1}, False, make=_few),
    *(
        Sample(index_fold.index_reduce, ("f32[8, 24]", *_BY), {"size": 6, "dim": 1, "by": by}, make=make)
        for by in ("max", "min", "prod")
        for make in (_with_indices((8, 24), (8, 24), -1, 7),)
    ),
    Sample(index_fold.others_product, ("f32[8, 24]", *_BY), {"dim": 1}, False),
    Sample(index_fold.extreme_shares, ("f32[8, 6]",) * 2 + ("f32[8, 24]", *_BY), {"dim": 1}, False, make=_shares),
    Sample(
        index_last.last_rows, ("f32[24, 6]", "i32[12]", "i64[24]"), {}, False, make=_last((24, 6), (24,), (12,))
    ),
    Sample(
        index_last.last_elements,
        ("f32[24, 6]", "i32[12, 6]", "i64[24, 6]"),
        {"dim": 0},
        False,
        make=_last((24, 6), (24, 6), (12, 6)),
    ),
    Sample(uniform_real, ("i32[]",), {"shape": (8, 24), "seed": 3}, False),
)  # fmt: skip
