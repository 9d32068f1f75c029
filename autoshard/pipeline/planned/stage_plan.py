"""The plan of a stage: one search over all that its devices do for one micro batch, and once in a step.

What a stage gets of others is an input that may lie as it likes; gradients are the very values that the update reads,
so that they are left partial where summing them up later is cheapest: they are accumulated so, and reduced once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autoshard.ir.fusion import fused
from autoshard.ir.graph import DATA, STATE, Graph, Node, Value, region_values, walk
from autoshard.layout.layout import Layout
from autoshard.pipeline.stages.cut import StagePiece
from autoshard.pipeline.stages.whole import StagedStep
from autoshard.plan.plan import Plan
from autoshard.transform.micro.accumulate import told_in_order
from autoshard.transform.planned_graph import planned_graph
from costmodel import Hardware


@dataclass(frozen=True)
class StageGraph:
    """What a stage does, as one graph, and its pieces, whose nodes are those of the graph."""

    graph: Graph
    pieces: Mapping[str, StagePiece]
    annotations: Mapping[Node, Any]


def stage_graph(whole: StagedStep, number: int, annotations: Mapping[Node, Any], hardware: Hardware) -> StageGraph:
    """The pieces of a stage in a row, each as it is planned.

    Args:
        annotations: what people fixed of nodes of the step's graph.
    """
    step = whole.pipeline.step
    found, said = {}, {}
    for kind, piece in whole.stages[number].items():
        given = {
            node: annotations[of]
            for node in walk(piece.graph.nodes)
            if (of := step.body.of.get(node, node)) in annotations
        }
        graph, given = planned_graph(piece.graph, given)
        if hardware.device.fusion != "none":
            graph, became = fused(graph)
            given = {became.get(node, node): one for node, one in given.items()}
        found[kind] = replace(piece, graph=graph)
        said.update(given)
    nodes = tuple(node for piece in found.values() for node in piece.graph.nodes)
    made = dict.fromkeys(value for node in nodes for value in node.results)
    used = dict.fromkeys(value for piece in found.values() for value in piece.graph.inputs)
    inputs = tuple(value for value in used if value not in made)
    outputs = tuple(dict.fromkeys(_leaving(whole, number, found)))
    roles = tuple(_role(whole, number, value) for value in inputs)
    name = f"{step.graph.name}.stage{number}"
    cotangents = _cotangents(whole, inputs, nodes)
    graph = Graph(name, inputs, nodes, outputs, roles, _updates(whole, inputs, outputs), cotangents)
    return StageGraph(graph, found, said)


def _leaving(whole: StagedStep, number: int, pieces: Mapping[str, StagePiece]) -> Sequence[Value]:
    """What a stage makes for others, and results of the step."""
    wanted = {value for other in whole.pieces if other.stage != number for value in other.graph.inputs}
    wanted.update(whole.outputs)
    values = (value for piece in pieces.values() for value in piece.graph.outputs)
    return [value for value in values if value in wanted]


def _role(whole: StagedStep, number: int, value: Value) -> str:
    step = whole.pipeline.step
    if value in step.graph.role_of:
        return step.graph.role_of[value]
    # Rows of data are whole on every rank; what others make may come as is best.
    return STATE if whole.maker(value, number) is not None and value not in step.body.slices else DATA


def _updates(whole: StagedStep, inputs: Sequence[Value], outputs: Sequence[Value]) -> dict[int, int]:
    places = {value: i for i, value in enumerate(inputs)}
    tied = {}
    for value, of in whole.tied.items():
        if of in places and value in outputs:
            tied[outputs.index(value)] = places[of]
    return tied


def _cotangents(whole: StagedStep, inputs: Sequence[Value], nodes: Sequence[Node]) -> dict[Value, Value]:
    """Which gradients of a micro batch are gradients of which of its values, as far as the stage has both, and makes
    the gradient later: not the first one, 1 of the loss."""
    step = whole.pipeline.step
    stands_for = {
        value: one
        for node, original in step.body.of.items()
        for one, value in zip(node.results, original.results, strict=True)
    }
    pairs = ((stands_for.get(grad, grad), stands_for.get(of, of)) for grad, of in step.graph.cotangents.items())
    return told_in_order(dict(pairs), inputs, nodes)


def piece_plan(
    plan: Plan,
    piece: StagePiece,
    held: Mapping[Value, Layout],
    outputs: Sequence[tuple[Value, Layout]],
    tied: Mapping[Value, Value],
) -> Plan:
    """What a stage's plan says of one piece.

    Args:
        held: layouts of inputs that lie otherwise than the stage's plan says.
        outputs: values and the layouts in which they leave.
        tied: results of the step and the inputs that they replace, each in its memory where they lie alike.
    """
    graph = replace(piece.graph, nodes=_as_planned(plan, piece), outputs=tuple(value for value, _ in outputs))
    layouts = {value: plan.layouts[value] for node in graph.nodes for value in _values(node)}
    layouts.update({value: held[value] if value in held else plan.layouts[value] for value in graph.inputs})
    places = {value: i for i, value in enumerate(graph.inputs)}
    replaced = ((i, tied.get(value), layout) for i, (value, layout) in enumerate(outputs))
    updates = {i: places[of] for i, of, layout in replaced if of in places and layouts[of] is layout}
    roles = tuple(STATE if i in updates.values() else role for i, role in enumerate(graph.roles))
    graph = replace(graph, roles=roles, updates=updates)
    decisions = {node: plan.decisions[node] for node in walk(graph.nodes)}
    return Plan(graph, plan.mesh, decisions, layouts, tuple(layout for _, layout in outputs), search=plan.search)


def _as_planned(plan: Plan, piece: StagePiece) -> tuple[Node, ...]:
    """A piece's nodes as its stage's plan runs them: a plan may take attention as a ring."""
    return tuple(plan.graph.producers[node.results[0]][0] if node.results else node for node in piece.graph.nodes)


def _values(node: Node) -> Sequence[Value]:
    return (*node.results, *region_values(node.regions))
