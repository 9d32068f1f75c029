"""Samples of the operators of index; some indices lie outside on purpose, some occur several times."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from autoshard.ops import index

from .sample import Sample

Make = Callable[[np.random.Generator], Sequence[np.ndarray]]


def _with_indices(values: tuple[int, ...], indices: tuple[int, ...], low: int, high: int) -> Make:
    """Normal values, and indices from low to high - 1."""
    return lambda rng: [rng.standard_normal(values), rng.integers(low, high, indices)]


def _apart(shape: tuple[int, ...]) -> Make:
    """Numbers that differ by 1 at least, so that a small step changes no order."""
    return lambda rng: [rng.permutation(int(np.prod(shape))).reshape(shape)]


SAMPLES = (
    Sample(index.gather, ("f32[48, 6]", "i32[8, 12]"), make=_with_indices((48, 6), (8, 12), 0, 48)),
    Sample(index.gather, ("f32[6, 24, 4]", "i64[12]"), {"axis": 1}, make=_with_indices((6, 24, 4), (12,), -3, 30)),
    Sample(
        index.gather,
        ("bool[24, 6]", "i32[8]"),
        differentiable=False,
        make=lambda rng: [rng.random((24, 6)) < 0.5, rng.integers(-2, 26, 8)],
    ),
    Sample(index.gather, ("f32[8, 24]", "i32[]"), {"axis": -1}, make=_with_indices((8, 24), (), 0, 24)),
    Sample(
        index.gather_grad,
        ("f32[8, 12, 6]", "i32[8, 12]"),
        {"size": 48},
        make=_with_indices((8, 12, 6), (8, 12), 0, 48),
    ),
    Sample(
        index.gather_grad,
        ("f32[6, 24, 4]", "i32[24]"),
        {"size": 12, "axis": -2},
        make=_with_indices((6, 24, 4), (24,), -2, 14),
    ),
    Sample(
        index.one_hot,
        ("i32[24]",),
        {"depth": 48},
        differentiable=False,
        make=lambda rng: [rng.integers(-1, 49, 24)],
    ),
    Sample(
        index.one_hot,
        ("i32[8, 6]",),
        {"axis": 0, "depth": 12, "on_value": 0.9, "off_value": 0.1, "dtype": "f32"},
        differentiable=False,
        make=lambda rng: [rng.integers(0, 12, (8, 6))],
    ),
    Sample(
        index.gather_d,
        ("f32[24, 12]", "i32[24, 8]"),
        {"dim": 1},
        make=_with_indices((24, 12), (24, 8), 0, 12),
    ),
    Sample(index.gather_d, ("f32[12, 6]", "i32[8, 6]"), {"dim": -2}, make=_with_indices((12, 6), (8, 6), -2, 14)),
    Sample(
        index.gather_d_grad,
        ("f32[24, 8]", "i32[24, 8]"),
        {"size": 12, "dim": 1},
        make=_with_indices((24, 8), (24, 8), -1, 13),
    ),
    Sample(
        index.gather_d_grad,
        ("f32[8, 6, 4]", "i32[8, 6, 4]"),
        {"size": 12, "dim": 0},
        make=_with_indices((8, 6, 4), (8, 6, 4), 0, 12),
    ),
    Sample(index.top_k, ("f32[24, 10]",), {"k": 3}, make=_apart((24, 10))),
    Sample(index.top_k, ("f32[8, 6, 4]",), {"k": 4}, make=_apart((8, 6, 4))),
)
