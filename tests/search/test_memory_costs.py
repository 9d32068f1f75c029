"""Tables with bytes priced: written out, joined and restricted they say the same, and messages are never above them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.search.exact.memory.copies import SpanCost, SpanMinMarginals, scaled
from autoshard.search.exact.memory.lagrangian_subproblem import JoinedGraph, TableCost, TableMinMarginals
from autoshard.search.exact.reduce import ReducedFactor, ReducedGraph
from autoshard.search.exact.srmp import Srmp
from autoshard.search.multi_layout import MultiLayoutCost


def spanned(rng: np.random.Generator, users: int, wants: int = 1) -> SpanCost:
    """A price of random tables; longer spans (more users) cost more, as a copy's do."""
    kinds, layouts = int(rng.integers(2, 4)), int(rng.integers(2, 5))
    seconds = rng.random((kinds, layouts))
    seconds[rng.random((kinds, layouts)) < 0.15] = np.inf
    rows = tuple(rng.integers(layouts, size=(int(rng.integers(2, 4)), wants)) for _ in range(users))
    own = rng.random((users, 2))
    weights = [tuple(own[[bits >> u & 1 == 1 for u in range(users)]].sum(axis=0)) for bits in range(1 << users)]
    nbytes, moving = rng.integers(9, size=(2, kinds, layouts))
    which = tuple(rng.integers(len(one), size=5) for one in rows)
    plain = (seconds, rng.random(kinds), rng.integers(kinds, size=6), rows, which)
    return SpanCost(*plain, nbytes, moving, tuple((float(a), float(b)) for a, b in weights))


def same(one: float, other: float) -> bool:
    return one == other or math.isclose(one, other, rel_tol=1e-9)


@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(1, 2))
def test_a_spanned_price_says_the_same_written_out_restricted_and_along(seed, users, wants):
    rng = np.random.default_rng(seed)
    price = spanned(rng, users, wants)
    sizes = len(price.maker), *map(len, price.kinds)
    keep = [rng.permutation(size)[:4] for size in sizes]
    small = price.restricted(keep)
    choice = [int(rng.integers(4)) for _ in sizes]
    full = [int(kept[one]) for kept, one in zip(keep, choice, strict=True)]
    at = price.at(full)
    assert same(small.at(choice), at) and same(float(price.dense[tuple(full)]), at)
    for position, one in enumerate(full):
        assert same(float(price.along(position, full)[one]), at)


def test_a_copy_is_paid_once_for_the_set_that_shares_it():
    """Two users of one layout: seconds once, bytes over the span of both; of two layouts: each its own."""
    seconds, nbytes, moving = np.array([[0.0, 3.0, 5.0]]), np.array([[0, 10, 100]]), np.array([[0, 1, 2]])
    users = (np.array([[1], [2]]), np.array([[1], [2]]))
    weights = ((0.0, 0.0), (0.25, 1.0), (0.5, 0.0), (2.0, 0.5))
    parts = (seconds, np.zeros(1), np.zeros(1, int), users, (np.arange(2), np.arange(2)))
    price = SpanCost(*parts, nbytes, moving, weights)
    assert price.at([0, 0, 0]) == 3.0 + 2.0 * 10 + 0.5 * 1
    assert price.at([0, 0, 1]) == (3.0 + 0.25 * 10 + 1.0 * 1) + (5.0 + 0.5 * 100)


@given(st.integers(0, 2**32 - 1), st.integers(2, 3))
def test_messages_are_exact_where_written_and_never_above_where_not(seed, users):
    rng = np.random.default_rng(seed)
    price = spanned(rng, users)
    potentials = [rng.random((1, size)) for size in (len(price.maker), *map(len, price.kinds))]
    total = price.dense.copy()
    for position, one in enumerate(potentials):
        shape = [1] * total.ndim
        shape[position] = -1
        total = total + one[0].reshape(shape)
    written = TableCost.of(price.by_kinds, (price.maker, *price.kinds))
    for messages, exact in ((TableMinMarginals(written), True), (SpanMinMarginals(price), False)):
        grouped = [messages.grouped(position, one) for position, one in enumerate(potentials)]
        least = float(messages.least_grouped(grouped)[0])
        assert least == pytest.approx(total.min()) if exact and total.min() < 1e3 else least <= total.min() + 1e-9
        for position in range(total.ndim):
            away = tuple(dim for dim in range(total.ndim) if dim != position)
            wanted = total.min(axis=away) - potentials[position][0]
            mine = messages.message(position, grouped)[0]
            assert (mine <= wanted + 1e-9).all()
            if exact:
                assert mine[wanted < 1e3] == pytest.approx(wanted[wanted < 1e3])


