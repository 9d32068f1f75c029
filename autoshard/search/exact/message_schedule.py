"""The schedule of message passing over orbits of equal variables: who sends together, and what each gives to whom.

Factors with one `MultiLayoutCost` form a `FactorOrbit`; variables whose surroundings are equal, those of equal layers,
form an `Orbit` and send at once, so that a sweep is a few array operations however many layers there are. In the
`QuotientGraph` even the members of one orbit are one: a row per kind of neighbours stands for all factors between the
same orbits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from autoshard.search.exact.min_marginals import MinMarginals
from autoshard.search.exact.reduce import GraphicalModel

RowIndex = np.ndarray | slice


@dataclass(eq=False)
class FactorOrbit:
    """All prices with one Shared: per position, the variables [values] and the potentials [values, choices]."""

    messages: MinMarginals
    variables: np.ndarray
    potentials: list[np.ndarray]
    _grouped: list[np.ndarray] = field(default_factory=list)

    def change(self, position: int, rows: RowIndex, potentials: np.ndarray) -> None:
        self.potentials[position][rows] = potentials
        if self._grouped:
            self._grouped[position][rows] = self.messages.grouped(position, potentials)

    def reset(self, potentials: Sequence[np.ndarray]) -> None:
        self.potentials, self._grouped = list(potentials), []

    @property
    def grouped(self) -> list[np.ndarray]:
        """The potentials by kinds, as by `MinMarginals.grouped`."""
        if not self._grouped:
            self._grouped = [self.messages.grouped(i, one) for i, one in enumerate(self.potentials)]
        return self._grouped

    def message(self, position: int, rows: RowIndex) -> np.ndarray:
        """[rows, choices of the position], the least of the prices and of all else that hangs on them."""
        return self.messages.message(position, [one[rows] for one in self.grouped])

    def least(self) -> np.ndarray:
        """[values], the least of each price and all that hangs on it."""
        return self.messages.least_grouped(self.grouped)


@dataclass(frozen=True, eq=False)
class OrbitSlot:
    """One price around each member of an orbit, with what is done there in a pass of one direction.

    Attributes:
        rows: of the factor orbit.
        receives: [rows, 1] whether the price has earlier variables and hands over what it has; None if all do.
        silent: none does.
        plain: the user does not count there (`MinMarginals.counted`): it takes back what it gave, and leaves the rest,
            the same for all its choices, to those that count.
        share: [rows, 1] of what a variable then gives on; None if nothing.
        mix: [1, rows] how many of the members each row stands for, as a share of them; None where it is one each.
    """

    factor_orbit: FactorOrbit
    position: int
    rows: RowIndex
    receives: np.ndarray | None
    silent: bool
    plain: bool
    share: np.ndarray | None
    mix: np.ndarray | None = None


@dataclass(eq=False)
class Orbit:
    """Variables that send together.

    `potential` [members, choices] is what they keep to themselves; `passes` have the slots of the forward and of the
    backward pass, with the share [members, 1] that a member then keeps; `slots` are all (factor orbit, position, rows).
    """

    members: np.ndarray
    potential: np.ndarray
    slots: list[tuple[FactorOrbit, int, np.ndarray]]
    passes: list[tuple[list[OrbitSlot], np.ndarray]]

    def visit(self, direction: int) -> None:
        """Take what the earlier ones say, and share it out among the later ones."""
        slots, rest = self.passes[direction]
        total, kept = self.potential, []
        for slot in slots:
            before = slot.factor_orbit.potentials[slot.position][slot.rows]
            if not slot.silent:
                after = np.zeros_like(before) if slot.plain else -slot.factor_orbit.message(slot.position, slot.rows)
                if slot.receives is not None:
                    after = np.where(slot.receives, after, before)
                taken = before - after
                total = total + (taken if slot.mix is None else slot.mix @ taken)
                before = after
            kept.append(before)
        for slot, left in zip(slots, kept, strict=True):
            given = left if slot.share is None else left + slot.share * total
            slot.factor_orbit.change(slot.position, slot.rows, given)
        self.potential = total * rest


def swept(
    orbits: Sequence[Orbit],
    factor_orbits: Sequence[FactorOrbit],
    sizes: Sequence[int] | None = None,
    counts: Sequence[np.ndarray] | None = None,
) -> float:
    """Pass once forwards and once backwards; the bound.

    A price hands all that it is worth to the first of its variables, if it has several. So in the end the bound is what
    orbits hold, and prices of one variable. `sizes` and `counts` tell how many variables a member of an orbit
    stands for and how many prices a row of a factor orbit.
    """
    for orbit in orbits:
        orbit.visit(0)
    for orbit in reversed(orbits):
        orbit.visit(1)
    total = 0.0
    for i, orbit in enumerate(orbits):
        total += float(orbit.potential.min(axis=1).sum()) * (1 if sizes is None else sizes[i])
    for i, factor_orbit in enumerate(factor_orbits):
        if len(factor_orbit.potentials) == 1:
            total += float(
                factor_orbit.least() @ (np.ones(len(factor_orbit.variables)) if counts is None else counts[i])
            )
    return total


def factor_orbits_of(factor_graph: GraphicalModel) -> list[FactorOrbit]:
    groups: dict[int, list] = {}
    for factor in factor_graph.factors:
        groups.setdefault(id(factor.multi_layout), []).append(factor)
    found = []
    for prices in groups.values():
        variables = np.array([factor.scope for factor in prices])
        empty = [np.zeros((len(prices), factor_graph.sizes[v])) for v in prices[0].scope]
        found.append(FactorOrbit(MinMarginals.of(prices[0].multi_layout), variables, empty))
    return found


def orbits_of(
    factor_graph: GraphicalModel, factor_orbits: Sequence[FactorOrbit], unary: Sequence[np.ndarray]
) -> list[Orbit]:
    """All orbits; equal layers one behind the other: an orbit comes where its first member is."""
    around: list[list[tuple[int, int, int]]] = [[] for _ in factor_graph.sizes]
    for number, factor_orbit in enumerate(factor_orbits):
        for row, scope in enumerate(factor_orbit.variables.tolist()):
            for position, variable in enumerate(scope):
                around[variable].append((number, position, row))
    groups: dict[tuple, tuple[list[int], set[tuple[int, int]]]] = {}
    for variable, places in enumerate(around):
        mine = {(number, row) for number, _, row in places}
        key = (id(factor_graph.choices[variable]), id(factor_graph.unary[variable]))
        shape, orbit = (*key, *((number, position) for number, position, _ in places)), 0
        while not mine.isdisjoint(groups.setdefault((*shape, orbit), ([], set()))[1]):
            orbit += 1
        members, taken = groups[*shape, orbit]
        members.append(variable)
        taken |= mine
    ordered = sorted((members for members, _ in groups.values()), key=lambda members: members[0])
    when = np.empty(len(factor_graph.sizes), dtype=np.int64)
    for i, members in enumerate(ordered):
        when[members] = i
    return [_turn(members, [around[v] for v in members], factor_orbits, when, unary[members[0]]) for members in ordered]


def _turn(
    members: list[int], around: list, factor_orbits: Sequence[FactorOrbit], when: np.ndarray, unary: np.ndarray
) -> Orbit:
    now, slots, sides = when[members[0]], [], []
    for j, (number, position, _) in enumerate(around[0]):
        factor_orbit, rows = factor_orbits[number], np.array([places[j][2] for places in around])
        slots.append((factor_orbit, position, rows))
        sides.append(_sides(when[factor_orbit.variables[rows]], position, now))
    potential = np.tile(unary, (len(members), 1))
    return Orbit(np.array(members), potential, slots, _passes(slots, sides, [None] * len(slots), len(members)))


def _sides(times: np.ndarray, position: int, now: int) -> np.ndarray:
    """[2, rows], whether a price has earlier variables, and later ones."""
    others = np.delete(times, position, axis=1)
    return np.stack([(others < now).any(axis=1), (others > now).any(axis=1)])


def _passes(
    slots: Sequence[tuple[FactorOrbit, int, np.ndarray]],
    sides: Sequence[np.ndarray],
    mixes: Sequence[np.ndarray | None],
    members: int,
) -> list[tuple[list[OrbitSlot], np.ndarray]]:
    """The slots of both passes. Of what a variable has, each later price gets one part of as many as there are prices
    on the side that has more of them."""
    totals = np.zeros((2, members))
    for side, mix in zip(sides, mixes, strict=True):
        totals += side if mix is None else side @ mix.T
    counts = np.maximum(totals.max(axis=0), 1)
    found = []
    for first, then in ((0, 1), (1, 0)):
        made = []
        for (factor_orbit, position, rows), side, mix in zip(slots, sides, mixes, strict=True):
            if side.any():
                receives = None if side[first].all() else side[first][:, None]
                share = (side[then] / counts)[:, None] if side[then].any() else None
                # The last one of a pass takes all that the price is worth, whether it counts or not.
                plain = side[then].all() and position - 1 not in (-1, *factor_orbit.messages.counted)
                silent = not side[first].any()
                made.append(OrbitSlot(factor_orbit, position, _run(rows), receives, silent, bool(plain), share, mix))
        found.append((made, 1 - (totals[then] / counts)[:, None]))
    return found


def _run(rows: np.ndarray) -> RowIndex:
    """The same rows as a slice, if they are consecutive."""
    first, count = int(rows[0]), len(rows)
    return slice(first, first + count) if (rows == np.arange(first, first + count)).all() else rows


# -- the quotient graph


@dataclass(frozen=True, eq=False)
class QuotientGraph:
    """Orbits with one member each, that stands for all of theirs.

    Attributes:
        rows: per factor orbit, the row of the quotient graph for each of the factor orbit's rows.
        counts: per factor orbit of the quotient graph, how many rows each of its rows stands for.
        sizes: per orbit, how many variables its member stands for.
    """

    orbits: list[Orbit]
    factor_orbits: list[FactorOrbit]
    rows: list[np.ndarray]
    counts: list[np.ndarray]
    sizes: list[int]

    def sweep(self) -> float:
        """Once forwards and once backwards; about what the messages are worth as a bound once all members have them."""
        return swept(self.orbits, self.factor_orbits, self.sizes, self.counts)


def quotient_graph_of(orbits: Sequence[Orbit], factor_orbits: Sequence[FactorOrbit], when: np.ndarray) -> QuotientGraph:
    """The quotient graph of orbits that have passed no messages yet; `when` [variables] is the orbit of each."""
    alike, made, counts, times = {}, [], [], {}
    for factor_orbit in factor_orbits:
        kinds, rows, count = np.unique(when[factor_orbit.variables], axis=0, return_inverse=True, return_counts=True)
        rows = rows.reshape(-1)
        one = FactorOrbit(
            factor_orbit.messages, kinds, [np.zeros((len(kinds), of.shape[1])) for of in factor_orbit.potentials]
        )
        alike[id(factor_orbit)], times[id(factor_orbit)] = (one, rows), kinds
        made.append(one)
        counts.append(count)
    smaller = [_like(orbit, i, alike, times) for i, orbit in enumerate(orbits)]
    rows = [alike[id(factor_orbit)][1] for factor_orbit in factor_orbits]
    return QuotientGraph(smaller, made, rows, counts, [len(orbit.members) for orbit in orbits])


def _like(orbit: Orbit, now: int, alike: dict, times: dict) -> Orbit:
    slots, sides, mixes = [], [], []
    for factor_orbit, position, rows in orbit.slots:
        one, stands = alike[id(factor_orbit)]
        kinds, count = np.unique(stands[rows], return_counts=True)
        slots.append((one, position, kinds))
        sides.append(_sides(times[id(factor_orbit)][kinds], position, now))
        mixes.append(count[None] / len(rows))
    return Orbit(orbit.members, orbit.potential.mean(axis=0, keepdims=True), slots, _passes(slots, sides, mixes, 1))
