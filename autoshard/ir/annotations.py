"""Asked: the shardings that people put on the values of a graph; like a plan it lies beside the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autoshard.ir.graph import Node, Value
from autoshard.layout.mesh import Mesh
from autoshard.layout.sharding import Sharding


@dataclass(frozen=True, eq=False)
class ShardingAnnotations:
    """What is asked of inputs and results of nodes (`values`) and of what functions return (`outputs`).

    `outputs` maps a graph's name to a sharding (or None) per output. Constraints, groups and manual computations are
    nodes of the graph and carry their shardings as attributes. `meshes` are the meshes by symbol, in order. `effects`
    says of nodes without results where they run: on one device (a maximal sharding) or on all (one of rank 0).
    """

    meshes: Mapping[str, Mesh]
    values: Mapping[Value, Sharding] = field(default_factory=dict)
    outputs: Mapping[str, tuple[Sharding | None, ...]] = field(default_factory=dict)
    effects: Mapping[Node, Sharding] = field(default_factory=dict)
