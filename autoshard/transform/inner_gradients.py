"""Gradients that a program takes itself, where it says of what: `differentiated(graph)` has them by operators' own.

A program marks them by custom calls, which are gone then:

    entered = ENTERED(x)                    each x that is differentiated for
    y = ...                                 of `entered`, and of others
    dx, ... = GRADIENT(entered, ..., y, ..., dy, ...)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from autoshard.ir.graph import DATA, Builder, Graph, Node, Region, Value, renamed, walk
from autoshard.transform.custom_gradient import without_custom_gradients
from autoshard.transform.grad import Reverse
from autoshard.transform.simplify import live_nodes, reading, with_nodes
from autoshard.util.errors import GraphError, at

ENTERED = "autoshard.entered"
GRADIENT = "autoshard.gradient."
"""Targets of custom calls; the second is followed by the number of values that are differentiated for."""


@dataclass(frozen=True)
class GradientMark:
    """A node that stands for the gradients of `outputs` for `inputs`."""

    node: Node

    @property
    def inputs(self) -> tuple[Value, ...]:
        return self.node.operands[: len(self.node.results)]

    @property
    def outputs(self) -> tuple[Value, ...]:
        rest = self.node.operands[len(self.node.results) :]
        return rest[: len(rest) // 2]

    @property
    def cotangents(self) -> tuple[Value, ...]:
        return self.node.operands[len(self.inputs) + len(self.outputs) :]


def is_gradient(node: Node) -> bool:
    """Whether a node stands for gradients."""
    return str(node.attrs.get("target", "")).startswith(GRADIENT)


def holds_gradient(node: Node) -> bool:
    """Whether a loop or branch has such a node in it."""
    return any(is_gradient(one) for region in node.regions for one in walk(region.nodes))


def is_entry(node: Node) -> bool:
    """Whether a node is where a value enters what is differentiated."""
    return node.attrs.get("target") == ENTERED


def differentiated(graph: Graph, rewrite: Callable[[Graph], Graph] = lambda graph: graph) -> Graph:
    """The graph with the gradients that its marks stand for, at any depth.

    Args:
        rewrite: what is made of a graph, or of the body of a loop that takes gradients, before it is differentiated.

    Raises:
        GraphError: an operator on the way has no gradient; or gradients are taken in a loop or branch, of what is
            computed outside.
    """
    made = _differentiated(graph, rewrite)
    return _OwnNames(made).graph() if any(map(holds_gradient, graph.nodes)) else made


def _differentiated(graph: Graph, rewrite: Callable[[Graph], Graph]) -> Graph:
    if not any(is_gradient(node) or is_entry(node) for node in walk(graph.nodes)):
        return rewrite(graph)
    _check_entries(graph)
    graph = rewrite(_without_entries(graph))

    def inside(region: Region) -> Region:
        return _region(region, graph.name, rewrite)

    nodes = tuple(node.with_regions(inside) if holds_gradient(node) else node for node in graph.nodes)
    graph, rules = without_custom_gradients(replace(graph, nodes=nodes))
    return _GradientsWritten(graph, rules).graph()


def _region(region: Region, name: str, rewrite: Callable[[Graph], Graph]) -> Region:
    """The body of a loop or branch with the gradients that are taken in it."""
    if not any(is_gradient(one) or is_entry(one) for one in walk(region.nodes)):
        return region
    inputs = (*region.args, *region.captured)
    made = _differentiated(Graph(name, inputs, region.nodes, region.outputs, (DATA,) * len(inputs)), rewrite)
    return Region(region.args, made.nodes, made.outputs)


class _OwnNames:
    """Gives values in regions, which have been rewritten each for itself, names that no others have."""

    def __init__(self, graph: Graph) -> None:
        self.before, self.builder = graph, Builder.after(graph, graph.name)
        self.seen = {value.name for value in graph.values}

    def graph(self) -> Graph:
        nodes = tuple(
            replace(node, regions=self.regions(node, {})) if node.regions else node for node in self.before.nodes
        )
        return with_nodes(self.before, nodes)

    def regions(self, node: Node, known: Mapping[Value, Value]) -> tuple[Region, ...]:
        return tuple(self.region(one, dict(known)) for one in node.regions)

    def region(self, region: Region, known: dict[Value, Value]) -> Region:
        args = tuple(self.value(one, known) for one in region.args)
        nodes = tuple(self.node(one, known) for one in region.nodes)
        return Region(args, nodes, renamed(region.outputs, known))

    def node(self, node: Node, known: dict[Value, Value]) -> Node:
        operands, regions = renamed(node.operands, known), self.regions(node, known)
        results = tuple(self.value(one, known) for one in node.results)
        return replace(node, operands=operands, regions=regions, results=results)

    def value(self, value: Value, known: dict[Value, Value]) -> Value:
        if value.name in self.seen:
            known[value] = value = Value(value.type, self.builder.unique(value.name))
        self.seen.add(value.name)
        return value


# -- entries


def _check_entries(graph: Graph) -> None:
    """That what is differentiated for enters where the gradient is taken: in the graph, or in the same region."""
    entered = {node.results[0] for node in graph.nodes if is_entry(node)}
    for node in graph.nodes:
        if is_gradient(node) and not entered.issuperset(GradientMark(node).inputs):
            raise GraphError(f"{node.label}{at(node.source)} takes gradients of what is computed around it")


def _without_entries(graph: Graph) -> Graph:
    """The graph without entries of values on which what is differentiated depends in no other way: it may as well be
    differentiated for the value itself."""
    of = {node.results[0]: node.operands[0] for node in graph.nodes if is_entry(node)}
    marks = (GradientMark(node) for node in graph.nodes if is_gradient(node))
    needed = {entered for mark in marks for entered in _entering_otherwise(graph, mark, of)}
    instead = {entered: value for entered, value in of.items() if entered not in needed}
    instead = {entered: _last(value, instead) for entered, value in instead.items()}
    kept = tuple(reading(node, instead) for node in graph.nodes if instead.keys().isdisjoint(node.results))
    return replace(graph, nodes=kept, outputs=renamed(graph.outputs, instead))


def _last(value: Value, instead: Mapping[Value, Value]) -> Value:
    while value in instead:
        value = instead[value]
    return value


def _entering_otherwise(graph: Graph, mark: GradientMark, of: Mapping[Value, Value]) -> Iterable[Value]:
    """Entries of a mark whose value the outputs depend on by another path, too, or that enters twice."""
    reached: set[Value] = set()
    entered, waiting = {*mark.inputs}, [*mark.outputs]
    while waiting:
        value = waiting.pop()
        if value in reached:
            continue
        reached.add(value)
        if value not in entered and value in graph.producers:
            waiting += graph.producers[value][0].uses
    times = Counter(of[one] for one in entered)
    return [one for one in entered if of[one] in reached or times[of[one]] > 1]


# -- gradients


class _GradientsWritten:
    """Writes gradients in the place of their marks, in the order of the graph."""

    def __init__(self, graph: Graph, rules: Mapping) -> None:
        self.before, self.rules = graph, rules
        self.builder = Builder.after(graph, graph.name)
        self.builder.nodes = []
        self.instead: dict[Value, Value] = {}

    def graph(self) -> Graph:
        for node in self.before.nodes:
            if is_gradient(node):
                self._gradients(GradientMark(reading(node, self.instead)))
            else:
                self.builder.nodes.append(reading(node, self.instead))
        entries = {one.results[0]: one.operands[0] for one in self.builder.nodes if is_entry(one)}
        entries = {entered: _last(value, entries) for entered, value in entries.items()}
        known = {**self.instead, **entries}
        outputs = tuple(_last(value, known) for value in self.before.outputs)
        nodes = tuple(reading(node, entries) for node in self.builder.nodes if not is_entry(node))
        cotangents = {_last(grad, known): _last(of, entries) for grad, of in self.builder.cotangents.items()}
        found = replace(self.before, outputs=outputs, cotangents=cotangents, nodes=())
        return with_nodes(found, live_nodes(nodes, outputs))

    def _gradients(self, mark: GradientMark) -> None:
        nodes, before = tuple(self.builder.nodes), {*self.builder.cotangents}
        made = Reverse(self.builder, self.rules).pulled(nodes, mark.outputs, mark.cotangents, mark.inputs)
        # What the program gives may be a constant of its begin, where no gradients are made yet.
        for given in {*mark.cotangents} - before:
            self.builder.cotangents.pop(given, None)
        self.instead.update(zip(mark.node.results, made, strict=True))


def entering(graph: Graph) -> set[Value]:
    """The values that a graph differentiates for by its marks, those of loops as what enters these."""
    of: dict[Value, Value] = {}
    found: set[Value] = set()
    for node in walk(graph.nodes):
        if node.op.name == "While":
            pairs = (
                (arg, value) for region in node.regions for arg, value in zip(region.args, node.operands, strict=True)
            )
            of.update(pairs)
        elif is_entry(node):
            of[node.results[0]] = node.operands[0]
            found.add(_last(node.operands[0], of))
    return found
