"""Samples of the operators of order; indices occur several times, and some lie outside."""

from __future__ import annotations

import numpy as np

from autoshard.ops import order

from .sample import Sample


def _indices(shape: tuple[int, ...], low: int, high: int):
    return lambda rng: [rng.integers(low, high, shape)]


def _ties(shape: tuple[int, ...]):
    """Few values, so that many are equal."""
    return lambda rng: [rng.integers(0, 5, shape).astype(np.float32)]


SAMPLES = (
    Sample(order.arg_sort, ("f32[8, 24]",), {"axis": 1}, False, make=_ties((8, 24))),
    Sample(order.arg_sort, ("f32[24, 6]",), {"axis": 0, "descending": True}, False, make=_ties((24, 6))),
    Sample(order.last_along, ("i32[24]",), {"size": 48, "dim": 0}, False, make=_indices((24,), -2, 50)),
    Sample(order.last_along, ("i64[6, 24, 4]",), {"size": 12, "dim": 1}, False, make=_indices((6, 24, 4), -1, 13)),
)
