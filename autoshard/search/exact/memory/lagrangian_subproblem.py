"""Minimizes seconds plus priced bytes: a bound for all assignments, and an assignment that is near it.

A factor graph with bytes priced is reduced and bounded as one without a limit is (`search.py`). Among the few choices
of each variable that hardly raise the bound, the best are found exactly, then improved by iterated conditional modes.
The result tells how many bytes such multipliers leave.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autoshard.search.exact.memory.copies import SpanCost
from autoshard.search.exact.min_marginals import LARGE, ChoiceGroups, MinMarginals
from autoshard.search.exact.reduce import GraphicalModel, ReducedFactor, ReducedGraph, improved, kinds_of, summed
from autoshard.search.exact.search import best_among
from autoshard.search.exact.srmp import Srmp
from autoshard.search.factor_graph import FactorGraph
from autoshard.search.multi_layout import MultiLayoutCost
from autoshard.util.clock import now

# Prices written out over kinds of choices, those between the same variables in one table.
#
# Bytes of a moment depend on the same pairs of variables as redistributions do, and reduction leaves several prices
# between the same two. Message passing lets each price choose for itself, so prices apart give a lower bound than their
# sum does; here a price joins another one that has all of its variables, as far as the table of both has room.


JOINED_CELLS = 1 << 19
"""The largest table that is written out."""


@dataclass(frozen=True, eq=False)
class TableCost(MultiLayoutCost):
    """A price told by a `table` [kinds of the first variable, of the second, ...] instead of by layouts."""

    table: np.ndarray

    @staticmethod
    def of(table: np.ndarray, kinds: Sequence[np.ndarray]) -> TableCost:
        """From a table and, per position, the kind of each choice."""
        users = tuple(np.zeros((count, 1), np.int64) for count in table.shape[1:])
        return TableCost(np.zeros((len(table), 1)), np.zeros(len(table)), kinds[0], users, tuple(kinds[1:]), table)

    @property
    def by_position(self) -> tuple[np.ndarray, ...]:
        return self.maker, *self.kinds

    def restricted(self, keep: Sequence[np.ndarray]) -> TableCost:
        """The same with only some choices of each variable."""
        found = [np.unique(of[kept], return_inverse=True) for of, kept in zip(self.by_position, keep, strict=True)]
        return TableCost.of(self.table[np.ix_(*(used for used, _ in found))], [which for _, which in found])

    def at(self, choice: Sequence[int]) -> float:
        """Seconds at a choice."""
        return float(self.table[tuple(of[one] for of, one in zip(self.by_position, choice, strict=True))])

    def many(self, choices: np.ndarray) -> np.ndarray:
        """Seconds of many combinations [n, positions] of choices."""
        return self.table[tuple(of[column] for of, column in zip(self.by_position, choices.T, strict=True))]

    def along(self, position: int, choice: Sequence[int]) -> np.ndarray:
        """[choices of the position], seconds with everything else as in `choice`."""
        index: list = [of[one] for of, one in zip(self.by_position, choice, strict=True)]
        index[position] = slice(None)
        return self.table[tuple(index)][self.by_position[position]]

    @cached_property
    def by_kinds(self) -> np.ndarray:
        return self.table


class TableMinMarginals(MinMarginals, of=TableCost):
    """Min-marginals of a table: exact, whatever it says."""

    def __init__(self, multi_layout: TableCost) -> None:
        self.multi_layout, self.whole = multi_layout, True
        self.table = np.minimum(multi_layout.table, LARGE)
        self.counted = range(self.table.ndim - 1)
        self.groups = [
            ChoiceGroups(of, count) for of, count in zip(multi_layout.by_position, self.table.shape, strict=True)
        ]

    def message(self, position: int, grouped: list[np.ndarray]) -> np.ndarray:
        """As of any price's messages."""
        assert isinstance(self.multi_layout, TableCost)
        away = [other for other in range(self.table.ndim) if other != position]
        found = [self._least(away, [one[row] for one in grouped]) for row in range(len(grouped[0]))]
        return np.stack(found)[:, self.multi_layout.by_position[position]]

    def least_grouped(self, grouped: list[np.ndarray]) -> np.ndarray:
        """[values], the least of the table plus potentials by kinds."""
        every = range(self.table.ndim)
        return np.array([self._least(every, [one[row] for one in grouped]) for row in range(len(grouped[0]))])

    def _least(self, away: Sequence[int], potentials: Sequence[np.ndarray]) -> np.ndarray:
        """The table plus potentials, minimized over some positions, the last one first."""
        left = self.table
        for position in reversed(away):
            shape = [1] * left.ndim
            shape[position] = -1
            left = (left + potentials[position].reshape(shape)).min(axis=position)
        return left


