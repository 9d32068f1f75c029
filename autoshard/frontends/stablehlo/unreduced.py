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
    """The axes in a text such as `{"x", "y":(1)2}`, read as those of a dim of a sharding on the same mesh."""
    mesh, found = show_sharding(sharding).partition(", ")[0], _LIST.findall(text)
    return parse_sharding(f"{mesh}, [{found[0]}]>", {sharding.mesh_name: sharding.mesh}).dims[0].axes


def _along(operator: str, attribute: str) -> Any:
    def translate(reader: Any, op: Any, types: tuple) -> tuple[str, dict[str, Any]]:
        sharding = reader.sharding(op.attributes["out_sharding"])
        return operator, {"axes": _axes(str(op.attributes[attribute]), sharding), "sharding": sharding}

    return translate


def _along_per_dim(operator: str, attribute: str) -> Any:
    def translate(reader: Any, op: Any, types: tuple) -> tuple[str, dict[str, Any]]:
        sharding = reader.sharding(op.attributes["out_sharding"])
        found = _LIST.findall(str(op.attributes[attribute]))
        return operator, {"axes": tuple(_axes(one, sharding) for one in found), "sharding": sharding}

    return translate


STRUCTURES["sdy.all_reduce"] = _along("SdyAllReduce", "reduction_axes")
STRUCTURES["sdy.replicated_to_unreduced"] = _along("ReplicatedToUnreduced", "axes")
STRUCTURES["sdy.sharded_to_unreduced"] = _along_per_dim("ShardedToUnreduced", "axes")
STRUCTURES["sdy.all_gather"] = _along_per_dim("SdyAllGather", "gathering_axes")
