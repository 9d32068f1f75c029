"""The search for tables too large to write out, on tables that are not: its bounds and plans against the exact ones."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest

from autoshard.search.exact.memory.lagrangian import LagrangianSearch
from autoshard.search.exact.memory.lagrangian_subproblem import LagrangianSubproblem
from autoshard.search.exact.memory.path_relinking import PathRelinking
from autoshard.search.exact.memory.rows import MemoryRows
from autoshard.search.exact.memory.within_limit import solve_within_limit
from autoshard.search.exact.search import solve
from autoshard.search.factor_graph import FactorGraph
from autoshard.util.clock import now
from autoshard.util.errors import MemoryLimitError
from tests.search.test_optimal_memory import forward

LONG = 600.0
"""Seconds that no search here needs: they end by themselves."""


@cache
def small() -> tuple[FactorGraph, MemoryRows]:
    factor_graph = forward("dp=4")
    return factor_graph, MemoryRows(factor_graph)


@cache
def least() -> int:
    with pytest.raises(MemoryLimitError) as refused:
        solve_within_limit(small()[0], 1, LONG)
    return refused.value.needed


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
    exact, found = solve_within_limit(factor_graph, limit, LONG), searched(limit)
    assert exact.proven and found.bound <= exact.value * (1 + 1e-9)
    assert found.best is None or exact.value <= found.value * (1 + 1e-9)
    if found.best is not None:
        assert int(rows.at(found.best).max()) <= limit and factor_graph.seconds(found.best) == found.value
    assert share == 0.0 or found.closed, "so few choices are looked at completely"


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
