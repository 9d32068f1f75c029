"""Reduces a factor graph: eliminates variables with factors to one or two others only.

One other gets the minimum as unary cost, two others get a factor between them. What is left has the same least sum, and
`complete` finds the choices of what was eliminated. (Bucket elimination: Dechter, "Bucket elimination: a unifying
framework for reasoning", AIJ 113, 1999, in its cheap cases.) Equal surroundings are eliminated once and give the same
array objects, so that equal layers stay equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from autoshard.search.multi_layout import MultiLayoutCost

CELLS = 1 << 20
"""How many sums taking out a variable may take."""
ROUNDS = 6
"""How often a variable is looked at again, at most, after what is beside it has changed."""


class GraphFactor(Protocol):
    """A price over variables, the maker first."""

    @property
    def scope(self) -> tuple[int, ...]: ...

    @property
    def multi_layout(self) -> MultiLayoutCost: ...


class GraphicalModel(Protocol):
    """Variables with choices, costs of their own, and prices over a few of them each; as `FactorGraph` has them."""

    @property
    def choices(self) -> Sequence[object]: ...

    @property
    def unary(self) -> Sequence[np.ndarray]: ...

    @property
    def sizes(self) -> tuple[int, ...]: ...

    @property
    def factors(self) -> Sequence[GraphFactor]: ...


@dataclass(frozen=True, eq=False)
class ReducedFactor:
    """A price of a sum that is left: of the tables, or between the neighbours of what was taken out."""

    scope: tuple[int, ...]
    multi_layout: MultiLayoutCost


@dataclass(frozen=True, eq=False)
class _Out:
    """A variable that was taken out: its own costs then, its prices with its position in each, and who else they are
    over."""

    variable: int
    unary: np.ndarray
    places: tuple[tuple[ReducedFactor, int], ...]
    others: tuple[int, ...]

    @property
    def key(self) -> tuple:
        """The same for equal surroundings."""
        order = {v: i for i, v in enumerate(self.others)}
        scopes = (tuple(order.get(v, -1) for v in factor.scope) for factor, _ in self.places)
        return id(self.unary), *zip((id(factor.multi_layout) for factor, _ in self.places), scopes, strict=True)


class ReducedGraph:
    """What is left of a factor graph; `variables` are the positions of what is left in it."""

    def __init__(self, factor_graph: GraphicalModel) -> None:
        self._sizes = factor_graph.sizes
        self._unary = [
            own if len(own) else zeros
            for own, zeros in zip(factor_graph.unary, _zeros(factor_graph.unary, factor_graph.sizes), strict=True)
        ]
        self._around: list[dict[ReducedFactor, int]] = [{} for _ in factor_graph.choices]
        self._made: dict[tuple, tuple[np.ndarray, list[np.ndarray]]] = {}
        self._sums: dict[tuple[int, int], np.ndarray] = {}
        self._between_two: dict[tuple, MultiLayoutCost] = {}
        self._out: list[_Out] = []
        for factor in factor_graph.factors:
            self._enter(ReducedFactor(factor.scope, factor.multi_layout))
        self._run()
        gone = {out.variable for out in self._out}
        self.variables = tuple(v for v in range(len(self._sizes)) if v not in gone)
        place = {v: i for i, v in enumerate(self.variables)}
        self.choices = [factor_graph.choices[v] for v in self.variables]
        self.unary = [self._unary[v] for v in self.variables]
        self.sizes = tuple(self._sizes[v] for v in self.variables)
        left = dict.fromkeys(factor for v in self.variables for factor in self._around[v])
        self.factors = [ReducedFactor(tuple(place[v] for v in factor.scope), factor.multi_layout) for factor in left]

    def complete(self, choice: Sequence[int]) -> tuple[int, ...]:
        """The tables' choice that is best with a choice of what is left."""
        found = [0] * len(self._sizes)
        for variable, one in zip(self.variables, choice, strict=True):
            found[variable] = int(one)
        known: dict[tuple, int] = {}
        for out in reversed(self._out):
            key = (*out.key, *(found[v] for v in out.others))
            if key not in known:
                costs = out.unary
                for factor, position in out.places:
                    costs = costs + factor.multi_layout.along(position, [found[v] for v in factor.scope])
                known[key] = int(costs.argmin())
            found[out.variable] = known[key]
        return tuple(found)

    def marginals(self, reduced: Sequence[np.ndarray]) -> list[np.ndarray]:
        """For each variable of the tables, by how much a bound rises at least if a choice is made.

        Args:
            reduced: the same for what is left. What was taken out costs above its least what it costs around it, and
                at least as much as the choices of its neighbours.
        """
        found: list[np.ndarray] = [np.zeros(0)] * len(self._sizes)
        for variable, one in zip(self.variables, reduced, strict=True):
            found[variable] = one
        for out in reversed(self._out):
            total, kinds = self._summed(out)
            least = np.zeros([1] * total.ndim)
            for dim, (other, which) in enumerate(zip(out.others, kinds, strict=True), start=1):
                rise = np.full(total.shape[dim], np.inf)
                np.minimum.at(rise, which, found[other])
                least = np.maximum(least, rise.reshape([-1 if at == dim else 1 for at in range(total.ndim)]))
            lowest = total.min(axis=0)
            above = np.subtract(total, lowest, out=np.full(total.shape, np.inf), where=np.isfinite(total))
            found[out.variable] = (above + least).min(axis=tuple(range(1, total.ndim)))
        return found

    # -- taking out

    def _enter(self, factor: ReducedFactor) -> None:
        for position, variable in enumerate(factor.scope):
            self._around[variable][factor] = position

    def _run(self) -> None:
        """Take out what can be; neighbours of what went are looked at again."""
        waiting = dict.fromkeys(range(len(self._sizes)))
        while waiting:
            again: dict[int, None] = {}
            for variable in waiting:
                out = self._found(variable)
                if len(out.others) in (1, 2) and self._cells(out) <= CELLS:
                    self._take(out)
                    again.update(dict.fromkeys(out.others))
            waiting = again

    def _found(self, variable: int) -> _Out:
        places = self._around[variable]
        others = dict.fromkeys(v for factor in places for v in factor.scope if v != variable)
        return _Out(variable, self._unary[variable], tuple(places.items()), tuple(others))

    def _cells(self, out: _Out) -> int:
        """At most how many sums are made to take it out."""
        return len(out.unary) * math.prod(self._sizes[v] for v in out.others)

    def _take(self, out: _Out) -> None:
        for factor, _ in out.places:
            for v in factor.scope:
                del self._around[v][factor]
        self._out.append(out)
        if out.key not in self._made:
            self._made[out.key] = self._least(out)
        seconds, kinds = self._made[out.key]
        if len(out.others) == 1:
            self._own(out.others[0], seconds, kinds[0])
        else:
            self._enter(ReducedFactor(out.others, self._between(out.key, seconds, *kinds)))

    def _own(self, variable: int, seconds: np.ndarray, kinds: np.ndarray) -> None:
        """Add to a variable's own costs."""
        key = id(self._unary[variable]), id(seconds)
        if key not in self._sums:
            self._sums[key] = self._unary[variable] + seconds[kinds]
        self._unary[variable] = self._sums[key]

    def _between(self, key: tuple, seconds: np.ndarray, first: np.ndarray, second: np.ndarray) -> MultiLayoutCost:
        """A price between two, [kinds of the first, kinds of the second]."""
        if key not in self._between_two:
            wants = np.arange(seconds.shape[1])[:, None]
            self._between_two[key] = MultiLayoutCost(seconds, np.zeros(len(seconds)), first, (wants,), (second,))
        return self._between_two[key]

    def _least(self, out: _Out) -> tuple[np.ndarray, list[np.ndarray]]:
        """The least of a variable and its prices by the kinds of each of the others, and what kind each choice is."""
        total, kinds = self._summed(out)
        return total.min(axis=0), kinds

    def _summed(self, out: _Out) -> tuple[np.ndarray, list[np.ndarray]]:
        """[choices, kinds of each of the others] the sum of a variable and its prices, and what kind each choice is."""
        factors = [factor for factor, _ in out.places]
        kinds, some = [], {out.variable: np.arange(len(out.unary))}
        for other in out.others:
            some[other], which = kinds_of(other, factors)
            kinds.append(which)
        return summed(factors, some, out.unary.reshape(-1, *[1] * len(kinds))), kinds


