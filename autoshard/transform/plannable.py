"""What the search can plan: a graph whose every node has a rule.

What people ask for besides strategies is left to propagation: groups go, optimization barriers become identities, and
constraints are identities by their rule.
"""

from __future__ import annotations

from dataclasses import replace

from autoshard.errors import PlanError, at
from autoshard.ir.graph import Graph, Node
from autoshard.ops.registry import lookup


def plannable(graph: Graph) -> Graph:
    """The graph with the same values, and nodes of the kinds that the search plans; itself if it has only such.

    Raises:
        PlanError: a node that has no rule, such as a loop, a branch or a manual computation.
    """
    nodes = tuple(one for node in graph.nodes for one in _plain(node, graph))
    return graph if nodes == graph.nodes else replace(graph, nodes=nodes)


def _plain(node: Node, graph: Graph) -> tuple[Node, ...]:
    if node.op.has_rule or node.given_rule is not None:
        return (node,)
    if node.op.name == "ShardingGroup":
        return ()
    if node.op.name == "OptimizationBarrier":
        identity = lookup("Identity")
        pairs = zip(node.operands, node.results, strict=True)
        return tuple(Node(identity, (value,), {}, (result,), result.name, node.source) for value, result in pairs)
    raise PlanError(
        f"cannot plan {node.op.name} yet: {node.label}{at(node.source)} in {graph.name!r} has no rule that says how it "
        "is split; leave it out of what is planned, or only propagate shardings"
    )
