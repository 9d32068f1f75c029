"""Samples of operators that draw random numbers."""

from __future__ import annotations

from autoshard.ops.random import dropout, dropout_rows, random_normal, random_uniform

from .sample import Sample

SAMPLES = (
    Sample(dropout, ("f32[24, 48]", "i32[]"), {"rate": 0.25, "seed": 5}),
    Sample(dropout, ("f32[8, 6, 12]", "u32[]"), {"rate": 0.5}),
    Sample(dropout, ("f32[12, 8]", "i32[]"), {"rate": 0.0}),
    Sample(dropout_rows, ("f32[24, 48]", "i32[]", "i32[24]"), {"rate": 0.25, "dim": 0, "whole": (72, 48)}),
    Sample(
        dropout_rows, ("f32[8, 6, 12]", "u32[]", "i32[6]"), {"rate": 0.5, "dim": 1, "whole": (8, 18, 12), "seed": 3}
    ),
    Sample(random_uniform, (), {"shape": (24, 6), "seed": 3, "low": -1.0}, differentiable=False),
    Sample(random_normal, (), {"shape": (8, 6, 12), "std": 0.02, "step": 4}, differentiable=False),
)
