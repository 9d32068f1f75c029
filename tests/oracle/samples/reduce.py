"""Samples of reductions, of what undoes them, of positions and of cumulative sums."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoshard.ops import reduce as r

from .sample import Sample


def _near_one(rng: np.random.Generator) -> Sequence[np.ndarray]:
    """Numbers whose product neither vanishes nor overflows."""
    return [rng.uniform(0.8, 1.25, (8, 6, 12))]


def _with_ties(rng: np.random.Generator) -> Sequence[np.ndarray]:
    x = rng.integers(0, 3, (24, 6)).astype(np.float32)
    return [rng.normal(size=(24,)), x.max(1), np.count_nonzero(x == x.max(1, keepdims=True), 1), x]


_KEPT_LEAST = {"keep_dims": True, "largest": False}

SAMPLES = (
    Sample(r.reduce_sum, ("f32[24, 48]",), {"axis": 0}),
    Sample(r.reduce_sum, ("f32[8, 6, 12]",), {"axis": (0, -1), "keep_dims": True}),
    Sample(r.reduce_sum, ("f32[24, 8]",)),
    Sample(r.reduce_sum, ("bool[24, 6]",), {"axis": 1}, differentiable=False),
    Sample(r.reduce_mean, ("f32[24, 48]",), {"axis": 1}),
    Sample(r.reduce_mean, ("f32[8, 6, 12]",), {"axis": (0, 1), "keep_dims": True}),
    Sample(r.reduce_mean, ("f32[24, 8]",)),
    Sample(r.unbiased, ("f32[24, 6]",), {"count": 12}),
    Sample(r.unbiased, ("f64[8, 6]",), {"count": 7, "correction": 2}),
    Sample(r.reduce_max, ("f32[24, 48]",), {"axis": 1}),
    Sample(r.reduce_max, ("f32[8, 6, 12]",), {"axis": (0, 2), "keep_dims": True}),
    Sample(r.reduce_min, ("f32[24, 8]",)),
    Sample(r.reduce_min, ("i32[8, 6, 12]",), {"axis": -2}, differentiable=False),
    Sample(r.reduce_prod, ("f32[8, 6, 12]",), {"axis": (0, 2)}, make=_near_one),
    Sample(r.reduce_prod, ("f32[8, 6, 12]",), {"axis": 1, "keep_dims": True}, make=_near_one),
    Sample(r.reduce_all, ("bool[24, 6]",), {"axis": 0}, differentiable=False),
    Sample(r.reduce_any, ("bool[24, 6]",), {"axis": 1, "keep_dims": True}, differentiable=False),
    Sample(r.arg_max, ("f32[24, 48]",), differentiable=False),
    Sample(r.arg_max, ("i32[8, 6, 12]",), {"axis": 1, "keep_dims": True}, differentiable=False),
    Sample(r.arg_min, ("f32[24, 48]",), {"axis": 0}, differentiable=False),
    Sample(r.cum_sum, ("f32[24, 12]",), {"axis": 1}),
    Sample(r.cum_sum, ("f32[8, 6, 12]",), {"axis": 0, "exclusive": True}),
    Sample(r.cum_sum, ("f32[8, 6, 12]",), {"axis": 1, "reverse": True, "exclusive": True}),
    Sample(r.spread, ("f32[24]",), {"shape": (8, 24, 6), "axis": (0, 2)}),
    Sample(r.spread, ("f32[24, 1]",), {"shape": (24, 8), "axis": 1, "keep_dims": True, "scale": 0.125}),
    Sample(r.count_equal, ("i32[24, 6]", "i32[24]"), {"axis": 1}, differentiable=False),
    Sample(
        r.extreme_grad, ("f32[24]", "f32[24, 6]"), {"axis": 1}, make=lambda rng: _with_ties(rng)[::3], constant=(1,)
    ),
    Sample(
        r.extreme_grad,
        ("f32[1, 8, 1]", "f32[6, 8, 4]"),
        {"axis": (0, 2), "keep_dims": True, "largest": False},
        constant=(1,),
    ),
    Sample(r.extreme_share, ("f32[24]", "f32[24]", "f32[24]", "f32[24, 6]"), {"axis": 1}, False, make=_with_ties),
    Sample(r.reduce_prod_grad, ("f32[24]", "f32[24, 6]"), {"axis": 1}, differentiable=False),
    Sample(r.reduce_prod_grad, ("f32[1, 8, 1]", "f32[6, 8, 4]"), {"axis": (0, 2), "keep_dims": True}, False),
)
