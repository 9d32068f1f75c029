"""Leave out of a graph what does not change its outputs: dead nodes, and nodes that repeat another one.

Inputs, outputs, roles and updates stay; nodes that are kept unchanged are the same objects, so that plans and
annotations beside the graph still find them. What regions hold is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from autoshard.ir.graph import Graph, Node, Region, Value


def prune(graph: Graph) -> Graph:
    """The graph without nodes that no output depends on and that do nothing else."""
    kept = live_nodes(graph.nodes, graph.outputs)
    return graph if len(kept) == len(graph.nodes) else with_nodes(graph, kept)


def with_nodes(graph: Graph, nodes: tuple[Node, ...]) -> Graph:
    """The graph with these nodes only; what it says of values that are gone goes with them."""
    known = {*graph.inputs, *(value for node in nodes for value in node.results)}
    cotangents = {grad: of for grad, of in graph.cotangents.items() if grad in known and of in known}
    return replace(graph, nodes=nodes, cotangents=cotangents)


def live_nodes(nodes: tuple[Node, ...], wanted: Iterable[Value]) -> tuple[Node, ...]:
    """Those of the nodes, in order, that the wanted values need, or that do something besides their results."""
    needed = set(wanted)
    kept = []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.results) or node.op.has_effects(node.attrs):
            kept.append(node)
            needed.update(node.uses)
    return tuple(reversed(kept))


def merge_equal(graph: Graph, keep: Iterable[Node] = ()) -> Graph:
    """The graph with one node where several apply the same operator with the same attributes to the same
    operands.

    The first one stays. Nodes in `keep` (annotated ones) are never merged away, as their strategies may
    differ; nor are nodes with regions, and those that do something besides their results.
    """
    apart = {*keep, *(node for node in graph.nodes if node.regions or node.op.has_effects(node.attrs))}
    instead: dict[Value, Value] = {}
    first: dict[tuple, Node] = {}
    kept = []
    for node in graph.nodes:
        stays, node = node in apart, reading(node, instead)
        key = (node.op.name, node.operands, tuple(node.attrs.items()), node.result_types, node.given_rule)
        known = node if stays else first.setdefault(key, node)
        if known is node:
            kept.append(node)
        else:
            instead.update(zip(node.results, known.results, strict=True))
    outputs = tuple(instead.get(value, value) for value in graph.outputs)
    return with_nodes(replace(graph, outputs=outputs), tuple(kept)) if instead else graph


def reading(node: Node, instead: Mapping[Value, Value]) -> Node:
    """The node, reading other values instead of some, in its regions too; itself if it reads none of them."""
    if not any(value in instead for value in node.uses):
        return node
    operands = tuple(instead.get(value, value) for value in node.operands)
    regions = tuple(_with_captured(region, instead) for region in node.regions)
    return Node(node.op, operands, node.attrs, node.results, node.name, node.source, regions, node.given_rule)


def _with_captured(region: Region, instead: Mapping[Value, Value]) -> Region:
    if not any(value in instead for value in region.captured):
        return region
    nodes = tuple(reading(node, instead) for node in region.nodes)
    return Region(region.args, nodes, tuple(instead.get(value, value) for value in region.outputs))
