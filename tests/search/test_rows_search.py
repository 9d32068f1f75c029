"""The search for tables too large to write out, on tables that are not: its bounds and plans against the exact ones."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest

from autoshard.search.exact.memory.lagrangian import Relink, RowsSearch
from autoshard.search.exact.memory.lagrangian_subproblem import PricedSearch
from autoshard.search.exact.memory.rows import MemoryRows
from autoshard.search.exact.memory.within_limit import settle_within
from autoshard.search.exact.search import settle
from autoshard.search.factor_graph import Tables
from autoshard.util.clock import now
from autoshard.util.errors import MemoryLimitError
from tests.search.test_optimal_memory import forward

LONG = 600.0
"""Seconds that no search here needs: they end by themselves."""


@cache
def small() -> tuple[Tables, MemoryRows]:
    tables = forward("dp=4")
    return tables, MemoryRows(tables)


@cache
def least() -> int:
    with pytest.raises(MemoryLimitError) as refused:
        settle_within(small()[0], 1, LONG)
    return refused.value.needed


def searched(limit: int, work: bool = True) -> RowsSearch:
    search = RowsSearch(small()[1], limit, now() + LONG, work)
    search.run()
    return search


def test_the_least_memory_is_within_the_interval():
    tables, rows = small()
    most = int(rows.at(settle(tables).choice).max())
    found = searched(most, work=False)
    assert found.best is not None
    assert found.bound * most <= least() * (1 + 1e-9) and least() <= found.value * most * (1 + 1e-9)
    assert int(rows.at(found.best).max()) == round(found.value * most)
    assert found.gap < 0.05


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7])
def test_the_optimum_is_between_bound_and_plan(share):
    tables, rows = small()
    free = settle(tables)
    limit = round(least() + share * (int(rows.at(free.choice).max()) - least()))
    exact, found = settle_within(tables, limit, LONG), searched(limit)
    assert exact.proven and found.bound <= exact.value * (1 + 1e-9)
    assert found.best is None or exact.value <= found.value * (1 + 1e-9)
    if found.best is not None:
        assert int(rows.at(found.best).max()) <= limit and tables.seconds(found.best) == found.value
    assert share == 0.0 or found.closed, "so few choices are looked at completely"


def test_bounds_at_prices_are_below_all_choices_and_choices_are_near_them():
    tables, rows = small()
    rng = np.random.default_rng(8)
    for _ in range(3):
        prices = np.zeros(rows.model.moments)
        prices[rng.integers(len(prices), size=2)] = rng.random(2) * 1e-10
        priced = rows.priced(prices)
        search = PricedSearch(priced, math.inf)
        found = search.choice()
        assert found is not None
        assert search.lower <= priced.seconds(found) * (1 + 1e-9)
        for _ in range(200):
            other = [int(rng.integers(size)) for size in tables.sizes]
            assert search.lower <= priced.seconds(other) * (1 + 1e-9)


def test_what_fits_is_taken_over_from_a_faster_choice():
    tables, rows = small()
    free = settle(tables).choice
    high, tight = int(rows.at(free).max()), settle_within(tables, least(), LONG).choice
    for limit in (least(), (least() + high) // 2, high):
        for found in Relink(rows, limit).between(tight, free):
            assert int(rows.at(found).max()) <= limit
            assert all(one in pair for one, *pair in zip(found, tight, free, strict=True))
            assert tables.seconds(found) <= tables.seconds(tight) * (1 + 1e-9)