class JoinedGraph:
    """Tables with prices joined, with the attributes of `GraphicalModel`; choices and what they cost are the same."""

    def __init__(self, factor_graph: GraphicalModel) -> None:
        self.choices, self.unary, self.sizes = factor_graph.choices, factor_graph.unary, factor_graph.sizes
        self._known: dict[tuple, MultiLayoutCost] = {}
        self._kinds: dict[tuple, tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]] = {}
        groups = self._grouped(factor_graph)
        self.factors = [ReducedFactor(scope, self._shared(scope, members)) for scope, members in groups]

    def _grouped(self, factor_graph: GraphicalModel) -> list[tuple[tuple[int, ...], list[ReducedFactor]]]:
        """Prices with those that they take in, in the order of the prices."""
        prices = [ReducedFactor(factor.scope, factor.multi_layout) for factor in factor_graph.factors]
        order = sorted(range(len(prices)), key=lambda i: -len(prices[i].scope))
        hosts: dict[int, list[ReducedFactor]] = {}
        around: list[list[int]] = [[] for _ in factor_graph.sizes]
        for i in order:
            factor, scope = prices[i], set(prices[i].scope)
            able = (j for j in around[factor.scope[0]] if scope <= set(prices[j].scope))
            host = next((j for j in able if self._fits(prices[j].scope, [*hosts[j], factor])), None)
            if host is not None:
                hosts[host].append(factor)
                continue
            hosts[i] = [factor]
            for variable in factor.scope:
                around[variable].append(i)
        return [(prices[i].scope, hosts[i]) for i in sorted(hosts)]

    def _fits(self, scope: tuple[int, ...], members: Sequence[ReducedFactor]) -> bool:
        _, firsts = self._kinds_of(scope, members)
        return math.prod(map(len, firsts)) <= JOINED_CELLS

    def _kinds_of(
        self, scope: tuple[int, ...], members: Sequence[ReducedFactor]
    ) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
        """Per variable of the scope, the kind of each choice under all members, and a choice of each kind."""
        key = self._key(scope, members)
        if key not in self._kinds:
            firsts, kinds = zip(*(kinds_of(variable, members) for variable in scope), strict=True)
            self._kinds[key] = kinds, firsts
        return self._kinds[key]

    @staticmethod
    def _key(scope: tuple[int, ...], members: Sequence[ReducedFactor]) -> tuple:
        """The same for equal prices joined in the same way."""
        place = {variable: i for i, variable in enumerate(scope)}
        return tuple((id(one.multi_layout), tuple(place[v] for v in one.scope)) for one in members)

    def _shared(self, scope: tuple[int, ...], members: list[ReducedFactor]) -> MultiLayoutCost:
        host = members[0].multi_layout
        plain = len(members) == 1 and not isinstance(host, SpanCost) and all(one.shape[1] == 1 for one in host.users)
        key = self._key(scope, members)
        if key not in self._known:
            written = not plain and self._fits(scope, members)
            self._known[key] = self._sum(scope, members) if written else host
        return self._known[key]

    def _sum(self, scope: tuple[int, ...], members: Sequence[ReducedFactor]) -> TableCost:
        kinds, firsts = self._kinds_of(scope, members)
        return TableCost.of(summed(members, dict(zip(scope, firsts, strict=True))), kinds)


SWEEPS, AGAIN, GAIN, ALIKE = 30, 8, 2e-4, 1e-4
"""Sweeps at first and where messages of near prices are there; and the growth of the bound that is worth another."""
NEAR, FAR, WIDER = 1e-4, 1e3, 30.0
"""Choices that raise the bound by at most that much, relatively, are searched; more if they do not fit each other."""
FEW = 6
"""Choices of a variable that are searched at most."""
CELLS = 200_000
"""The largest price that is written out."""


