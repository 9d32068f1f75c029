"""Samples of attention: keys as many as queries and not, all ways to run it."""

from __future__ import annotations

from autoshard.ops.attention import attention

from .sample import Sample

SAMPLES = (
    Sample(attention, ("f32[4, 8, 6]", "f32[4, 12, 6]", "f32[4, 12, 10]"), {}),
    Sample(attention, ("f32[4, 24, 6]", "f32[4, 24, 6]", "f32[4, 24, 4]"), {"causal": True, "sequence": "ring"}, False),
    Sample(attention, ("f32[2, 16, 6]", "f32[2, 8, 6]", "f32[2, 8, 4]"), {"scale": 0.5, "sequence": "ring"}, False),
)
