"""The graph that a traced model is planned on: `planned_graph(traced)`.

What nothing needs is left out, what the search cannot plan is rewritten (`plannable.py`), operators that compute the
same of the same values become one, and those that only move elements are joined (`merge_movements.py`). So a plan pays
once for what programs do once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autoshard.ir.graph import Graph, Node
from autoshard.transform.merge_movements import merge_movements
from autoshard.transform.plannable import plannable
from autoshard.transform.recompute import AGAIN
from autoshard.transform.simplify import merged, prune


def planned_graph(graph: Graph, annotations: Mapping[Node, Any]) -> tuple[Graph, dict[Node, Any]]:
    """The graph to be planned, and the annotations of its nodes.

    Annotated operators stay, and so do those that make outputs, and those that are made again on purpose to save
    memory.

    Raises:
        PlanError: a node that has neither a rule nor regions that are known.
    """
    graph = prune(plannable(graph), annotations)
    made, became = merged(graph, _kept(graph, annotations), inside=True)
    said = {became.get(node, node): one for node, one in annotations.items()}
    return merge_movements(made, said), said


def _kept(graph: Graph, annotations: Mapping[Node, Any]) -> Iterator[Node]:
    wanted = {*graph.outputs}
    yield from annotations
    for node in graph.nodes:
        if not wanted.isdisjoint(node.results) or any(value.name.endswith(AGAIN) for value in node.results):
            yield node
