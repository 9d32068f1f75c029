"""Leave out of a graph what does not change its outputs: dead nodes, and nodes that repeat another one.

Inputs, outputs, roles and updates stay; nodes that are kept unchanged are the same objects, so that plans and
annotations beside the graph still find them. A node with regions is a new one where something in these is dead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from autoshard.ir.flow import is_nest
from autoshard.ir.graph import Graph, Node, Region, Value, inner_values, renamed, walk


def prune(graph: Graph, keep: Iterable[Node] = ()) -> Graph:
    """The graph without nodes that no output depends on and that do nothing else, in loops and branches, too.

    Args:
        keep: nodes that stay, and what these need.
    """
    kept = live_nodes(graph.nodes, graph.outputs, {value for node in keep for value in node.results})
    return graph if kept == graph.nodes else with_nodes(graph, kept)


def with_nodes(graph: Graph, nodes: tuple[Node, ...]) -> Graph:
    """The graph with these nodes only; what it says of values that are gone goes with them."""
    found = replace(graph, nodes=nodes)
    known = {*found.values, *inner_values(found)}
    return replace(
        found, cotangents={grad: of for grad, of in graph.cotangents.items() if grad in known and of in known}
    )


def live_nodes(
    nodes: tuple[Node, ...], wanted: Iterable[Value], anywhere: Collection[Value] = frozenset()
) -> tuple[Node, ...]:
    """Those of the nodes, in order, that the wanted values need, or that do something besides their results; of those
    with regions so much as is needed.

    Args:
        anywhere: values that are wanted, too, and may be made in regions.
    """
    needed = {*wanted, *anywhere}
    kept = []
    for node in reversed(nodes):
        node = node.with_regions(lambda region: _live(region, anywhere)) if node.regions else node
        if not needed.isdisjoint(node.results) or _does_more(node, anywhere):
            kept.append(node)
            needed.update(node.uses)
    return tuple(reversed(kept))


def _does_more(node: Node, anywhere: Collection[Value]) -> bool:
    """Whether a node does something besides its results, or holds what is wanted."""
    if node.op.has_effects(node.attrs):
        return True
    inner = (value for region in node.regions for one in walk(region.nodes) for value in one.results)
    return bool(anywhere) and any(value in anywhere for value in inner)


def _live(region: Region, anywhere: Collection[Value]) -> Region:
    return region.with_nodes(live_nodes(region.nodes, region.outputs, anywhere))


def merge_equal(graph: Graph, keep: Iterable[Node] = ()) -> Graph:
    """The graph with one node where several apply the same operator with the same attributes to the same
    operands; see `merged`."""
    return merged(graph, keep)[0]


def merged(graph: Graph, keep: Iterable[Node] = (), inside: bool = False) -> tuple[Graph, dict[Node, Node]]:
    """`merge_equal`, and what each node that stays has become.

    The first one stays. Nodes in `keep` (annotated ones) are never merged away, as their strategies may
    differ; nor are nodes with regions, and those that do something besides their results.

    Args:
        inside: go on in loops and branches, too, where what was computed outside is not computed again. What these hand
            on stays as it is.
    """
    block = _Merging({*keep}, inside)
    nodes = block.run(graph.nodes)
    if nodes == graph.nodes:
        return graph, block.became
    return with_nodes(replace(graph, outputs=renamed(graph.outputs, block.instead)), nodes), block.became


class _Merging:
    """Nodes of a graph or of a region that are merged with those before them and around them."""

    def __init__(self, keep: set[Node], inside: bool, around: _Merging | None = None) -> None:
        self.keep, self.inside = keep, inside
        self.first: dict[tuple, Node] = dict(around.first) if around else {}
        self.instead: dict[Value, Value] = around.instead if around else {}
        self.became: dict[Node, Node] = around.became if around else {}

    def run(self, nodes: Iterable[Node]) -> tuple[Node, ...]:
        return tuple(made for node in nodes if (made := self.one(node)) is not None)

    def one(self, before: Node) -> Node | None:
        """The node as it is now; None where one before it makes the same."""
        node = reading(before, self.instead)
        if self.inside and node.regions and is_nest(node) and node.op.name != "ManualComputation":
            node = node.with_regions(self.region)
        if not (before in self.keep or node.regions or node.op.has_effects(node.attrs)):
            key = (node.op.name, node.operands, tuple(node.attrs.items()), node.result_types, node.given_rule)
            known = self.first.setdefault(key, node)
            if known is not node:
                self.instead.update(zip(node.results, known.results, strict=True))
                return None
        self.became[before] = node
        return node

    def region(self, region: Region) -> Region:
        handed = {one for one in region.nodes if not {*region.outputs}.isdisjoint(one.results)}
        return region.with_nodes(_Merging(self.keep | handed, True, self).run(region.nodes))


def reading(node: Node, instead: Mapping[Value, Value]) -> Node:
    """The node, reading other values instead of some, in its regions too; itself if it reads none of them."""
    if not any(value in instead for value in node.uses):
        return node
    regions = tuple(_with_captured(region, instead) for region in node.regions)
    return replace(node, operands=renamed(node.operands, instead), regions=regions)


def _with_captured(region: Region, instead: Mapping[Value, Value]) -> Region:
    if not any(value in instead for value in region.captured):
        return region
    nodes = tuple(reading(node, instead) for node in region.nodes)
    return Region(region.args, nodes, renamed(region.outputs, instead))
