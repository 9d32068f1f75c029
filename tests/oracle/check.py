"""The oracle: an operator run split on virtual ranks must give what it gives whole, for every strategy it has."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from autoshard.core.enumerate import enumerate_strategies
from autoshard.core.strategy import Strategy
from autoshard.core.tensortype import type_of
from autoshard.ir.graph import Builder, Graph, Node
from autoshard.layout import Layout, Mesh
from autoshard.ops.registry import Operator, lookup
from autoshard.partition.lower import lower
from autoshard.plan.plan import CONFIGURED, Cause, Decision, Option, Plan
from autoshard.redistribute.planner import plan_steps
from autoshard.runtime.comm import Comm
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm
from autoshard.runtime.steps import run_step
from autoshard.search import Problem
from autoshard.search.greedy.bfs import propagations
from autoshard.trace.evaluate import evaluate
from autoshard.transform.grad import gradient
from costmodel import preset
from tests.partition.uneven_plans import random_plan

EIGHT, SIX = ("8", "2x4", "2x2x2"), ("6",)


def single(op: Operator, arrays: Sequence[np.ndarray], attrs: dict) -> tuple[Graph, Node]:
    """A graph of one operator on inputs of the arrays' types."""
    builder = Builder(op.name)
    inputs = [builder.input(type_of(array), f"x{i}") for i, array in enumerate(arrays)]
    node = builder.add(op, inputs, op.check_attributes(attrs), op.name.lower())
    return builder.build(node.results), node


def plan_with(graph: Graph, node: Node, strategy: Strategy) -> Plan:
    """The plan that runs the one node by this strategy, from whole inputs to completed outputs."""
    option = Option(strategy, 0.0, 0.0, 0.0)
    layouts = {value: Layout.replicated(strategy.mesh, value.type.rank) for value in graph.inputs}
    layouts.update(zip(node.results, strategy.result_layouts, strict=True))
    outputs = tuple(layout.final() for layout in strategy.result_layouts)
    return Plan(graph, strategy.mesh, {node: Decision(option, Cause(CONFIGURED))}, layouts, outputs)


def differing(strategies: Sequence[Strategy], share: int = 0, of: int = 1) -> list[Strategy]:
    """One strategy for each way to split the factors into numbers of parts.

    The others differ from it by which axes make the parts, and in which order; the one that is taken is the first for
    the first way, the second for the second, and so on in turn. Of the ways, each `of`-th is taken, from `share` on.
    """
    found: dict[tuple[int, ...], list[Strategy]] = {}
    for strategy in strategies:
        found.setdefault(strategy.parts, []).append(strategy)
    ways = [found[parts] for parts in sorted(found)]
    return [alike[i % len(alike)] for i, alike in enumerate(ways)][share::of]


def check_forward(
    op: Operator,
    arrays: Sequence[np.ndarray],
    attrs: dict,
    mesh: Mesh,
    rtol: float = 1e-5,
    comm: Comm | None = None,
    share: int = 0,
    of: int = 1,
) -> int:
    """Compare differing strategies with the whole run, on virtual ranks or those of `comm`.

    Of them each `of`-th is taken, from `share` on; returns how many.
    """
    comm = comm or LocalComm(mesh.devices)
    graph, node = single(op, arrays, attrs)
    whole = op.evaluate(arrays, node.attrs)
    strategies = differing(enumerate_strategies(node.rule, mesh), share, of)
    for strategy in strategies:
        plan = plan_with(graph, node, strategy)
        run_and_compare(plan, arrays, whole, comm, rtol, f"{op.name} {attrs} by {strategy}")
    return len(strategies)


def run_and_compare(
    plan: Plan, feeds: Sequence[np.ndarray], whole: Sequence[np.ndarray], comm: Comm, rtol: float, what: str
) -> None:
    """The plan's program on the ranks of `comm` against what its graph gives whole."""
    outputs = Executor(lower(plan), comm)(*feeds)
    for got, want in zip(outputs, whole, strict=True):
        assert_same(got, want, rtol, f"{what} on {plan.mesh}, rule {plan.graph.nodes[0].rule}")


def check_gradient(
    op: Operator,
    arrays: Sequence[np.ndarray],
    attrs: dict,
    mesh: Mesh,
    rtol: float = 1e-4,
    comm: Comm | None = None,
    share: int = 0,
    of: int = 1,
) -> int:
    """Fix the operator to one strategy after another, plan its gradient around it, and compare.

    A search plans around the first; around the others operators are split, and tensors laid, in any way: programs that
    no search would pick. Of the differing strategies each `of`-th is taken, from `share` on; returns how many.
    """
    comm = comm or LocalComm(mesh.devices)
    graph, node, feeds = _with_gradient(op, arrays, attrs)
    whole = evaluate(graph, feeds)
    strategies = differing(enumerate_strategies(node.rule, mesh), share, of)
    for i, strategy in enumerate(strategies):
        if i == 0:
            plan = propagations(Problem(graph, mesh, preset("cpu"), fixed={node: strategy}))[0]
        else:
            plan = random_plan(graph, mesh, np.random.default_rng([i, 5]), fixed={node: strategy})
        run_and_compare(plan, feeds, whole, comm, rtol, f"gradient of {op.name} {attrs} by {strategy}")
    return len(strategies)


