"""Samples of losses and their gradients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoshard.ops import ctc
from autoshard.ops import loss as o

from .sample import Sample


def _probabilities(rng: np.random.Generator) -> Sequence[np.ndarray]:
    return [rng.normal(size=(24, 12)), rng.dirichlet(np.ones(12), 24)]


def _classes(*rows: int, gradient: bool = False):
    """Logits over 12 classes and class numbers for these rows; before them a gradient per row."""

    def make(rng: np.random.Generator) -> Sequence[np.ndarray]:
        made = [rng.normal(size=(*rows, 12)), rng.integers(0, 12, rows)]
        return [rng.normal(size=rows), *made] if gradient else made

    return make


def _speech(gradient: bool = False):
    """Sequences of up to 6 frames over 5 classes, with labels that follow themselves, none, and more than fit."""

    def make(rng: np.random.Generator) -> Sequence[np.ndarray]:
        labels, counts = rng.integers(1, 5, (8, 3)), np.array([3, 2, 1, 0, 3, 2, 1, 3])
        labels[0, 1] = labels[0, 0]
        made = [rng.normal(size=(6, 8, 5)) - 2, labels, np.array([6, 5, 3, 4, 6, 2, 1, 2 if gradient else 4]), counts]
        return [rng.normal(size=8), *made] if gradient else made

    return make


_SPEECH = ("f32[6, 8, 5]", "i64[8, 3]", "i64[8]", "i32[8]")
_PAIR = ("f32[24, 6]", "f32[24, 6]")

SAMPLES = (
    Sample(o.softmax_cross_entropy_with_logits, ("f32[24, 12]",) * 2, make=_probabilities, constant=(1,)),
    Sample(o.sparse_softmax_cross_entropy_with_logits, ("f32[24, 12]", "i32[24]"), make=_classes(24)),
    Sample(o.sparse_softmax_cross_entropy_with_logits, ("f32[8, 6, 12]", "i64[8, 6]"), make=_classes(8, 6)),
    Sample(
        o.sparse_softmax_cross_entropy_grad,
        ("f32[8, 6]", "f32[8, 6, 12]", "i32[8, 6]"),
        make=_classes(8, 6, gradient=True),
    ),
    Sample(
        o.class_numbers,
        ("i32[8, 6]",),
        {"classes": 12},
        differentiable=False,
        make=lambda rng: [rng.integers(0, 12, (8, 6))],
    ),
    Sample(ctc.ctc_loss, _SPEECH, make=_speech()),
    Sample(ctc.ctc_loss_grad, ("f32[8]", *_SPEECH), {"zero_infinity": True}, False, make=_speech(gradient=True)),
    Sample(o.mse_loss, _PAIR),
    Sample(o.mse_loss, ("f32[8, 6, 4]",) * 2, {"reduction": "sum"}),
    Sample(o.mse_loss, _PAIR, {"reduction": "none"}),
    Sample(o.l1_loss, _PAIR),
    Sample(o.mse_loss_grad, ("f32[]", *_PAIR)),
    Sample(o.mse_loss_grad, ("f32[24, 6]", *_PAIR), {"reduction": "none"}),
    Sample(o.l1_loss_grad, ("f32[]", *_PAIR), {"reduction": "sum"}, constant=(1, 2)),
)
