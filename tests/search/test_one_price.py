"""One price: what searches minimize, what bounds bound, and what is told of a plan, on random programs with loops.

The seconds that are told of a plan are those of its program, passes included. Sums by which searches go are the same in
tables, drafts and plans, and a proof speaks of programs: no mode's program takes less than what `optimal` proves.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import autoshard as ash
from autoshard import ops
from autoshard.cost.evaluate import evaluate, plan_seconds
from autoshard.cost.prices import prices_for
from autoshard.layout.mesh import Mesh
from autoshard.partition.lower import lower
from autoshard.pipeline.compare import compare
from autoshard.plan.plan import Plan
from autoshard.search import Problem, find_mode
from autoshard.search.assignment import Assignment, Pricing
from autoshard.search.exact.over_mesh_cuts import small_optimum
from autoshard.search.modes.batch import batch_parallel
from autoshard.search.program_price import price_of, program_of
from autoshard.search.registry import plan_flat
from autoshard.transform.planned_graph import planned_graph
from autoshard.util.errors import AutoshardError, PlanError
from costmodel import preset
from tests.oracle.grown import grown

MODES = ("sharding_propagation", "bfs", "batch", "dynamic_programming")
MESHES = ("4", "2x2", "2x3")
SEEDS = range(14)
LOOPS = (40, 96, 116)
"""Programs whose loops and branches are used behind them as nowhere inside."""
UNEVEN = (15,)
"""Programs with a value whose size no layout of the mesh divides."""
NONE = 1e-9


@cache
def problem(seed: int) -> Problem:
    """A random program, every second one with its gradient, others with loops and branches."""
    rng = np.random.default_rng([seed, 77])
    mesh = Mesh.parse(MESHES[seed % len(MESHES)])
    graph, _ = planned_graph(grown(rng, uneven=False, gradient=seed % 2 == 1).graph, {})
    return Problem(graph, mesh, preset("h100" if seed % 4 < 2 else "cpu").for_ranks(mesh.devices))


@cache
def planned(seed: int, mode: str) -> Plan | None:
    try:
        return find_mode(mode)(problem(seed))
    except AutoshardError:
        return None


@pytest.mark.parametrize("seed", SEEDS)
def test_no_mode_takes_less_than_what_is_proven(seed):
    best = planned(seed, "optimal")
    if best is None:
        pytest.skip("an operator that no table has")
    stats = best.search_stats
    assert stats["seconds"] == price_of(problem(seed), best)
    assert 0 <= stats["bound"] <= stats["seconds"] * (1 + NONE)
    for mode in MODES:
        plan = planned(seed, mode)
        if plan is not None:
            assert price_of(problem(seed), plan) >= stats["bound"] * (1 - NONE), mode
            assert not stats["proven"] or price_of(problem(seed), plan) >= stats["seconds"] * (1 - NONE), mode


@pytest.mark.parametrize("seed", SEEDS)
def test_the_default_is_above_no_mode(seed):
    ours = price_of(problem(seed), planned(seed, "sharding_propagation"))
    for mode in ("bfs", "batch"):
        assert ours <= price_of(problem(seed), planned(seed, mode)) * (1 + NONE), mode


@pytest.mark.parametrize("seed", (*SEEDS, *LOOPS, *UNEVEN))
def test_all_sums_agree(seed):
    """Of tables (the least sum), of a draft of the flat graph, and of the plan of the nested graph."""
    one = problem(seed)
    prices = prices_for(one.hardware)

    def lying_best(problem: Problem) -> Plan:
        """Inputs and ties in the layouts that a draft finds best for a mode's strategies."""
        plan = batch_parallel(problem)
        assignment = Assignment(Pricing(problem, prices), {node: plan.strategy(node) for node in problem.graph.nodes})
        layouts = assignment.layouts()
        return replace(
            plan, layouts=layouts, outputs=problem.outputs(layouts), search_stats={"draft": assignment.seconds}
        )

    plan = plan_flat(lying_best, one)
    assert plan_seconds(plan, prices) == pytest.approx(plan.search_stats["draft"], rel=1e-9)
    with suppress(PlanError):
        least = plan_flat(small_optimum, one)
        assert plan_seconds(least, prices) == pytest.approx(least.search_stats["seconds"], rel=1e-9)


@pytest.mark.parametrize("seed", SEEDS[::3])
def test_programs_cost_what_is_told_of_them(seed):
    plan = planned(seed, "batch")
    whole, _ = program_of(plan, problem(seed).hardware, problem(seed).passes)
    cost = evaluate(whole, plan.graph, problem(seed).hardware)
    assert cost.seconds == price_of(problem(seed), plan)
    assert sum(one.seconds for one in cost.axes) == pytest.approx(cost.communication_seconds, rel=1e-9, abs=1e-15)
    plain = replace(problem(seed), passes=())
    assert price_of(plain, plan) == evaluate(lower(plan), plan.graph, plain.hardware).seconds


def test_the_same_number_everywhere():
    x, w, v = (np.ones(shape, np.float32) for shape in ((24, 16), (16, 32), (32, 8)))

    def model(x, w, v):
        return ops.matmul(ops.relu(ops.matmul(x, w)), v)

    rows = {row.mode: row for row in compare(model, (x, w, v), [Mesh.parse("dp=2 tp=4")])}
    best = ash.plan(model, (x, w, v), "dp=2 tp=4", search="optimal")
    for mode, row in rows.items():
        if row.cost is None:
            continue
        one = ash.plan(model, (x, w, v), "dp=2 tp=4", search=mode)
        assert one.cost.seconds == row.cost.seconds == row.to_json()["seconds"], mode
        assert one.to_json()["cost"]["seconds"] == one.cost.seconds, mode
        assert one.cost.seconds >= best.plan.search_stats["bound"] * (1 - NONE), mode
        assert one.cost.seconds >= rows["sharding_propagation"].cost.seconds * (1 - NONE), mode
    assert best.cost.seconds == best.plan.search_stats["seconds"]


def test_inputs_of_loops_are_paid_once():
    """The product inside of the loop wants the weight whole: one gather before the loop, whatever its trips."""

    def f(x, w):
        body = lambda c: [ops.add(c[0], np.int32(1)), ops.tanh(ops.matmul(c[1], w))]  # noqa: E731
        return ops.while_loop(lambda c: ops.less(c[0], np.int32(10)), body, [np.int32(0), x])[1]

    square = np.ones((512, 512), np.float32)
    layouts = ((1, 4), (4, 1))
    found = {
        mode: ash.plan(f, (square, square), "dp=4", hardware="h100", dataset_strategy=layouts, search=mode)
        for mode in ("optimal", "sharding_propagation")
    }
    gathers = [one for one in found["optimal"].plan.redistributions if one.value.name == "w"]
    assert [one.times for one in gathers] == [1]
    assert found["sharding_propagation"].cost.seconds == pytest.approx(found["optimal"].cost.seconds, rel=1e-9)
