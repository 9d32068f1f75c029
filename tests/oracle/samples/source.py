"""Samples of operators without operands, and of constants shaped like another tensor."""

from __future__ import annotations

import numpy as np

from autoshard.ops.source import constant, fill, ones_like, zeros_like

from .sample import Sample

SAMPLES = (
    Sample(fill, (), {"shape": (24, 6), "value": 2.5}, differentiable=False),
    Sample(fill, (), {"shape": (48,), "value": 3, "dtype": "i32"}, differentiable=False),
    Sample(constant, (), {"value": np.arange(24 * 8, dtype=np.float32).reshape(24, 8)}, differentiable=False),
    Sample(constant, (), {"value": np.arange(24) % 3 == 0}, differentiable=False),
    Sample(zeros_like, ("f32[12, 8]",), differentiable=False),
    Sample(ones_like, ("i32[24, 6]",), differentiable=False),
)
