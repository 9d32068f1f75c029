"""Samples of softmax, layer norm, root mean square norm and their gradients."""

from __future__ import annotations

from autoshard.ops import norm as n

from .sample import Sample

_FIRST = {"begin_norm_axis": 1}

SAMPLES = (
    Sample(n.softmax, ("f32[24, 48]",)),
    Sample(n.softmax, ("f32[8, 6, 12]",), {"axis": 1}),
    Sample(n.log_softmax, ("f32[24, 48]",)),
    Sample(n.log_softmax, ("f32[8, 6, 12]",), {"axis": 0}),
    Sample(n.softmax_grad, ("f32[8, 6, 12]",) * 2),
    Sample(n.log_softmax_grad, ("f32[8, 6, 12]",) * 2, {"axis": 1}),
    Sample(n.layer_norm, ("f32[24, 48]", "f32[48]", "f32[48]")),
    Sample(n.layer_norm, ("f32[8, 6, 12]", "f32[6, 12]", "f32[6, 12]"), {**_FIRST, "epsilon": 1e-3}),
    Sample(n.rms_norm, ("f32[8, 6, 12]", "f32[12]")),
    Sample(n.rms_norm, ("f32[24, 6, 4]", "f32[6, 4]"), _FIRST),
    Sample(n.standardize, ("f32[8, 6, 12]",)),
    Sample(n.standardize, ("f32[8, 6, 12]",), {**_FIRST, "center": False}),
    Sample(n.norm_grad, ("f32[8, 6, 12]", "f32[8, 6, 12]", "f32[8, 6, 1]", "f32[12]")),
    Sample(
        n.norm_grad,
        ("f32[24, 6]", "f32[24, 6]", "f32[24, 1]", "f32[6]"),
        {"center": False},
    ),
    Sample(n.layer_norm_param_grad, ("f32[8, 24, 12]",) * 2),
    Sample(n.layer_norm_param_grad, ("f32[24, 6, 8]",) * 2, _FIRST),
)
