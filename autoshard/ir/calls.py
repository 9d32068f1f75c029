"""Which functions a graph calls, and whether calls lead back to where they came from."""

from __future__ import annotations

from collections.abc import Mapping

from autoshard.ir.graph import Graph, walk
from autoshard.ir.run import CALLS


def callees(graph: Graph) -> list[str]:
    """The functions that a graph calls, in order of first use."""
    calls = (node.attrs["callee"] for node in walk(graph.nodes) if node.op.name in CALLS)
    return list(dict.fromkeys(calls))


def call_cycle(graphs: Mapping[str, Graph]) -> list[str]:
    """The names of functions that call themselves, each followed by one that it calls, back to the first; [] if none.

    Args:
        graphs: by name, every function that one of them calls among them.
    """
    calls = [(name, callee) for name, graph in graphs.items() for callee in callees(graph)]
    if not calls:
        return []
    import networkx as nx  # only here: the import takes longer than many traces

    try:
        cycle = nx.find_cycle(nx.DiGraph(calls))
    except nx.NetworkXNoCycle:
        return []
    return [cycle[0][0], *(callee for _, callee in cycle)]