class LagrangianSubproblem:
    """Tables with bytes priced; `lower` bounds the sum of prices over all choices.

    Args:
        end: by `clock.now`.
        near: a search of the same tables at other prices, whose messages are a good start.
    """

    def __init__(self, factor_graph: FactorGraph, end: float, near: LagrangianSubproblem | None = None) -> None:
        self.factor_graph, self.end = factor_graph, end
        self.folded = ReducedGraph(factor_graph)
        self.merged = JoinedGraph(self.folded)
        self.srmp = Srmp(self.merged)
        if near is None:
            self.srmp.start(SWEEPS, end, ALIKE)
        else:
            self._continue(near)
        self.lower = self.tighten(SWEEPS if near is None else AGAIN, GAIN)

    def tighten(self, sweeps: int, gain: float) -> float:
        """More sweeps, until one gains less than `gain`, relatively; the bound."""
        self.lower = self.srmp.tighten(sweeps, self.end, gain)
        return self.lower

    def _continue(self, near: LagrangianSubproblem) -> None:
        """Begin with the messages of another search, as far as its prices are over the same variables."""
        known: dict[tuple[int, ...], list[np.ndarray]] = {}
        for factor_orbit in near.srmp.factor_orbits:
            for row, scope in enumerate(factor_orbit.variables.tolist()):
                known[tuple(near.folded.variables[v] for v in scope)] = [one[row] for one in factor_orbit.potentials]
        for factor_orbit in self.srmp.factor_orbits:
            scopes = [tuple(self.folded.variables[v] for v in scope) for scope in factor_orbit.variables.tolist()]
            empty = [np.zeros(one.shape[1]) for one in factor_orbit.potentials]
            parts = [known.get(scope, empty) for scope in scopes]
            factor_orbit.reset([np.stack(column) for column in zip(*parts, strict=True)])
        for orbit in self.srmp.orbits:
            orbit.potential = np.stack([self.srmp.unary[v] for v in orbit.members])
            for factor_orbit, position, rows in orbit.slots:
                orbit.potential -= factor_orbit.potentials[position][rows]

    # -- a choice

    def choice(
        self, few: int = FEW, near: float = NEAR, others: Sequence[Sequence[int]] = ()
    ) -> tuple[int, ...] | None:
        """A choice of all variables that is near the bound; None if none was found in time.

        Args:
            few: choices of a variable that are searched.
            near: by how much these may raise the bound, relatively; more if they do not fit each other.
            others: choices that are known, of which the best is improved as well.
        """
        found = self._searched(few, near)
        made = [self._finished([one[v] for v in self.folded.variables]) for one in self._best_of(others)]
        made += [] if found is None else [self._finished(found)]
        return min(made, key=self.factor_graph.seconds, default=None)

    def _best_of(self, others: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        return [min(others, key=self.factor_graph.seconds)] if others else []

    def _finished(self, choice: Sequence[int]) -> tuple[int, ...]:
        return self.folded.complete(improved(self.srmp.unary, self.merged.factors, choice))

    def _searched(self, few: int, near: float) -> tuple[int, ...] | None:
        """The best of what is reduced, among few choices of each variable."""
        reduced, allowed = self.srmp.of_orbits(self.srmp.reduced()), near * max(abs(self.lower), 1e-12)
        first = allowed
        while allowed <= FAR and (allowed == first or now() < self.end):
            keep = self._smaller([self._best(one, allowed, few) for one in reduced])
            found = best_among(self.srmp, keep, lambda: now() > self.end)
            if found is not None:
                return found
            allowed *= WIDER
        return None

    @staticmethod
    def _best(reduced: np.ndarray, allowed: float, few: int) -> np.ndarray:
        near = np.flatnonzero(reduced <= max(allowed, reduced.min()))
        return near[np.argsort(reduced[near], kind="stable")[:few]]

    def _smaller(self, best: list[np.ndarray]) -> list[np.ndarray]:
        """Per variable the best choices of its orbit, so few that every price can be written out."""
        best, orbits = list(best), self.srmp.orbit_of
        for scope in dict.fromkeys(tuple(int(orbits[v]) for v in factor.scope) for factor in self.merged.factors):
            while math.prod(len(best[orbit]) for orbit in scope) > CELLS:
                longest = max(scope, key=lambda orbit: len(best[orbit]))
                best[longest] = best[longest][:-1]
        return [best[orbit] for orbit in orbits]
