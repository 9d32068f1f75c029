"""What folding leaves of a sum of prices has the same least sum, and says the choice of everything."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.search.exact.reduce import ReducedFactor, ReducedGraph
from autoshard.search.multi_layout import MultiLayoutCost


@dataclass(frozen=True)
class Sums:
    """A small sum of prices."""

    choices: list[object]
    unary: list[np.ndarray]
    sizes: tuple[int, ...]
    factors: list[ReducedFactor]

    def seconds(self, choice) -> float:
        own = sum(float(costs[i]) for costs, i in zip(self.unary, choice, strict=True) if len(costs))
        return own + sum(price.multi_layout.at([choice[v] for v in price.scope]) for price in self.factors)

    def least(self) -> float:
        return min(self.seconds(choice) for choice in itertools.product(*map(range, self.sizes)))


def drawn(sizes: tuple[int, ...], scopes: list[tuple[int, ...]], seed: int) -> Sums:
    """Random costs; variables of equal size share their costs' array now and then, and a few moves are impossible."""
    rng = np.random.default_rng(seed)
    multi_layout = {size: rng.random(size) for size in sizes}
    unary = [(multi_layout[size], rng.random(size), np.zeros(0))[rng.integers(3)] for size in sizes]
    known: dict[tuple[int, ...], MultiLayoutCost] = {}
    factors = []
    for scope in scopes:
        key = tuple(sizes[v] for v in scope)
        if key not in known or rng.random() < 0.5:
            known[key] = price(key, rng)
        factors.append(ReducedFactor(scope, known[key]))
    return Sums([size for size in sizes], unary, sizes, factors)


def price(sizes: tuple[int, ...], rng: np.random.Generator) -> MultiLayoutCost:
    layouts = 4
    seconds = np.where(rng.random((3, layouts)) < 0.1, np.inf, rng.integers(0, 9, (3, layouts)).astype(float))
    seconds[:, 0] = 1.0
    wants = [rng.integers(0, layouts, (size, 1 + int(rng.integers(2)))) for size in sizes[1:]]
    return MultiLayoutCost.of(seconds, rng.integers(0, 3, sizes[0]), [rng.integers(0, layouts, sizes[0])], wants)


def shapes():
    """Sizes of six variables, and scopes of two or three of them."""
    scope = st.lists(st.integers(0, 5), min_size=2, max_size=3, unique=True).map(tuple)
    return st.tuples(st.lists(st.integers(1, 3), min_size=6, max_size=6).map(tuple), st.lists(scope, max_size=9))


@given(shapes(), st.integers(0, 10**6))
def test_the_least_sum_stays(shape, seed):
    sizes, scopes = shape
    sums = drawn(sizes, scopes, seed)
    folded = ReducedGraph(sums)
    left = Sums(folded.choices, folded.unary, folded.sizes, folded.factors)
    assert left.least() == pytest.approx(sums.least(), rel=1e-12)


@given(shapes(), st.integers(0, 10**6))
def test_a_choice_of_what_is_left_is_completed_at_its_price(shape, seed):
    sizes, scopes = shape
    sums = drawn(sizes, scopes, seed)
    folded = ReducedGraph(sums)
    left = Sums(folded.choices, folded.unary, folded.sizes, folded.factors)
    for choice in itertools.islice(itertools.product(*map(range, folded.sizes)), 20):
        whole, seconds = folded.complete(choice), left.seconds(choice)
        assert [whole[v] for v in folded.variables] == list(choice)
        if math.isfinite(seconds):
            assert sums.seconds(whole) == pytest.approx(seconds, rel=1e-12)


def test_chains_and_leaves_go():
    """A chain of five with leaves shrinks to one variable, a ring too; what joins four in twos stays."""
    chain = [(0, 1), (1, 2), (3, 2), (3, 4), (1, 5), (5, 1), (6, 3)]
    assert len(ReducedGraph(drawn((3, 4, 2, 3, 4, 3, 2), chain, 1)).variables) == 1
    assert len(ReducedGraph(drawn((3, 4, 2), [(0, 1, 2), (0, 1)], 1)).variables) == 1
    assert len(ReducedGraph(drawn((3, 4, 2, 3), [(0, 1, 2), (1, 2, 3), (3, 0)], 1)).variables) == 4


def test_equal_surroundings_stay_equal_objects():
    """Two equal chains between equal ends are one price, used twice."""
    sums = drawn((3, 4, 3, 3, 4, 3), [], 5)
    rng = np.random.default_rng(5)
    first, second, all_three = price((3, 4), rng), price((4, 3), rng), price((3, 3, 3), rng)
    factors = [
        ReducedFactor((0, 1), first),
        ReducedFactor((1, 2), second),
        ReducedFactor((3, 4), first),
        ReducedFactor((4, 5), second),
    ]
    factors += [
        ReducedFactor((0, 2, 3), all_three),
        ReducedFactor((2, 3, 5), all_three),
        ReducedFactor((5, 0, 2), all_three),
    ]
    unary = [np.zeros(3), np.arange(4.0)]
    sums = Sums(sums.choices, [unary[0], unary[1], unary[0], unary[0], unary[1], unary[0]], sums.sizes, factors)
    folded = ReducedGraph(sums)
    assert folded.variables == (0, 2, 3, 5)
    joined = [one.multi_layout for one in folded.factors if len(one.scope) == 2]
    assert len(joined) == 2 and joined[0] is joined[1]
