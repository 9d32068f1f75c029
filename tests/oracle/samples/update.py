"""Samples of optimizer updates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoshard.ops import update as o

from .sample import Sample

_RATE = {"learning_rate": 0.1}


def _states(rate: bool):
    """Parameter, first and second moment (the latter not negative), gradient, step, and a rate."""

    def make(rng: np.random.Generator) -> Sequence[np.ndarray]:
        tensors = rng.normal(size=(4, 24, 6))
        tensors[2] = np.abs(tensors[2])
        return [*tensors, np.array(3), *([np.array(0.01)] if rate else [])]

    return make


_ADAM = ("f32[24, 6]", "f32[24, 6]", "f32[24, 6]", "f32[24, 6]", "i32[]")

SAMPLES = (
    Sample(o.sgd, ("f32[24, 6]",) * 2, _RATE, False),
    Sample(o.sgd, ("f32[8, 6, 12]",) * 2, {**_RATE, "weight_decay": 0.01}, False),
    Sample(o.sgd_rate, ("f32[24, 6]", "f32[24, 6]", "f32[]"), differentiable=False),
    Sample(o.apply_momentum, ("f32[24, 6]",) * 3, {**_RATE, "weight_decay": 0.01}, False),
    Sample(o.apply_momentum, ("f32[8, 6, 12]",) * 3, {**_RATE, "nesterov": True}, False),
    Sample(o.apply_momentum_rate, (*("f32[24, 6]",) * 3, "f32[]"), {"momentum": 0.8}, False),
    Sample(o.adam, _ADAM, {"weight_decay": 0.01}, False, make=_states(rate=False)),
    Sample(o.adam, _ADAM, {"weight_decay": 0.01, "decoupled": True}, False, make=_states(rate=False)),
    Sample(o.adam_rate, (*_ADAM, "f32[]"), {"beta1": 0.8}, False, make=_states(rate=True)),
)
