"""Leave out of a graph what does not change its outputs: dead nodes, and nodes that repeat another one.

Inputs, outputs, roles and updates stay; nodes that are kept unchanged are the same objects, so that plans and
annotations beside the graph still find them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from autoshard.ir.graph import Graph, Node, Value


def prune(graph: Graph) -> Graph:
    """The graph without nodes that no output depends on."""
    kept = live_nodes(graph.nodes, graph.outputs)
    return graph if len(kept) == len(graph.nodes) else with_nodes(graph, kept)


def with_nodes(graph: Graph, nodes: tuple[Node, ...]) -> Graph:
    """The graph with these nodes only; what it says of values that are gone goes with them."""
    known = {*graph.inputs, *(value for node in nodes for value in node.results)}
    cotangents = {grad: of for grad, of in graph.cotangents.items() if grad in known and of in known}
    return replace(graph, nodes=nodes, cotangents=cotangents)


def live_nodes(nodes: tuple[Node, ...], wanted: Iterable[Value]) -> tuple[Node, ...]:
    """Those of the nodes, in order, that the wanted values need."""
    needed = set(wanted)
    kept = []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.results):
            kept.append(node)
            needed.update(node.operands)
    return tuple(reversed(kept))


def merge_equal(graph: Graph, keep: Iterable[Node] = ()) -> Graph:
    """The graph with one node where several apply the same operator with the same attributes to the same
    operands.

    The first one stays. Nodes in `keep` (annotated ones) are never merged away, as their strategies may
    differ.
    """
    apart = set(keep)
    instead: dict[Value, Value] = {}
    first: dict[tuple, Node] = {}
    kept = []
    for node in graph.nodes:
        node = _with_operands(node, instead)
        key = (node.op.name, node.operands, tuple(node.attrs.items()), node.result_types)
        known = first.setdefault(key, node)
        if known is node or node in apart:
            kept.append(node)
        else:
            instead.update(zip(node.results, known.results, strict=True))
    outputs = tuple(instead.get(value, value) for value in graph.outputs)
    return with_nodes(replace(graph, outputs=outputs), tuple(kept)) if instead else graph


def _with_operands(node: Node, instead: dict[Value, Value]) -> Node:
    """The node itself, or one that reads and writes the same values after the merges so far."""
    if not any(value in instead for value in node.operands):
        return node
    operands = tuple(instead.get(value, value) for value in node.operands)
    return Node(node.op, operands, node.attrs, node.results, node.name, node.source)