def kinds_of(variable: int, factors: Sequence[ReducedFactor]) -> tuple[np.ndarray, np.ndarray]:
    """A choice of each kind of a variable's choices that some factors tell apart, and the kind of each choice."""
    own = [one.multi_layout.kind_of(one.scope.index(variable)) for one in factors if variable in one.scope]
    _, first, which = np.unique(np.stack(own), axis=1, return_index=True, return_inverse=True)
    return first, which.reshape(-1)


def summed(
    factors: Sequence[ReducedFactor], some: Mapping[int, np.ndarray], total: np.ndarray | float = 0.0
) -> np.ndarray:
    """[choices of each variable in `some`] the sum of factors, written out, and what is there before."""
    place = {v: i for i, v in enumerate(some)}
    for factor in factors:
        dims = [place[v] for v in factor.scope]
        dense = factor.multi_layout.restricted([some[v] for v in factor.scope]).dense
        shape = [len(one) if i in dims else 1 for i, one in enumerate(some.values())]
        total = total + dense.transpose(np.argsort(dims)).reshape(shape)
    return np.asarray(total)


def _zeros(unary: Sequence[np.ndarray], sizes: Sequence[int]) -> list[np.ndarray]:
    """Costs of 0 for variables without any, one array for each size."""
    zeros = {size: np.zeros(size) for size, own in zip(sizes, unary, strict=True) if not len(own)}
    return [zeros.get(size, np.zeros(0)) for size in sizes]


def improved(unary: Sequence[np.ndarray], factors: Sequence[GraphFactor], choice: Sequence[int]) -> list[int]:
    """A choice for each variable that no change of one alone betters, or that of the last round: iterated conditional
    modes (J. Besag, On the Statistical Analysis of Dirty Pictures, J. R. Stat. Soc. B 48, 1986, 2.5).

    Args:
        unary: per variable, seconds of each choice.
        factors: what else costs, by the choices of the variables in its scope.
        choice: where it begins.
    """
    found, around = list(choice), _around(len(unary), factors)
    waiting = dict.fromkeys(range(len(found)))
    for _ in range(ROUNDS):
        again: dict[int, None] = {}
        for v in waiting:
            costs = unary[v]
            for factor, position in around[v]:
                costs = costs + factor.multi_layout.along(position, [found[u] for u in factor.scope])
            best = int(costs.argmin())
            if costs[best] < costs[found[v]] - 1e-12 * abs(costs[best]):
                found[v] = best
                again.update(dict.fromkeys(u for factor, _ in around[v] for u in factor.scope))
        if not again:
            break
        waiting = again
    return found


def _around(count: int, factors: Sequence[GraphFactor]) -> list[list[tuple[GraphFactor, int]]]:
    found: list[list[tuple[GraphFactor, int]]] = [[] for _ in range(count)]
    for factor in factors:
        for position, v in enumerate(factor.scope):
            found[v].append((factor, position))
    return found
