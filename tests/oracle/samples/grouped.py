"""Samples of grouped matrix products; one group is empty, and the last rows belong to none."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autoshard.ops import grouped

from .sample import Sample

ENDS = np.array([3, 3, 10, 11, 17, 20, 21, 22])


def _with_ends(*shapes: tuple[int, ...]) -> Callable[[np.random.Generator], list[np.ndarray]]:
    return lambda rng: [*(rng.standard_normal(shape) for shape in shapes), ENDS]


SAMPLES = (
    Sample(grouped.grouped_matmul, ("f32[24, 6]", "f32[8, 6, 16]", "i32[8]"), make=_with_ends((24, 6), (8, 6, 16))),
    Sample(
        grouped.grouped_matmul,
        ("f32[24, 6]", "f32[8, 16, 6]", "i64[8]"),
        {"transpose_b": True},
        make=_with_ends((24, 6), (8, 16, 6)),
    ),
    Sample(grouped.grouped_outer, ("f32[24, 6]", "f32[24, 16]", "i32[8]"), make=_with_ends((24, 6), (24, 16))),
)
