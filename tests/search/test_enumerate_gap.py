"""What is listed within a gap is all there is, and the least sum of listings is the least of all sums."""

from __future__ import annotations

import itertools
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.search.exact import sparse_elimination as sparse
from autoshard.search.exact.consistency import SparseTables
from autoshard.search.exact.enumerate_gap import TooManyEntries, enumerate_gap
from autoshard.search.exact.min_marginals import MinMarginals
from autoshard.search.exact.sparse_elimination import least_sum
from autoshard.search.multi_layout import MultiLayoutCost


def multi_layout(rng: np.random.Generator, users: int, layouts: int = 4, uses: int = 1) -> MultiLayoutCost:
    """A random price: from each of 3 layouts to each of `layouts`, now and then for nothing."""
    seconds = rng.integers(0, 6, (3, layouts)).astype(float)
    left, own = rng.integers(0, 3, 5), [rng.integers(0, layouts, 5)]
    return MultiLayoutCost.of(seconds, left, own, [rng.integers(0, layouts, (2 + i, uses)) for i in range(users)])


@given(st.integers(0, 4), st.integers(1, 2), st.integers(0, 10**6), st.floats(0, 8))
def test_lists_all_within_the_gap(users, uses, seed, gap):
    rng = np.random.default_rng(seed)
    price = multi_layout(rng, users, uses=uses)
    sizes = [len(price.maker), *map(len, price.kinds)]
    potentials = [rng.normal(size=(2, size)) for size in sizes]
    messages = MinMarginals(price)
    least = messages.least(potentials)
    found = enumerate_gap(messages, potentials, least, gap, 10**6)
    listed = {
        (int(value), *row): excess
        for value, row, excess in zip(found.value, found.choices.tolist(), found.excess, strict=True)
    }
    assert len(listed) == len(found.value)
    for value, *choice in itertools.product(range(2), *map(range, sizes)):
        cost = price.at(choice) + sum(one[value, c] for one, c in zip(potentials, choice, strict=True)) - least[value]
        assert cost >= -1e-9
        if abs(cost - gap) > 1e-9:
            assert ((value, *choice) in listed) == (cost <= gap)
        if (value, *choice) in listed:
            assert listed[value, *choice] == pytest.approx(cost, abs=1e-9)


def test_too_many_are_refused():
    price = multi_layout(np.random.default_rng(1), 3)
    potentials = [np.zeros((1, size)) for size in (len(price.maker), *map(len, price.kinds))]
    messages = MinMarginals(price)
    with pytest.raises(TooManyEntries):
        enumerate_gap(messages, potentials, messages.least(potentials), 1e6, 20)


@st.composite
def sums(draw):
    """Sizes, unary costs, and dense tables over a few of the variables each."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    sizes = [int(rng.integers(1, 5)) for _ in range(draw(st.integers(1, 6)))]
    unary = [rng.integers(0, 4, size).astype(float) for size in sizes]
    factor_graph = []
    for _ in range(draw(st.integers(0, 7))):
        scope = rng.permutation(len(sizes))[: int(rng.integers(1, 4))].tolist()
        factor_graph.append((scope, rng.integers(0, 7, [sizes[v] for v in scope]).astype(float)))
    return sizes, unary, factor_graph


def total(unary, factor_graph, choice) -> float:
    return sum(one[c] for one, c in zip(unary, choice, strict=True)) + sum(
        table[tuple(choice[v] for v in scope)] for scope, table in factor_graph
    )


def listed(scope, table, gap) -> SparseTables:
    rows = np.argwhere(table <= gap)
    return SparseTables(np.array([scope]), np.zeros(len(rows), dtype=np.int64), rows, table[table <= gap])


@given(sums(), st.integers(0, 25), st.sampled_from([1, 3, 1000]), st.sampled_from([1, 12, 1000]))
def test_least_sum_is_the_least_of_all(problem, gap, width, small):
    """In arrays, in rows, and in some of both."""
    sizes, unary, factor_graph = problem
    costs = {choice: total(unary, factor_graph, choice) for choice in itertools.product(*map(range, sizes))}
    best = min(costs.values())
    with mock.patch.object(sparse, "SMALL", small):
        found = least_sum(unary, [listed(scope, table, gap) for scope, table in factor_graph], gap, width)
    if found.choice is not None:
        assert costs[found.choice] == pytest.approx(found.cost)
    assert best > gap or min(found.cost, found.beyond) <= best + 1e-9 <= found.cost + 2e-9
    if width == 1000:
        assert (found.choice is not None) == (best <= gap)
        assert found.choice is None or found.cost == pytest.approx(best)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(1, 12))
def test_of_too_many_rows_the_first_of_the_cheapest_stay(costs, width):
    """As a stable sort has them; what is given up costs at least `beyond`."""
    joins = sparse.RowJoins([30], 3, width, lambda: False)
    cost = np.array(costs, dtype=float)
    good = np.flatnonzero(cost <= 3)
    order = good[np.argsort(cost[good], kind="stable")]
    np.testing.assert_array_equal(joins._kept(cost, good), np.sort(order[:width]))
    assert joins.beyond == (cost[order[width]] if len(order) > width else np.inf)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6)), min_size=1, max_size=40),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6)), min_size=1, max_size=40),
    st.integers(1, 60),
    st.sampled_from([3.0, 7.0, 1e9]),
)
def test_a_join_makes_no_more_rows_than_there_is_room_for(ours, theirs, most, gap):
    """All sums below `beyond` are among its rows, and each row is a sum of both that agree."""
    tables = [
        sparse.RowTable(
            (0, 1 + i),
            np.array([(key, row) for row, (key, _) in enumerate(rows)]),
            np.array([cost for _, cost in rows], float),
        )
        for i, rows in enumerate((ours, theirs))
    ]
    joins = sparse.RowJoins([3, 40, 40], gap, 1 << 18, lambda: False)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sparse, "MOST_JOINED", most)
        found = joins.joined(*tables)
    pairs = [(i, k) for i in range(len(ours)) for k in range(len(theirs)) if ours[i][0] == theirs[k][0]]
    sums = {(i, k): ours[i][1] + theirs[k][1] for i, k in pairs if ours[i][1] + theirs[k][1] <= gap}
    columns = [found.scope.index(v) for v in (1, 2)]
    made = {tuple(row): cost for row, cost in zip(found.rows[:, columns].tolist(), found.cost.tolist(), strict=True)}
    assert made.items() <= sums.items()
    assert len(made) <= max(2 * most, len(ours))
    assert {pair for pair, cost in sums.items() if cost < joins.beyond} <= made.keys()
    assert len(made) == len(sums) or joins.beyond < np.inf
