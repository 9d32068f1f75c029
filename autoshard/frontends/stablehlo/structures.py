"""Operations that hold regions, call functions or carry shardings: they are read with the reader's help.

Each function gets the reader, the MLIR operation and the types of its results, and returns (operator name, attributes).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autoshard.frontends.stablehlo.attributes import attribute
from autoshard.frontends.stablehlo.table import Translation
from autoshard.layout.sdy_text import parse_manual_axes

Types = tuple
STRUCTURES: dict[str, Callable[[Any, Any, Types], Translation]] = {}


def _structure(name: str) -> Callable:
    def register(function: Callable) -> Callable:
        STRUCTURES[name] = function
        return function

    return register


def _one_sharding(operator: str) -> Callable:
    def translate(reader: Any, op: Any, types: Types) -> Translation:
        return operator, {"sharding": reader.sharding(op.attributes["sharding"])}

    return translate


STRUCTURES["sdy.sharding_constraint"] = _one_sharding("ShardingConstraint")
STRUCTURES["sdy.reshard"] = _one_sharding("Reshard")
STRUCTURES["stablehlo.while"] = lambda reader, op, types: ("While", {})
STRUCTURES["stablehlo.case"] = lambda reader, op, types: ("Case", {"types": types})
STRUCTURES["stablehlo.if"] = lambda reader, op, types: ("If", {"types": types})
STRUCTURES["stablehlo.optimization_barrier"] = lambda reader, op, types: ("OptimizationBarrier", {})


@_structure("func.call")
def _call(reader: Any, op: Any, types: Types) -> Translation:
    return "Call", {"callee": attribute(op, "callee"), "types": types}


@_structure("sdy.data_flow_edge")
def _edge(reader: Any, op: Any, types: Types) -> Translation:
    found = op.attributes.get("sharding", None)
    return "DataFlowEdge", {"sharding": found and reader.sharding(found)}


STRUCTURES["sdy.func_data_flow_edge"] = lambda reader, op, types: ("FuncDataFlowEdge", {})


@_structure("sdy.propagation_barrier")
def _barrier(reader: Any, op: Any, types: Types) -> Translation:
    return "PropagationBarrier", {"direction": _DIRECTIONS[attribute(op, "allowed_direction")]}


# sdy's PropagationDirection, which is kept as a number.
_DIRECTIONS = ("none", "forward", "backward", "both")


@_structure("sdy.sharding_group")
def _group(reader: Any, op: Any, types: Types) -> Translation:
    return "ShardingGroup", {"group": attribute(op, "group_id")}


@_structure("sdy.manual_computation")
def _manual(reader: Any, op: Any, types: Types) -> Translation:
    attrs = op.attributes
    return "ManualComputation", {
        "in_shardings": reader.per_value(attrs["in_shardings"]),
        "out_shardings": reader.per_value(attrs["out_shardings"]),
        "manual_axes": parse_manual_axes(str(attrs["manual_axes"])),
        "types": types,
    }


@_structure("sdy.named_computation")
def _named(reader: Any, op: Any, types: Types) -> Translation:
    attrs: dict[str, Any] = {"name": attribute(op, "name"), "types": types}
    for name in ("in_shardings", "out_shardings"):
        if name in op.attributes:
            attrs[name] = reader.per_value(op.attributes[name])
    return "NamedComputation", attrs