class Few:
    """A chain of three variables with several prices between the same ones."""

    def __init__(self, rng: np.random.Generator) -> None:
        host = spanned(rng, 2)
        self.sizes = len(host.maker), *map(len, host.kinds)
        self.choices = [range(size) for size in self.sizes]
        self.unary = [rng.random(size) for size in self.sizes]
        plain = replace(TableCost.of(rng.random(self.sizes[:2]), (np.arange(self.sizes[0]), np.arange(self.sizes[1]))))
        wants = np.arange(self.sizes[2])[:, None]
        seconds, kinds = rng.random(self.sizes[1:]), tuple(map(np.arange, self.sizes[1:]))
        back = MultiLayoutCost(seconds, np.zeros(self.sizes[1]), kinds[0], (wants,), kinds[1:])
        self.factors = [ReducedFactor((0, 1, 2), host), ReducedFactor((0, 1), plain), ReducedFactor((1, 2), back)]

    def cost(self, choice, prices) -> float:
        own = sum(float(costs[one]) for costs, one in zip(self.unary, choice, strict=True))
        return own + sum(price.multi_layout.at([choice[v] for v in price.scope]) for price in prices)


@given(st.integers(0, 2**32 - 1))
def test_joined_prices_sum_and_bound_better(seed):
    rng = np.random.default_rng(seed)
    factor_graph = Few(rng)
    merged = JoinedGraph(factor_graph)
    assert [price.scope for price in merged.factors] == [(0, 1, 2)]
    every = [tuple(index) for index in np.ndindex(*factor_graph.sizes)]
    costs = [factor_graph.cost(choice, factor_graph.factors) for choice in every]
    for choice, cost in zip(every, costs, strict=True):
        assert same(factor_graph.cost(choice, merged.factors), cost)
    bounds = Srmp(merged)
    bounds.tighten(20, math.inf, 1e-9)
    assert bounds.lower <= min(costs) + 1e-9
    if min(costs) < 1e3:
        assert bounds.lower == pytest.approx(min(costs)), "one price over all variables leaves no gap"


def test_what_a_second_counts_scales_seconds_alone():
    rng = np.random.default_rng(3)
    price = spanned(rng, 2)
    plain = MultiLayoutCost(price.seconds, price.base, price.maker, price.users, price.kinds)
    choice = [0, 1, 2]
    assert same(scaled(plain, 0.25).at(choice), 0.25 * plain.at(choice))


@given(st.integers(0, 2**32 - 1))
def test_marginals_of_what_was_folded_away_are_below_what_choices_cost(seed):
    rng = np.random.default_rng(seed)
    factor_graph = Few(rng)
    factor_graph.factors = factor_graph.factors[1:]  # a chain, of which ends are taken out
    folded = ReducedGraph(factor_graph)
    assert len(folded.variables) < len(factor_graph.sizes)
    merged = JoinedGraph(folded)
    bounds = Srmp(merged)
    bounds.tighten(20, math.inf, 1e-9)
    every = [tuple(index) for index in np.ndindex(*factor_graph.sizes)]
    costs = np.array([factor_graph.cost(choice, factor_graph.factors) for choice in every])
    for variable, rises in enumerate(folded.marginals(bounds.reduced())):
        for choice, rise in enumerate(rises.tolist()):
            least = min(cost for one, cost in zip(every, costs, strict=True) if one[variable] == choice)
            assert bounds.lower + rise <= least + 1e-9
        assert rises.min() == pytest.approx(0.0, abs=1e-9)