def _with_gradient(op: Operator, arrays: Sequence[np.ndarray], attrs: dict) -> tuple[Graph, Node, list[np.ndarray]]:
    """The operator, a scalar out of its float results by fixed weights, and the gradients of its float operands."""
    forward, node = single(op, arrays, attrs)
    builder = Builder.after(forward, f"{op.name}_gradient")
    rng = np.random.default_rng(7)
    feeds, terms = list(arrays), []
    for value in node.results:
        if value.type.dtype.is_float:
            weights = builder.input(value.type, "weights")
            feeds.append(rng.normal(size=value.type.shape).astype(value.type.dtype.numpy))
            product = builder.add(lookup("Mul"), [value, weights], {}).results[0]
            total = lookup("ReduceSum")
            terms.append(builder.add(total, [product], total.check_attributes({})).results[0])
    while len(terms) > 1:
        terms[:2] = builder.add(lookup("Add"), terms[:2], {}).results
    floats = [value for value in forward.inputs if value.type.dtype.is_float]
    graph, grads = gradient(builder.build(terms), terms[0], floats)
    outputs = [grads[value] for value in floats]
    return Graph(graph.name, graph.inputs, graph.nodes, tuple(outputs), graph.roles), node, feeds


def carrying(op: Operator, node: Node, mesh: Mesh) -> Iterator[Strategy]:
    """Strategies that let terms of a sum pass through, for each linear set and each mesh axis that is left over."""
    sets = op.linear_in(len(node.operands))
    for strategy, members in itertools.product(differing(enumerate_strategies(node.rule, mesh)), sets):
        for ref in strategy.free()[:1]:
            yield Strategy(node.rule, mesh, strategy.axes, (ref,), members)


def check_linear(op: Operator, arrays: Sequence[np.ndarray], attrs: dict, mesh: Mesh, seed: int = 0) -> int:
    """Feed terms of a sum where the operator says it is linear; the results' terms must sum to the whole result."""
    _, node = single(op, arrays, attrs)
    whole = op.evaluate(arrays, node.attrs)
    comm, count = LocalComm(mesh.devices), 0
    for strategy in carrying(op, node, mesh):
        held = [
            _terms(array, layout, comm, np.random.default_rng(seed + i))
            for i, (array, layout) in enumerate(zip(arrays, strategy.operand_layouts, strict=True))
        ]
        graph, _ = single(op, arrays, attrs)
        made = graph.nodes[0]
        layouts = dict(
            zip((*graph.inputs, *made.results), (*strategy.operand_layouts, *strategy.result_layouts), strict=True)
        )
        decision = Decision(Option(strategy, 0.0, 0.0, 0.0), Cause(CONFIGURED))
        plan = Plan(graph, mesh, {made: decision}, layouts, strategy.result_layouts)
        for parts, layout, want in zip(
            Executor(lower(plan), comm).run(held), strategy.result_layouts, whole, strict=True
        ):
            for step in plan_steps(layout, Layout.replicated(mesh, want.ndim), want.shape):
                parts = run_step(step, parts, comm)
            assert_same(parts[0], want, 1e-4, f"{op.name} {attrs} by {strategy} on {mesh}")
        count += 1
    return count


def _terms(array: np.ndarray, layout: Layout, comm: LocalComm, rng: np.random.Generator) -> list[np.ndarray]:
    """Blocks whose terms along the partial axes sum to the array."""
    blocks = [array[layout.block(rank, array.shape)].copy() for rank in comm.ranks]
    if not layout.partial:
        return blocks
    groups = layout.mesh.groups(layout.partial)
    for rank in comm.ranks:
        members = groups.members(rank)
        if members[0] != rank:
            continue
        noise = [rng.normal(size=blocks[rank].shape).astype(array.dtype) for _ in members[1:]]
        for member, term in zip(members[1:], noise, strict=True):
            blocks[member] = term
        blocks[rank] = blocks[rank] - sum(noise)
    return blocks


def assert_same(got: np.ndarray, want: np.ndarray, rtol: float, what: str) -> None:
    assert got.dtype == want.dtype and got.shape == want.shape, (
        f"{what}: {got.dtype}{got.shape} != {want.dtype}{want.shape}"
    )
    if want.dtype.kind != "f":
        np.testing.assert_array_equal(got, want, err_msg=what)
        return
    scale = float(np.max(np.abs(want[np.isfinite(want)]), initial=0.0))
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * max(scale, 1e-30), err_msg=what)
