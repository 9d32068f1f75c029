"""The graph and its laws."""

from autoshard.ir.graph import DATA, PARAMETER, STATE, Builder, Graph, Node, Source, Value

__all__ = ["DATA", "PARAMETER", "STATE", "Builder", "Graph", "Node", "Source", "Value"]
