"""Random programs by random plans that split dims unevenly: any strategy that ranks can run, any layout between them;
and the check that what such a plan becomes gives what the whole program gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from autoshard.core.strategy import Strategy, is_runnable, size_of
from autoshard.ir.flow import Boundary, borders, is_nest, node_links
from autoshard.ir.graph import Graph, Node, Value
from autoshard.ir.text import show
from autoshard.layout import AxisRef, Layout, Mesh
from autoshard.ops.control import OPERAND, RESULT
from autoshard.partition.program import Program
from autoshard.partition.verify import verify_program
from autoshard.plan.plan import CONFIGURED, Cause, Decision, Option, Plan
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm
from autoshard.trace.evaluate import evaluate
from tests.oracle import test_programs as programs

MESHES = ("8", "2x4", "2x2x2", "6", "3x2")


def random_program(seed: int, stream: int, gradients: bool = True) -> tuple[np.random.Generator, Mesh, Graph, list]:
    """The generator that went on, a mesh, a random program (every second with its gradient) and what it is fed.

    `stream` tells programs of one seed apart that are made for several tests.
    """
    rng = np.random.default_rng([seed, stream])
    graph = programs.random_graph(rng)
    feeds = programs.feeds_for(graph, rng)
    graph = programs.with_gradient(graph) if gradients and seed % 2 else graph
    return rng, Mesh.parse(MESHES[seed % len(MESHES)]), graph, feeds


def check_equals_whole(program: Program, graph: Graph, feeds: Sequence[np.ndarray]) -> None:
    """A program is legal, and gives on virtual ranks what its graph of f64 gives on whole tensors."""
    verify_program(program)
    got = Executor(program, LocalComm(program.mesh.devices))(*feeds)
    for value, ours, theirs in zip(graph.outputs, got, evaluate(graph, feeds), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), value.name
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-11, err_msg=f"{value.name} of\n{show(graph)}")


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


def carrying(node: Node, strategy: Strategy, rng: np.random.Generator) -> Strategy:
    """The strategy, with terms of a sum that pass through along a free axis if the operator is linear."""
    free = strategy.free()
    sets = node.op.linear_in(len(node.operands))
    if not free or not sets or strategy.rule.reduction != "sum" or node.given_rule is not None:
        return strategy
    members = sets[int(rng.integers(len(sets)))]
    if not all(node.operand_types[i].dtype.is_float for i in members):
        return strategy
    return Strategy(node.rule, strategy.mesh, strategy.axes, free[:1], members)


def boundary_of(node: Node, mesh: Mesh, rng: np.random.Generator) -> Boundary:
    """A loop or branch with some layout for each of its results; what a loop carries enters as it leaves."""
    leaving = [layout_of(value.type.shape, mesh, rng) for value in node.results]
    entering = [Layout.replicated(mesh, value.type.rank) for value in node.operands]
    for spot, edge in node_links(node).sources.items():
        owner = edge.targets[0]
        if spot.kind == OPERAND and owner.kind == RESULT:
            entering[spot.index] = leaving[owner.index]
    return Boundary.of(node, mesh, entering, leaving)


class _Planning:
    """Decisions and layouts of a random plan."""

    def __init__(self, mesh: Mesh, rng: np.random.Generator, carries: float, fixed: Mapping[Node, Strategy]) -> None:
        self.mesh, self.rng, self.carries, self.fixed = mesh, rng, carries, fixed
        self.decisions: dict[Node, Decision] = {}
        self.layouts: dict[Value, Layout] = {}

    def nodes(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            strategy = self.strategy(node)
            self.decisions[node] = Decision(Option(strategy, 0.0, 0.0, 0.0), Cause(CONFIGURED))
            for value, layout in zip(node.results, strategy.result_layouts, strict=True):
                stays = is_nest(node) or self.rng.random() < 0.7
                self.layouts[value] = layout if stays else layout_of(value.type.shape, self.mesh, self.rng)
            for i, region in enumerate(node.regions):
                self.layouts.update(zip(region.args, borders(node, strategy, i).args, strict=True))
                self.nodes(region.nodes)

    def strategy(self, node: Node) -> Strategy:
        if node in self.fixed:
            return self.fixed[node]
        if is_nest(node):
            return boundary_of(node, self.mesh, self.rng)
        strategy = strategy_of(node, self.mesh, self.rng)
        return carrying(node, strategy, self.rng) if self.carries and self.rng.random() < self.carries else strategy


def random_plan(
    graph: Graph,
    mesh: Mesh,
    rng: np.random.Generator,
    carries: float = 0.0,
    fixed: Mapping[Node, Strategy] = MappingProxyType({}),
) -> Plan:
    """A strategy for every operator; results are left as they come, or as some layout has them.

    `carries` is how often a linear operator lets terms of a sum pass; `fixed` are operators that run as is said.
    """
    planning = _Planning(mesh, rng, carries, fixed)
    planning.layouts.update((value, layout_of(value.type.shape, mesh, rng)) for value in graph.inputs)
    planning.nodes(graph.nodes)
    layouts = planning.layouts
    outputs = tuple(
        layouts[value].final() if rng.random() < 0.5 else layout_of(value.type.shape, mesh, rng)
        for value in graph.outputs
    )
    for value, replaced in graph.tied.items():
        layouts[replaced] = layout_of(value.type.shape, mesh, rng)
        outputs = tuple(
            layouts[replaced] if one is value else layout for one, layout in zip(graph.outputs, outputs, strict=True)
        )
    return Plan(graph, mesh, planning.decisions, layouts, outputs)


def is_uneven(plan: Plan) -> bool:
    """Whether some strategy splits a factor into parts that do not divide it."""
    return any(
        factor.size % parts
        for decision in plan.decisions.values()
        for factor, parts in zip(decision.strategy.rule.factors, decision.strategy.parts, strict=True)
    )
