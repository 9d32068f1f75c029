"""Random small problems: the exact search agrees with going through all choices, with and without memory rows."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from autoshard.search.exact.wcsp import CostFactor, CostProblem, MemoryRow, TableSolution, least_memory, solve
from autoshard.util.errors import PlanError
from tests.search.exact.small_problems import Enumerated, enumerate_all, random_limit, random_problem

# Tables of at most so many cells: all steps by elimination, few of them, none (bounds, labels and HiGHS do the rest).
CELLS = [20_000_000, 4, 1]


def check_solution(problem: CostProblem, known: Enumerated, solution: TableSolution) -> None:
    costs = known.within(problem.limit)
    best = costs.min()
    assert solution.proven
    if not np.isfinite(best):
        assert solution.choice is None and solution.value == solution.bound == np.inf
        return
    assert solution.choice is not None
    assert costs[solution.choice] == pytest.approx(best, rel=1e-9, abs=1e-12)
    assert solution.value == pytest.approx(best, rel=1e-9, abs=1e-12)
    assert solution.bound <= best + 1e-9 * abs(best) + 1e-12
    assert solution.bound >= solution.value - 1e-9 * abs(best) - 1e-9
    assert solution.peak == known.peak[solution.choice]


def check_least(problem: CostProblem, known: Enumerated, cells: int) -> None:
    allowed = np.isfinite(known.cost)
    if not allowed.any():
        with pytest.raises(PlanError, match="no choice that the tables allow"):
            least_memory(problem, cells=cells)
        return
    least = least_memory(problem, cells=cells)
    assert least.nbytes == least.bound == known.peak[allowed].min()
    assert allowed[least.choice] and known.rows[least.row][least.choice] == least.nbytes


@pytest.mark.parametrize("part", range(4))
def test_two_thousand_problems(part):
    rng = np.random.default_rng(part)
    for number in range(500):
        problem = random_problem(rng, with_rows=number % 2 == 0)
        known = enumerate_all(problem)
        if problem.rows:
            check_least(problem, known, CELLS[0])
            problem = CostProblem(problem.sizes, problem.factors, problem.rows, random_limit(rng, known))
        check_solution(problem, known, solve(problem))


@pytest.mark.parametrize("cells", CELLS[1:])
def test_without_room_for_tables(cells):
    rng = np.random.default_rng(cells)
    for number in range(60):
        problem = random_problem(rng, with_rows=number % 3 == 0)
        known = enumerate_all(problem)
        if problem.rows:
            check_least(problem, known, cells)
            problem = CostProblem(problem.sizes, problem.factors, problem.rows, random_limit(rng, known))
        check_solution(problem, known, solve(problem, cells=cells))


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32), scale=st.sampled_from([1e-30, 1e-6, 1.0, 1e12]), shift=st.sampled_from([0.0, 1.0, -1e6])
)
def test_scale_does_not_matter(seed, scale, shift):
    """Costs from very small to very large, and far from zero."""
    problem = random_problem(np.random.default_rng(seed), with_rows=False)
    factors = [CostFactor(factor.scope, (factor.cost + shift) * scale) for factor in problem.factors]
    moved = CostProblem(problem.sizes, factors)
    costs = enumerate_all(moved).cost
    solution = solve(moved)
    assert solution.proven
    assert (solution.choice is None) == (not np.isfinite(costs.min()))
    if solution.choice is not None:
        assert solution.value == pytest.approx(costs.min(), rel=1e-9)


def test_no_time_gives_a_bound_and_what_is_known():
    rng = np.random.default_rng(11)
    sizes = (5,) * 16
    factors = [CostFactor((i, j), rng.random((5, 5))) for i in range(16) for j in range(i)]
    problem = CostProblem(sizes, factors)
    solution = solve(problem, time_limit=0.0)
    assert solution.choice is not None and not solution.proven
    assert solution.value == pytest.approx(problem.value(solution.choice))
    assert 0 <= solution.bound < solution.value


def test_start_is_not_lost():
    """A start that no single change improves is at least as good as what comes back, whatever the time."""
    rng = np.random.default_rng(12)
    factors = [CostFactor((i, j), rng.random((4, 4))) for i in range(14) for j in range(i)]
    problem = CostProblem((4,) * 14, factors)
    start = tuple(int(c) for c in rng.integers(0, 4, 14))
    assert solve(problem, start=start, time_limit=0.0).value <= problem.value(start)


def test_progress_tells_bounds_and_values():
    rng = np.random.default_rng(13)
    factors = [CostFactor((i, j), rng.random((6, 6))) for i in range(12) for j in range(i)]
    told: list[tuple[float, float]] = []
    solution = solve(CostProblem((6,) * 12, factors), progress=lambda *both: told.append(both), cells=100, time_limit=2)
    assert told
    assert all(bound <= value + 1e-9 for bound, value in told)
    assert told[-1][1] >= solution.value - 1e-9


@pytest.mark.parametrize(
    "build, words",
    [
        (
            lambda: CostProblem((2, 3), [CostFactor((0, 1), np.zeros((3, 2)))]),
            r"shape \(3, 2\) over variables \(0, 1\)",
        ),
        (lambda: CostProblem((2,), [CostFactor((1,), np.zeros(2))]), "must name distinct variables of 0..0"),
        (lambda: CostProblem((2,), [CostFactor((0, 0), np.zeros((2, 2)))]), "distinct"),
        (lambda: CostProblem((2,), [CostFactor((0,), np.array([0.0, np.nan]))]), "nan"),
        (lambda: CostProblem((2,), [CostFactor((0,), np.array([0.0, -np.inf]))]), "-inf"),
        (lambda: CostProblem((2,), [], [MemoryRow((((0,), np.zeros(2)),))]), "float64, not integers"),
        (lambda: least_memory(CostProblem((2,), [])), "without rows"),
    ],
)
def test_what_cannot_be_a_problem(build, words):
    with pytest.raises(PlanError, match=words):
        build()


def test_a_choice_too_few():
    """A variable without choices makes everything impossible, and is no error."""
    assert solve(CostProblem((2, 0), [CostFactor((0,), np.zeros(2))])).choice is None
