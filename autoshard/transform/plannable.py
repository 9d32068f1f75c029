"""What the search can plan: a graph whose every node has a rule, or regions and data-flow edges.

What people ask for besides strategies is left to propagation: groups go, optimization barriers become identities, and
constraints are identities by their rule. All this holds inside of regions too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from autoshard.core.tensortype import TensorType, dtype
from autoshard.ir.flow import is_nest
from autoshard.ir.graph import Graph, Node, Value
from autoshard.ops.registry import lookup
from autoshard.transform.custom_gradient import without_custom_gradients
from autoshard.util.errors import PlanError, at

Rewrite = Callable[[Node], tuple[Node, ...]]


def plannable(graph: Graph) -> Graph:
    """The graph with the same values, and nodes of the kinds that the search plans; itself if it has only such.

    Raises:
        PlanError: a node that has neither a rule nor regions that are known.
    """
    return rewritten(without_custom_gradients(graph)[0], lambda node: _plain(node, graph))


def rewritten(graph: Graph, rewrite: Rewrite) -> Graph:
    """The graph with each node, at any depth, replaced by what `rewrite` makes of it; itself if nothing changes.

    Regions are rewritten before the node that has them.
    """
    nodes = _rewritten(graph.nodes, rewrite)
    return graph if nodes == graph.nodes else replace(graph, nodes=nodes)


def _rewritten(nodes: Iterable[Node], rewrite: Rewrite) -> tuple[Node, ...]:
    return tuple(new for node in nodes for new in rewrite(_inside_rewritten(node, rewrite)))


def _inside_rewritten(node: Node, rewrite: Rewrite) -> Node:
    return node.with_regions(lambda region: region.with_nodes(_rewritten(region.nodes, rewrite)))


def _plain(node: Node, graph: Graph) -> tuple[Node, ...]:
    if node.op.has_rule or node.given_rule is not None or is_nest(node):
        return (node,)
    if node.op.name == "ShardingGroup":
        return ()
    if node.op.name == "OptimizationBarrier":
        identity = lookup("Identity")
        pairs = zip(node.operands, node.results, strict=True)
        return tuple(Node(identity, (value,), {}, (result,), result.name, node.source) for value, result in pairs)
    if node.op.name == "If":
        return _as_case(node)
    raise PlanError(
        f"cannot plan {node.op.name} yet: {node.label}{at(node.source)} in {graph.name!r} has no rule that says how it "
        "is split; leave it out of what is planned, or only propagate shardings"
    )


def _as_case(node: Node) -> tuple[Node, ...]:
    """A choice between two as one among several: the number of the truth value chooses."""
    cast, integer = lookup("Cast"), dtype("i32")
    number = Value(TensorType((), integer), f"{node.operands[0].name}.number")
    counted = Node(cast, node.operands, cast.check_attributes({"dtype": integer}), (number,), "", node.source)
    regions = (node.regions[1], node.regions[0])
    return counted, Node(lookup("Case"), (number,), node.attrs, node.results, node.name, node.source, regions)
