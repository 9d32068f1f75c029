"""Search under a memory limit, on a problem so small that all its assignments are known: held against them."""

from __future__ import annotations

import math
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

from autoshard.search.exact.memory import integer_program
from autoshard.search.exact.memory.lagrangian import LagrangianSearch
from autoshard.search.exact.memory.lagrangian_subproblem import LagrangianSubproblem
from autoshard.search.exact.memory.path_relinking import PathRelinking
from autoshard.search.exact.memory.rows import MemoryRows
from autoshard.search.exact.memory.within_limit import solve_within_limit
from autoshard.search.exact.search import solve
from autoshard.search.factor_graph import FactorGraph
from autoshard.util.clock import now
from autoshard.util.errors import MemoryLimitError
from tests.search.test_optimal import dense_factors
from tests.search.test_optimal_memory import forward

LONG = 600.0
"""Seconds that no search here needs: they end by themselves."""


@cache
def small() -> tuple[FactorGraph, MemoryRows]:
    factor_graph = forward("dp=4")
    return factor_graph, MemoryRows(factor_graph)


def spread(scope: tuple[int, ...], array: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    """An array over some variables as one over all of them."""
    shape = [sizes[v] if v in scope else 1 for v in range(len(sizes))]
    return array.transpose(np.argsort(scope)).reshape(shape)


@cache
def every() -> tuple[np.ndarray, np.ndarray]:
    """Over all assignments: seconds, and bytes at the moment that needs most."""
    factor_graph, rows = small()
    place, sizes = factor_graph.position, factor_graph.sizes
    seconds = sum((spread(*one, sizes) for one in dense_factors(factor_graph)), np.zeros(sizes))
    peak = np.zeros(sizes, np.int64)
    for moment in range(rows.model.moments):
        nbytes = np.zeros(sizes, np.int64)
        for term in rows.model.terms:
            if term.first <= moment <= term.last:
                table = np.asarray(term.table(lambda variable: rows.choices(place[variable])))
                nbytes = nbytes + spread(tuple(place[v] for v in term.variables), table, sizes)
        peak = np.maximum(peak, nbytes)
    return seconds, peak


@cache
def least() -> int:
    seconds, peak = every()
    return int(peak[np.isfinite(seconds)].min())


def optimum(limit: int) -> float:
    seconds, peak = every()
    return float(seconds[peak <= limit].min())


def searched(limit: int, work: bool = True) -> LagrangianSearch:
    search = LagrangianSearch(small()[1], limit, now() + LONG, work)
    search.run()
    return search


def test_the_least_memory_is_within_the_interval():
    factor_graph, rows = small()
    most = int(rows.at(solve(factor_graph).choice).max())
    found = searched(most, work=False)
    assert found.best is not None
    assert found.bound * most <= least() * (1 + 1e-9) and least() <= found.value * most * (1 + 1e-9)
    assert int(rows.at(found.best).max()) == round(found.value * most)
    assert found.gap < 0.05


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7])
def test_the_optimum_is_between_bound_and_plan(share):
    factor_graph, rows = small()
    free = solve(factor_graph)
    limit = round(least() + share * (int(rows.at(free.choice).max()) - least()))
    found, best = searched(limit), optimum(limit)
    assert found.best is not None and found.closed, "so few choices are looked at completely"
    assert found.bound <= best * (1 + 1e-9) and found.value == pytest.approx(best, rel=1e-9)
    assert int(rows.at(found.best).max()) <= limit and factor_graph.seconds(found.best) == found.value


def test_a_limit_is_refused_below_the_least_and_only_there():
    factor_graph, rows = small()
    assert int(rows.at(solve_within_limit(factor_graph, least(), LONG).choice).max()) == least()
    with pytest.raises(MemoryLimitError, match="the least that is possible is") as refused:
        solve_within_limit(factor_graph, least() - 1, LONG)
    assert refused.value.needed == least()


def test_bounds_at_prices_are_below_all_choices_and_choices_are_near_them():
    factor_graph, rows = small()
    rng = np.random.default_rng(8)
    for _ in range(3):
        prices = np.zeros(rows.model.moments)
        prices[rng.integers(len(prices), size=2)] = rng.random(2) * 1e-10
        priced = rows.priced(prices)
        search = LagrangianSubproblem(priced, math.inf)
        found = search.choice()
        assert found is not None
        assert search.lower <= priced.seconds(found) * (1 + 1e-9)
        for _ in range(200):
            other = [int(rng.integers(size)) for size in factor_graph.sizes]
            assert search.lower <= priced.seconds(other) * (1 + 1e-9)


def test_what_fits_is_taken_over_from_a_faster_choice():
    factor_graph, rows = small()
    free = solve(factor_graph).choice
    high, tight = int(rows.at(free).max()), solve_within_limit(factor_graph, least(), LONG).choice
    for limit in (least(), (least() + high) // 2, high):
        for found in PathRelinking(rows, limit).between(tight, free):
            assert int(rows.at(found).max()) <= limit
            assert all(one in pair for one, *pair in zip(found, tight, free, strict=True))
            assert factor_graph.seconds(found) <= factor_graph.seconds(tight) * (1 + 1e-9)


def test_a_program_that_other_work_cut_off_is_given_the_rest_of_its_processor_time(monkeypatch):
    """Of two seconds it was given 0.1, in as long: it is asked once more, with twenty times as much as is left."""
    times, limits = iter([0.0, 0.1]), []

    def milp(cost, **given):
        limits.append(given["options"]["time_limit"])
        return SimpleNamespace(status=1 if len(limits) == 1 else 0)

    monkeypatch.setattr("scipy.optimize.milp", milp)
    monkeypatch.setattr(integer_program, "now", lambda: next(times))
    walls = iter([5.0, 7.0])
    monkeypatch.setattr(integer_program, "perf_counter", lambda: next(walls))
    found = integer_program.least_of(np.ones(2), np.ones(2), np.ones(2), [], 2.0)
    assert found.status == 0 and limits == pytest.approx([2.0, 1.9 * 2.0 / 0.1])
