"""Samples of the operators that stand for what people ask of a value: alone they hand it on."""

from __future__ import annotations

from autoshard.ops import control

from .sample import Sample

SAMPLES = (
    Sample(control.sharding_constraint, ("f32[24, 6]",), {"sharding": None}, differentiable=False),
    Sample(control.propagation_barrier, ("f32[8, 12]",), {"direction": "forward"}, differentiable=False),
    Sample(control.data_flow_edge, ("f32[6, 24]",), differentiable=False),
)
