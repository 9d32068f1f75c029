"""Samples of tokens to experts and back: one expert is chosen by nobody, one token chooses an expert twice."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autoshard.ops import experts

from .sample import Sample

CHOSEN = np.array([[0, 3], [3, 6], [1, 0], [5, 5], [7, 1], [2, 3], [6, 0], [3, 1], [0, 2], [7, 6], [5, 3], [2, 7]])
OWN = {"blocks": 12, "room": 1}
BLOCKS = {"blocks": 4, "room": 3}
OF_TWO = {"blocks": 2, "room": 3}
"""The same of two samples with six tokens each."""


def _among(
    place: int, *shapes: tuple[int, ...], lead: tuple[int, ...] = ()
) -> Callable[[np.random.Generator], list[np.ndarray]]:
    def make(rng: np.random.Generator) -> list[np.ndarray]:
        made = [rng.standard_normal(shape) for shape in shapes]
        return [*made[:place], np.reshape(CHOSEN, (*lead, 12 // lead[0], 2) if lead else (12, 2)), *made[place:]]

    return make


SAMPLES = (
    Sample(experts.dispatch_tokens, ("f32[12, 6]", "i32[12, 2]", "f32[12, 2]"), {"experts": 8, **OWN},
           make=_among(1, (12, 6), (12, 2))),
    Sample(experts.dispatch_tokens, ("f32[12, 6]", "i32[12, 2]", "f32[12, 2]"), {"experts": 8, **BLOCKS},
           make=_among(1, (12, 6), (12, 2))),
    Sample(experts.combine_tokens, ("f32[8, 12, 6]", "i32[12, 2]", "f32[12, 2]"), OWN,
           make=_among(1, (8, 12, 6), (12, 2))),
    Sample(experts.combine_tokens, ("f32[8, 12, 6]", "i64[12, 2]", "f32[12, 2]"), BLOCKS,
           make=_among(1, (8, 12, 6), (12, 2))),
    Sample(experts.gate_products, ("f32[12, 6]", "f32[8, 12, 6]", "i32[12, 2]"), OWN,
           make=_among(2, (12, 6), (8, 12, 6))),
    Sample(experts.gate_products, ("f32[12, 6]", "f32[8, 12, 6]", "i32[12, 2]"), BLOCKS,
           make=_among(2, (12, 6), (8, 12, 6))),
    Sample(experts.dispatch_tokens, ("f32[2, 6, 5]", "i32[2, 6, 2]", "f32[2, 6, 2]"), {"experts": 8, **OF_TWO},
           make=_among(1, (2, 6, 5), (2, 6, 2), lead=(2,))),
    Sample(experts.combine_tokens, ("f32[2, 8, 6, 5]", "i32[2, 6, 2]", "f32[2, 6, 2]"), OF_TWO,
           make=_among(1, (2, 8, 6, 5), (2, 6, 2), lead=(2,))),
    Sample(experts.gate_products, ("f32[2, 6, 5]", "f32[2, 8, 6, 5]", "i32[2, 6, 2]"), OF_TWO,
           make=_among(2, (2, 6, 5), (2, 8, 6, 5), lead=(2,))),
)  # fmt: skip
