"""Larger problems with an optimum known another way: chains by dynamic programming, grids by one integer program."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_array

from autoshard.search.exact.wcsp import CostFactor, CostProblem, MemoryRow, least_memory, solve
from autoshard.search.exact.wcsp.interning import min_out
from tests.search.exact.small_problems import enumerate_all


def ladder(rng: np.random.Generator, blocks: int, first: int, second: int) -> tuple[CostProblem, list[np.ndarray]]:
    """Equal blocks between boundaries of two variables (a residual and its gradient), and the tables of one block.

    Variables 2 b and 2 b + 1 are boundary b; the tables are along each side, across, and from one to the next corner.
    """
    sizes = (first, second)
    along = [rng.random((size, size)) * 5 for size in sizes]
    across, corner, own = rng.random((first, second)), rng.random((first, second)) * 3, rng.random(first)
    factors = []
    for b in range(blocks + 1):
        factors += [CostFactor((2 * b, 2 * b + 1), across), CostFactor((2 * b,), own)]
        if b < blocks:
            factors += [CostFactor((2 * b + side, 2 * b + 2 + side), along[side]) for side in (0, 1)]
            factors.append(CostFactor((2 * b, 2 * b + 3), corner))
    return CostProblem(sizes * (blocks + 1), factors), [*along, across, corner, own]


def by_dynamic_programming(tables: list[np.ndarray], blocks: int) -> float:
    left, right, across, corner, own = tables
    boundary = across + own[:, None]
    reach = boundary
    for _ in range(blocks):
        # reach[a, b] + left[a, c] + corner[a, d] + right[b, d], over a and b.
        over_b = (reach[:, :, None] + right[None, :, :]).min(axis=1) + corner
        reach = (over_b[:, None, :] + left[:, :, None]).min(axis=0) + boundary
    return float(reach.min())


@pytest.mark.parametrize("blocks, first, second", [(200, 25, 25), (31, 7, 12), (1, 5, 3)])
def test_chain_of_equal_blocks(blocks, first, second):
    problem, tables = ladder(np.random.default_rng(blocks), blocks, first, second)
    solution = solve(problem)
    assert solution.proven
    assert solution.value == pytest.approx(by_dynamic_programming(tables, blocks), rel=1e-11)


def test_equal_blocks_are_computed_once():
    """What a chain computes does not grow with its length once its messages have settled."""
    counts = [solve(ladder(np.random.default_rng(5), blocks, 9, 8)[0]).stats["eliminations"] for blocks in (50, 200)]
    assert counts[0] == counts[1] < 100


@pytest.mark.parametrize("cells", [20_000_000, 30])
def test_grid(cells):
    """Cycles everywhere, by elimination and by HiGHS on what small tables leave."""
    rng, side, size = np.random.default_rng(6), 6, 3
    factors = [CostFactor((v,), rng.random(size)) for v in range(side * side)]
    for v in range(side * side):
        factors += [CostFactor((v, v + 1), rng.random((size, size)))] if (v + 1) % side else []
        factors += [CostFactor((v, v + side), rng.random((size, size)))] if v + side < side * side else []
    problem = CostProblem((size,) * side**2, factors)
    solution = solve(problem, cells=cells)
    assert solution.proven
    assert solution.value == pytest.approx(by_integer_program(problem), rel=1e-6)


def by_integer_program(problem: CostProblem) -> float:
    """A binary per choice and per entry of a table with two variables; an entry needs both of its choices."""
    size, pairs = problem.sizes[0], [factor for factor in problem.factors if len(factor.scope) == 2]
    singles = size * len(problem.sizes)
    cost = np.zeros(singles + size * size * len(pairs))
    rows = lil_array((len(problem.sizes) + 2 * size * len(pairs), len(cost)))
    right = np.zeros(rows.shape[0])
    for factor in problem.factors:
        if len(factor.scope) == 1:
            cost[factor.scope[0] * size :][:size] += factor.cost
    for v in range(len(problem.sizes)):
        rows[v, v * size : (v + 1) * size] = 1
        right[v] = 1
    for number, factor in enumerate(pairs):
        start, row = singles + number * size * size, len(problem.sizes) + 2 * size * number
        cost[start : start + size * size] = factor.cost.ravel()
        for i in range(size):
            for j in range(size):
                rows[row + i, start + i * size + j] = 1
                rows[row + size + j, start + i * size + j] = 1
            rows[row + i, factor.scope[0] * size + i] = -1
            rows[row + size + i, factor.scope[1] * size + i] = -1
    whole = np.concatenate([np.ones(singles), np.zeros(len(cost) - singles)])
    found = milp(cost, integrality=whole, bounds=Bounds(0, 1), constraints=LinearConstraint(rows.tocsr(), right, right))
    return float(found.fun)


def with_bytes(rng: np.random.Generator, problem: CostProblem, unit: int) -> CostProblem:
    """The problem with states that always lie there and activations that lie until a block's end."""
    states = rng.integers(1, 40, 9) * unit
    activations = rng.integers(1, 30, 8) * unit
    count = len(problem.sizes) // 2
    always = [((2 * b,), states) for b in range(count)]
    rows = [
        MemoryRow((*always, *(((2 * b + 1,), activations) for b in range(count) if b <= moment)))
        for moment in range(0, count, 3)
    ]
    return CostProblem(problem.sizes, problem.factors, rows)


