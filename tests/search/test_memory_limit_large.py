"""A memory limit on tables too large to write out: bounds hold, plans keep it, states are split, little is refused."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest

from autoshard.cost.memory import peak_memory
from autoshard.cost.prices import prices_for
from autoshard.layout.mesh import Mesh
from autoshard.search import Problem, evaluate_plan
from autoshard.search.domains import mesh_units_of
from autoshard.search.exact.memory.columns import MemoryProgram
from autoshard.search.exact.memory.lagrangian import LagrangianSearch
from autoshard.search.exact.memory.rows import MemoryRows
from autoshard.search.exact.memory.within_limit import solve_within_limit
from autoshard.search.exact.over_mesh_cuts import plan_of_assignment
from autoshard.search.exact.search import Solution, solve
from autoshard.search.exact.srmp import Srmp
from autoshard.search.factor_graph import FactorGraph
from autoshard.util.clock import now
from autoshard.util.errors import MemoryLimitError
from benchmarks.models import transformer_step
from costmodel import preset

HARDWARE = preset("h100")
LONG = 300.0
"""Seconds that no search here needs: they end by themselves."""
SHORT = 5.0
"""Seconds after which a search says what it has found, proven or not."""


@cache
def training() -> FactorGraph:
    """A block's training step; wide against its few tokens, so that parameters and their states fill memory."""
    step = transformer_step(1, 1, 1, hidden=256, heads=4, vocabulary=96, sequence=8, batch=4)
    mesh = Mesh(dp=2)
    return FactorGraph(Problem(step.graph, mesh, HARDWARE), prices_for(HARDWARE), mesh_units_of(mesh, step.graph))


@cache
def rows() -> MemoryRows:
    return MemoryRows(training())


@cache
def free() -> Solution:
    return solve(training(), LONG)


@cache
def least() -> LagrangianSearch:
    search = LagrangianSearch(rows(), peak_memory(plan_of_assignment(training(), free())), now() + SHORT, work=False)
    search.run()
    return search


def near(rng: np.random.Generator) -> tuple[int, ...]:
    """The free choice with some variables chosen otherwise, as far as a plan can."""
    choice = list(free().choice)
    for v in rng.permutation(len(choice))[:12].tolist():
        before, choice[v] = choice[v], int(rng.integers(training().sizes[v]))
        if not math.isfinite(training().seconds(choice)):
            choice[v] = before
    return tuple(choice)


def test_rows_are_what_plans_need_and_bounds_are_below_all_of_them():
    rng = np.random.default_rng(4)
    prices = np.zeros(rows().model.moments)
    prices[rng.integers(len(prices), size=3)] = rng.random(3) * free().value / 1e6
    priced = rows().priced(prices)
    bounds = Srmp(priced)
    lower = bounds.tighten(5, math.inf, 1e-6) + float(prices @ rows().constants)
    for _ in range(6):
        choice = near(rng)
        nbytes = rows().at(choice)
        assert int(nbytes.max()) == peak_memory(plan_of_assignment(training(), Solution(choice, 1.0, 0.0)))
        assert lower <= training().seconds(choice) + float(prices @ nbytes) + 1e-12


def test_a_program_of_one_choice_each_tells_its_bytes_and_seconds():
    rng = np.random.default_rng(5)
    for _ in range(3):
        choice = near(rng)
        nbytes = rows().at(choice)
        moment, keep = int(nbytes.argmax()), [np.array([one]) for one in choice]
        fast, small = (MemoryProgram(rows(), keep, 2**50 if work else 10**6, work) for work in (True, False))
        for program in (fast, small):
            program.add_row(moment)
            for number, more in rows().spots(choice, moment):
                program.add_spot(number, more, choice)
        assert fast.solved(10.0).bound == pytest.approx(training().seconds(choice), rel=1e-6)
        answer = small.solved(10.0)
        assert answer.columns is not None
        assert answer.columns[small.excess] * 10**6 == pytest.approx(int(nbytes[moment]), abs=2)


@cache
def tight() -> tuple[int, Solution]:
    """A limit nearer to the least than to what the free plan needs, and what is found within it."""
    most = peak_memory(plan_of_assignment(training(), free()))
    limit = round((0.2 + 0.8 * least().value) * most)
    return limit, solve_within_limit(training(), limit, SHORT, free().bound)


def test_plans_keep_the_limit_and_cost_no_less_than_the_bound():
    limit, found = tight()
    plan = plan_of_assignment(training(), found)
    assert least().bound <= least().value < 1 and peak_memory(plan) <= limit
    assert free().value * (1 - 1e-9) <= found.value and free().bound <= found.bound <= found.value
    assert evaluate_plan(plan, HARDWARE).seconds == pytest.approx(found.value, rel=1e-9)


def test_states_are_split_over_the_data_axis_when_memory_is_short():
    """Whole parameters and states in each rank are the fastest; short of memory the states are split, as in ZeRO."""
    roomy, short = (plan_of_assignment(training(), settled) for settled in (free(), tight()[1]))
    graph = training().graph
    states = [value for value, role in zip(graph.inputs, graph.roles, strict=True) if role == "state"]

    def split(plan) -> int:
        return sum(value.type.nbytes for value in states if any(plan.layouts[value].dims))

    assert split(short) > split(roomy) and split(short) > sum(value.type.nbytes for value in states) / 2


def test_less_than_any_plan_needs_is_refused():
    limit = math.ceil(least().bound * peak_memory(plan_of_assignment(training(), free()))) // 2
    with pytest.raises(MemoryLimitError, match="needs|the least that is possible") as refused:
        solve_within_limit(training(), limit, LONG)
    assert refused.value.needed > limit and " at " in str(refused.value)
