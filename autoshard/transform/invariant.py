"""What a loop hands on unchanged it need not carry: its regions use the value from outside instead.

Then each use in the loop may have it in a layout of its own, made once before the loop. JAX carries all that a scan
reads, such as the weights of its layers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from autoshard.ir.graph import Graph, Node, Region, Value, renamed
from autoshard.transform.simplify import reading

Instead = dict[Value, Value]


def capture_invariants(graph: Graph) -> Graph:
    """The graph whose loops, at any depth, carry only what may change in them; itself if they all do."""
    instead: Instead = {}
    nodes = _nodes(graph.nodes, instead)
    if nodes == graph.nodes:
        return graph
    return graph.renamed(nodes, instead)


def _nodes(nodes: Iterable[Node], instead: Instead) -> tuple[Node, ...]:
    return tuple(_node(node, instead) for node in nodes)


def _node(node: Node, instead: Instead) -> Node:
    if not node.regions:
        return reading(node, instead)
    operands = renamed(node.operands, instead)
    if node.op.name == "While":
        return _loop(node, operands, instead)
    regions = tuple(_region(region, instead) for region in node.regions)
    if (operands, regions) == (node.operands, node.regions):
        return node
    return replace(node, operands=operands, regions=regions)


def _loop(node: Node, operands: tuple[Value, ...], instead: Instead) -> Node:
    cond, body = node.regions
    kept = [i for i, (arg, made) in enumerate(zip(body.args, body.outputs, strict=True)) if arg is not made]
    for i, value in enumerate(operands):
        if i not in kept:
            instead.update(dict.fromkeys((cond.args[i], body.args[i], node.results[i]), value))

    if len(kept) == len(operands):
        regions = (_region(cond, instead), _region(body, instead))
    else:
        regions = (
            _carrying(cond, kept, cond.outputs, instead),
            _carrying(body, kept, _at(body.outputs, kept), instead),
        )
    if (operands, regions) == (node.operands, node.regions):
        return node
    return replace(node, operands=_at(operands, kept), results=_at(node.results, kept), regions=regions)


def _carrying(region: Region, kept: list[int], outputs: tuple[Value, ...], instead: Instead) -> Region:
    """The region with only the arguments kept, and other outputs."""
    return _region(Region(_at(region.args, kept), region.nodes, outputs), instead)


def _at(values: tuple[Value, ...], places: list[int]) -> tuple[Value, ...]:
    return tuple(values[i] for i in places)


def _region(region: Region, instead: Instead) -> Region:
    nodes = _nodes(region.nodes, instead)
    outputs = renamed(region.outputs, instead)
    return region if (nodes, outputs) == (region.nodes, region.outputs) else Region(region.args, nodes, outputs)
