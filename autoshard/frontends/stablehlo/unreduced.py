"""Translators of sdy's operations that begin or end a partial sum."""

from __future__ import annotations

import re
from typing import Any

from autoshard.frontends.stablehlo.structures import STRUCTURES
from autoshard.layout.layout import Refs
from autoshard.layout.sdy_text import parse_sharding, show_sharding
from autoshard.layout.sharding import Sharding

_LIST = re.compile(r"\{[^{}]*\}")


def _axes(text: str, sharding: Sharding) -> Refs:
    """The axes written `{"x", "y":(1)2}`, read as those of a dim of a sharding on the same mesh."""
    mesh = show_sharding(sharding).partition(", ")[0]
    return parse_sharding(f"{mesh}, [{text}]>", {sharding.mesh_name: sharding.mesh}).dims[0].axes


def _all_along(operator: str, attribute: str) -> None:
    def translate(reader: Any, op: Any, types: tuple) -> tuple[str, dict[str, Any]]:
        sharding = reader.sharding(op.attributes["out_sharding"])
        found = _LIST.findall(str(op.attributes[attribute]))
        return operator, {"axes": _axes(found[0], sharding), "sharding": sharding}

    STRUCTURES[f"sdy.{operator_names[operator]}"] = translate


def _per_dim(reader: Any, op: Any, types: tuple) -> tuple[str, dict[str, Any]]:
    sharding = reader.sharding(op.attributes["out_sharding"])
    found = _LIST.findall(str(op.attributes["axes"]))
    return "ShardedToUnreduced", {"axes": tuple(_axes(one, sharding) for one in found), "sharding": sharding}


operator_names = {"SdyAllReduce": "all_reduce", "ReplicatedToUnreduced": "replicated_to_unreduced"}
_all_along("SdyAllReduce", "reduction_axes")
_all_along("ReplicatedToUnreduced", "axes")
STRUCTURES["sdy.sharded_to_unreduced"] = _per_dim
