"""Translators of StableHLO's slices at computed places, and of operations with sizes as operands but static shapes."""

from __future__ import annotations

from typing import Any

from autoshard.frontends.stablehlo.attributes import attribute, is_constant, tensor_type
from autoshard.frontends.stablehlo.table import Translation, translates


@translates("stablehlo.dynamic_slice")
def _(op: Any) -> Translation:
    of_bools = tensor_type(str(op.results[0].type)).dtype.name == "bool"
    return "DynamicSlice", {"sizes": attribute(op, "slice_sizes"), "reduction": "max" if of_bools else "sum"}


@translates("stablehlo.dynamic_update_slice")
def _(op: Any) -> Translation:
    return "DynamicUpdateSlice", {"fixed": all(map(is_constant, list(op.operands)[2:]))}


def _shape(op: Any) -> tuple[int, ...]:
    return tensor_type(str(op.results[0].type)).shape


@translates("stablehlo.dynamic_reshape")
def _(op: Any) -> Translation:
    return "DynamicReshape", {"shape": _shape(op)}


@translates("stablehlo.dynamic_broadcast_in_dim")
def _(op: Any) -> Translation:
    return "DynamicBroadcastInDim", {"shape": _shape(op), "dims": attribute(op, "broadcast_dimensions")}


@translates("stablehlo.dynamic_iota")
def _(op: Any) -> Translation:
    element = str(tensor_type(str(op.results[0].type)).dtype)
    return "DynamicIota", {"shape": _shape(op), "dim": attribute(op, "iota_dimension"), "dtype": element}


@translates("stablehlo.dynamic_pad")
def _(op: Any) -> Translation:
    return "DynamicPad", {"shape": _shape(op)}


@translates("stablehlo.real_dynamic_slice")
def _(op: Any) -> Translation:
    return "RealDynamicSlice", {"shape": _shape(op)}