@pytest.mark.parametrize("unit", [1, 10**9 + 7])
def test_limit_on_a_chain(unit):
    """Between the least feasible limit and none: proven, within the limit, and never cheaper with less memory."""
    rng = np.random.default_rng(8)
    problem = with_bytes(rng, ladder(rng, 6, 9, 8)[0], unit)
    free = solve(problem)
    least = least_memory(problem)
    assert least.nbytes == least.bound < free.peak
    values = []
    for part in (0.0, 0.1, 0.35, 0.7, 1.0):
        limit = least.nbytes + math.floor(part * (free.peak - least.nbytes))
        solution = solve(CostProblem(problem.sizes, problem.factors, problem.rows, limit))
        assert solution.proven and solution.choice is not None
        assert solution.peak == max(problem.bytes_at(solution.choice)) <= limit
        values.append(solution.value)
    assert values == sorted(values, reverse=True) and values[-1] == pytest.approx(free.value)
    tight = CostProblem(problem.sizes, problem.factors, problem.rows, least.nbytes - 1)
    nothing = solve(tight)
    assert nothing.choice is None and nothing.proven


def test_limit_agrees_with_enumeration_of_boundaries():
    """A short chain is still small enough to go through all its choices."""
    rng = np.random.default_rng(9)
    problem = with_bytes(rng, ladder(rng, 2, 9, 8)[0], 3)
    known = enumerate_all(problem)
    for limit in np.quantile(known.peak, [0.001, 0.02, 0.2]).astype(int).tolist():
        solution = solve(CostProblem(problem.sizes, problem.factors, problem.rows, limit))
        assert solution.proven
        assert solution.value == pytest.approx(known.within(limit).min(), rel=1e-9)


@pytest.mark.parametrize(
    "parts",
    [
        [((7, 5), (0, 1)), ((7, 6), (0, 2))],
        [((70, 80), (1, 0)), ((80, 90), (0, 2)), ((80,), (0,))],
        [((60, 50, 4, 40), (1, 2, 0, 3)), ((60, 4), (1, 0)), ((50, 40), (2, 3))],
        [((3, 400), (0, 1)), ((400, 500), (1, 2))],
    ],
)
def test_min_out(parts):
    """In blocks or at once, in whatever order the dims come: the sum, minimized over label 0."""
    rng = np.random.default_rng(11)
    arrays = [(rng.random(shape), labels) for shape, labels in parts]
    letters = "zabc"
    count = max(label for _, labels in parts for label in labels)
    every = letters[: count + 1]
    sizes = {letters[label]: n for shape, labels in parts for n, label in zip(shape, labels, strict=True)}
    total = np.zeros([sizes[letter] for letter in every])
    for array, labels in arrays:
        mine = "".join(letters[label] for label in labels)
        ones = "".join(letter for letter in every if letter not in mine)
        total += np.einsum(f"{mine},{ones}->{every}", array, np.ones([sizes[letter] for letter in ones]))
    np.testing.assert_allclose(min_out(arrays, count), total.min(axis=0), rtol=1e-14)


def test_many_neighbours_without_a_choice():
    """A variable may touch more others than an array has dims, if those have one choice each."""
    rng, count = np.random.default_rng(3), 70
    hub = [CostFactor((0, v), rng.uniform(1, 2, (2, 1))) for v in range(1, count)]
    beyond = [CostFactor((v, count), rng.uniform(1, 2, (1, 5))) for v in range(1, count)]
    problem = CostProblem((2, *[1] * (count - 1), 5), [*hub, *beyond])
    value = sum(factor.cost for factor in hub).min() + sum(factor.cost for factor in beyond).min()
    solution = solve(problem)
    assert solution.proven
    assert problem.value(solution.choice) == pytest.approx(value)
