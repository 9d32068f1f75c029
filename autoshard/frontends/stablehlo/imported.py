"""Imported: a module as a graph, what it asks for, and which operation each node came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autoshard.ir.annotations import ShardingAnnotations
from autoshard.ir.graph import Graph, Node


@dataclass(frozen=True, eq=False)
class Imported:
    """A StableHLO module read in. Where several functions are public, the graph is main, else the first of them.

    Attributes:
        graph: the entry function, with the functions it calls.
        asked: the shardings that the module carries.
        order: the functions' names as they stand in the module, the entry among them.
        module: the MLIR module; it keeps its context alive.
        operations: the MLIR operation of each node (of regions and called functions too).
        output_names: what the program calls the outputs (`result['loss']`), '' where it does not say.
        public: the functions that may be called from outside, in order.
    """

    graph: Graph
    asked: ShardingAnnotations
    order: tuple[str, ...]
    module: Any
    operations: Mapping[Node, Any]
    output_names: tuple[str, ...] = ()
    public: tuple[str, ...] = ()
