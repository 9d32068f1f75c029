"""Write out what is called: a graph without calls and named computations, for planning and partitioning.

Nodes that hold no call stay the same objects. A call's results stay the same values where the function computes them,
so that what is said of them beside the graph still holds; all else inside is new, once for each call, under the call's
name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from autoshard.ir.graph import Graph, Node, Region, Value, renamed, walk
from autoshard.ir.run import CALLS

Known = dict[Value, Value]
Path = tuple[Node, ...]
Places = Mapping[Value, tuple[Path, Value]]
"""Which value of the graph before a new value is a copy of, and by which calls, outermost first, it is reached."""


def inline(graph: Graph) -> Graph:
    """The same computation with every called function in the place of the call, at any depth."""
    return inline_placed(graph)[0]


def inline_placed(graph: Graph) -> tuple[Graph, Places]:
    """`inline`, and where the values come from that are new."""
    if not any(_is_call(node) for node in walk(graph.nodes)):
        return (replace(graph, functions={}) if graph.functions else graph), {}
    inliner = _Inliner(graph)
    known: Known = {}
    nodes = inliner.nodes(graph.nodes, known, "", ())
    return replace(graph.renamed(nodes, known), functions={}), inliner.places


def _is_call(node: Node) -> bool:
    return node.op.name in CALLS or node.op.name == "NamedComputation"


class _Inliner:
    """Writes out calls. `known` says what stands for a value, `prefix` names copies ('': none), and `path` has the
    calls around."""

    def __init__(self, graph: Graph) -> None:
        self.functions: Mapping[str, Graph] = graph.functions
        self.places: dict[Value, tuple[Path, Value]] = {}
        self.taken = {value.name for value in graph.inputs}
        for node in walk(graph.nodes):
            self.taken.update(value.name for value in node.results)
            self.taken.update(value.name for region in node.regions for value in region.args)

    def nodes(self, nodes: Iterable[Node], known: Known, prefix: str, path: Path) -> tuple[Node, ...]:
        """The nodes with calls written out."""
        written: list[Node] = []
        for node in nodes:
            if _is_call(node):
                written += self.call(node, known, prefix, path)
            else:
                written.append(self.node(node, known, prefix, path))
        return tuple(written)

    def call(self, node: Node, known: Known, prefix: str, path: Path) -> tuple[Node, ...]:
        """The nodes of what is called, and in `known` what its results are now."""
        if node.op.name in CALLS:
            callee = self.functions[node.attrs["callee"]]
            body = Region(callee.inputs, callee.nodes, callee.outputs)
        else:
            body = node.regions[0]
        label = f"{prefix}{node.label}."
        inner: Known = dict(zip(body.captured, renamed(body.captured, known), strict=True))
        inner.update(zip(body.args, renamed(node.operands, known), strict=True))
        made = {value for one in body.nodes for value in one.results}
        for inside, result in zip(body.outputs, node.results, strict=True):
            if inside in made and inside not in inner:
                inner[inside] = self.result(result, known, prefix, path)
        nodes = self.nodes(body.nodes, inner, label, (*path, node))
        known.update(zip(node.results, (inner[value] for value in body.outputs), strict=True))
        return nodes

    def node(self, node: Node, known: Known, prefix: str, path: Path) -> Node:
        """The node itself if nothing about it changes, else a copy."""
        operands = renamed(node.operands, known)
        regions = tuple(self.region(region, known, prefix, path) for region in node.regions)
        if not prefix and operands == node.operands and regions == node.regions:
            return node
        results = tuple(self.result(value, known, prefix, path) for value in node.results)
        name = f"{prefix}{node.name}" if node.name else ""
        return replace(node, operands=operands, results=results, name=name, regions=regions)

    def result(self, value: Value, known: Known, prefix: str, path: Path) -> Value:
        if prefix and value not in known:
            known[value] = self.copy(value, prefix)
            self.places[known[value]] = path, value
        return known.get(value, value)

    def region(self, region: Region, known: Known, prefix: str, path: Path) -> Region:
        """The region itself if it holds no call and uses nothing that changes, else a copy."""
        changes = prefix or any(value in known for value in region.captured)
        if not changes and not any(_is_call(node) for node in walk(region.nodes)):
            return region
        inner = dict(known)
        args = tuple(self.result(value, inner, prefix, path) for value in region.args)
        nodes = self.nodes(region.nodes, inner, prefix, path)
        return Region(args, nodes, renamed(region.outputs, inner))

    def copy(self, value: Value, prefix: str) -> Value:
        name, count = f"{prefix}{value.name}", 0
        while name in self.taken:
            count += 1
            name = f"{prefix}{value.name}_{count}"
        self.taken.add(name)
        return Value(value.type, name)
