"""What runs on one device, of whole values: parts of a step outside of its stages, and pieces as functions of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from autoshard.ir.graph import Graph, Node, Value
from autoshard.partition.program import Program
from autoshard.pipeline.stages.cut import graph_of
from autoshard.search.one_device import one_device_program
from autoshard.transform.planned_graph import planned_graph


@dataclass(frozen=True, eq=False)
class WholePart:
    """A part of a step that is computed of whole values, by every rank or on one device."""

    graph: Graph

    @classmethod
    def of(cls, name: str, nodes: Sequence[Node], outputs: Sequence[Value] = ()) -> WholePart | None:
        """The part of these nodes, with all that they make or these outputs; None of no nodes."""
        graph = graph_of(name, nodes, outputs or None)
        return cls(graph) if graph.outputs else None

    @cached_property
    def program(self) -> Program:
        """It on one device."""
        return one_device_program(planned_graph(self.graph, {})[0])
