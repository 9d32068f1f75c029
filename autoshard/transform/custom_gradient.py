"""Gradients that a model says itself: out of the graph, as rules beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from autoshard.ir.graph import Graph, Node, Region, Value, renamed, walk
from autoshard.ops.registry import lookup
from autoshard.trace.tensor import Recorder, TracedTensor
from autoshard.transform.simplify import live_nodes, with_nodes
from autoshard.util.errors import GraphError, at


@dataclass(frozen=True, eq=False)
class CustomRule:
    """How gradients of `outputs` become those of `inputs`: `nodes` compute `gradients` from `cotangents`."""

    node: Node
    nodes: tuple[Node, ...] = ()

    @property
    def outputs(self) -> tuple[Value, ...]:
        return self.node.results

    @property
    def inputs(self) -> tuple[Value, ...]:
        count = self.node.attrs["outputs"]
        return self.node.operands[count : count + self.node.attrs["inputs"]]

    @property
    def cotangents(self) -> tuple[Value, ...]:
        begin = self.node.attrs["outputs"] + self.node.attrs["inputs"]
        return self.node.operands[begin : begin + self.node.attrs["outputs"]]

    @property
    def gradients(self) -> tuple[Value, ...]:
        return self.node.operands[len(self.node.operands) - self.node.attrs["inputs"] :]

    def check(self) -> None:
        """Raises GraphError if the model could not say its gradient."""
        if self.node.attrs["refusal"]:
            raise GraphError(f"{self.node.label}{at(self.node.source)} has no gradient: {self.node.attrs['refusal']}")


def without_custom_gradients(graph: Graph) -> tuple[Graph, dict[Node, CustomRule]]:
    """The graph without what only custom gradients need, and their rules by the first node that makes their results.

    Results of the rules are made by StopGradient nodes one after the other; of the nodes that stay, only those are
    other objects that hold such a part in a region.
    """
    if not any(is_custom(node) for node in walk(graph.nodes)):
        return graph, {}
    rules: dict[Node, CustomRule] = {}
    return with_nodes(graph, _without(graph.nodes, graph.outputs, rules)), rules


def _without(nodes: Iterable[Node], outputs: Iterable[Value], rules: dict[Node, CustomRule]) -> tuple[Node, ...]:
    """The same for the nodes of a graph or of a region, and what they are made for."""
    plain: list[Node] = []
    own: dict[Node, CustomRule] = {}
    for node in nodes:
        made = tuple(_stopped(node)) if is_custom(node) else (_inside(node, rules),)
        if is_custom(node):
            own[made[0]] = CustomRule(node)
        plain += made
    if not own:
        return tuple(plain)
    # Gradients go on from the inputs, also from those that the forward pass does not look at.
    inputs = (value for rule in own.values() for value in rule.inputs)
    kept = live_nodes(tuple(plain), (*outputs, *inputs))
    stays = {*kept}
    left = tuple(node for node in plain if node not in stays and node.op.name != "Cotangent")
    rules.update({first: replace(rule, nodes=live_nodes(left, rule.gradients)) for first, rule in own.items()})
    return kept


def _inside(node: Node, rules: dict[Node, CustomRule]) -> Node:
    if not any(is_custom(one) for region in node.regions for one in walk(region.nodes)):
        return node
    return node.with_regions(lambda one: one.with_nodes(_without(one.nodes, one.outputs, rules)))


def is_custom(node: Node) -> bool:
    return node.op.name == "CustomGradient"


def _stopped(node: Node) -> Iterator[Node]:
    """One node for each result, through which no gradient passes."""
    stop = lookup("StopGradient")
    for operand, result in zip(node.operands, node.results, strict=False):
        yield Node(stop, (operand,), {}, (result,), result.name, node.source)


def copy_nodes(nodes: Iterable[Node], known: dict[Value, Value], recorder: Recorder) -> None:
    """Record nodes again, on what `known` says in the place of values; what they make goes into `known`."""
    for node in nodes:
        operands = [TracedTensor(known.get(value, value), recorder) for value in node.operands]
        regions = tuple(_copied(region, known, recorder) for region in node.regions)
        made = recorder.add(node.op, operands, node.attrs, regions)
        known.update(zip(node.results, (tensor.value for tensor in made), strict=True))


def _copied(region: Region, known: Mapping[Value, Value], recorder: Recorder) -> Region:
    def body(*args: TracedTensor) -> list[Value]:
        inner = {**known, **dict(zip(region.args, (one.value for one in args), strict=True))}
        copy_nodes(region.nodes, inner, recorder)
        return [*renamed(region.outputs, inner)]

    return recorder.region(body, tuple(value.type for value in region.args), "copied")
