"""Random plans that split dims unevenly: any strategy that ranks can run, any layout for what lies between."""

from __future__ import annotations

import numpy as np

from autoshard.ir.graph import Graph, Node
from autoshard.layout import AxisRef, Layout, Mesh
from autoshard.plan import CONFIGURED, Cause, Decision, Option, Plan
from autoshard.strategy import Strategy, is_runnable, size_of

MESHES = ("8", "2x4", "2x2x2", "6", "3x2")


def pieces(mesh: Mesh, rng: np.random.Generator) -> list[AxisRef]:
    """The axes of the mesh in any order, some cut in two."""
    found = []
    for name, size in mesh.axes:
        cuts = [n for n in range(2, size) if size % n == 0]
        axis = mesh.axis(name)
        if cuts and rng.random() < 0.4:
            found += axis.split(int(rng.choice(cuts)))
        else:
            found.append(axis)
    return [found[i] for i in rng.permutation(len(found))]


def strategy_of(node: Node, mesh: Mesh, rng: np.random.Generator) -> Strategy:
    """A random strategy, uneven ones included."""
    axes: list[tuple[AxisRef, ...]] = [()] * len(node.rule.factors)
    splittable = [i for i, factor in enumerate(node.rule.factors) if factor.splittable]
    for piece in pieces(mesh, rng):
        if not splittable or rng.random() < 0.2:
            continue
        i = int(rng.choice(splittable))
        more = [*axes[:i], (*axes[i], piece), *axes[i + 1 :]]
        if is_runnable(node.rule, [size_of(refs) for refs in more]):
            axes = more
    return Strategy(node.rule, mesh, tuple(axes))


def layout_of(shape: tuple[int, ...], mesh: Mesh, rng: np.random.Generator) -> Layout:
    """A random final layout, in at most as many parts per dim as it has elements."""
    dims: list[tuple[AxisRef, ...]] = [()] * len(shape)
    for piece in pieces(mesh, rng):
        i = int(rng.integers(len(shape) + 1))
        if i < len(shape) and size_of((*dims[i], piece)) <= shape[i]:
            dims[i] = (*dims[i], piece)
    return Layout(mesh, dims)


def random_plan(graph: Graph, mesh: Mesh, rng: np.random.Generator) -> Plan:
    """A strategy for every operator; results are left as they come, or as some layout has them."""
    layouts = {value: layout_of(value.type.shape, mesh, rng) for value in graph.inputs}
    decisions = {}
    for node in graph.nodes:
        strategy = strategy_of(node, mesh, rng)
        decisions[node] = Decision(Option(strategy, 0.0, 0.0, 0.0), Cause(CONFIGURED))
        for value, layout in zip(node.results, strategy.result_layouts, strict=True):
            layouts[value] = layout if rng.random() < 0.7 else layout_of(value.type.shape, mesh, rng)
    outputs = tuple(
        layouts[value].final() if rng.random() < 0.5 else layout_of(value.type.shape, mesh, rng)
        for value in graph.outputs
    )
    for value, replaced in graph.tied.items():
        layouts[replaced] = layout_of(value.type.shape, mesh, rng)
        outputs = tuple(
            layouts[replaced] if one is value else layout for one, layout in zip(graph.outputs, outputs, strict=True)
        )
    return Plan(graph, mesh, decisions, layouts, outputs)


def is_uneven(plan: Plan) -> bool:
    """Whether some strategy splits a factor into parts that do not divide it."""
    return any(
        factor.size % parts
        for decision in plan.decisions.values()
        for factor, parts in zip(decision.strategy.rule.factors, decision.strategy.parts, strict=True)
    )
