"""Turns: which variables pass messages together, and what each gives on to whom.

Prices with one `Shared` form a bunch. Variables whose surroundings are equal, those of equal layers, take one turn, so
that a step of message passing is a few array operations however many layers there are. In the *likeness* of turns even
the members of one turn are one: a price row per kind of neighbours stands for all rows between the same turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from autoshard.search.exact.min_marginals import SharedMessages
from autoshard.search.exact.reduce import Summed

Rows = np.ndarray | slice


@dataclass(eq=False)
class Bunch:
    """All prices with one Shared: per position, the variables [values] and the potentials [values, choices]."""

    messages: SharedMessages
    variables: np.ndarray
    potentials: list[np.ndarray]
    _grouped: list[np.ndarray] = field(default_factory=list)

    def change(self, position: int, rows: Rows, potentials: np.ndarray) -> None:
        self.potentials[position][rows] = potentials
        if self._grouped:
            self._grouped[position][rows] = self.messages.grouped(position, potentials)

    def reset(self, potentials: Sequence[np.ndarray]) -> None:
        self.potentials, self._grouped = list(potentials), []

    @property
    def grouped(self) -> list[np.ndarray]:
        """The potentials by kinds, as by `SharedMessages.grouped`."""
        if not self._grouped:
            self._grouped = [self.messages.grouped(i, one) for i, one in enumerate(self.potentials)]
        return self._grouped

    def message(self, position: int, rows: Rows) -> np.ndarray:
        """[rows, choices of the position], the least of the prices and of all else that hangs on them."""
        return self.messages.message(position, [one[rows] for one in self.grouped])

    def least(self) -> np.ndarray:
        """[values], the least of each price and all that hangs on it."""
        return self.messages.least_grouped(self.grouped)


@dataclass(frozen=True, eq=False)
class Slot:
    """One price around each member of a turn, with what is done there in a pass of one direction.

    Attributes:
        rows: of the bunch.
        receives: [rows, 1] whether the price has earlier variables and hands over what it has; None if all do.
        silent: none does.
        share: [rows, 1] of what a variable then gives on; None if nothing.
        mix: [1, rows] how many of the members each row stands for, as a share of them; None where it is one each.
    """

    bunch: Bunch
    position: int
    rows: Rows
    receives: np.ndarray | None
    silent: bool
    share: np.ndarray | None
    mix: np.ndarray | None = None


@dataclass(eq=False)
class Turn:
    """Variables that take their turn together.

    `held` [members, choices] is what they keep to themselves; `passes` have the slots of the forward and of the
    backward pass, with the share [members, 1] that a member then keeps; `slots` are all (bunch, position, rows).
    """

    members: np.ndarray
    held: np.ndarray
    slots: list[tuple[Bunch, int, np.ndarray]]
    passes: list[tuple[list[Slot], np.ndarray]]

    def visit(self, direction: int) -> None:
        """Take what the earlier ones say, and share it out among the later ones."""
        slots, rest = self.passes[direction]
        total, kept = self.held, []
        for slot in slots:
            before = slot.bunch.potentials[slot.position][slot.rows]
            if not slot.silent:
                after = -slot.bunch.message(slot.position, slot.rows)
                if slot.receives is not None:
                    after = np.where(slot.receives, after, before)
                taken = before - after
                total = total + (taken if slot.mix is None else slot.mix @ taken)
                before = after
            kept.append(before)
        for slot, left in zip(slots, kept, strict=True):
            given = left if slot.share is None else left + slot.share * total
            slot.bunch.change(slot.position, slot.rows, given)
        self.held = total * rest


def swept(
    turns: Sequence[Turn],
    bunches: Sequence[Bunch],
    sizes: Sequence[int] | None = None,
    counts: Sequence[np.ndarray] | None = None,
) -> float:
    """Pass once forwards and once backwards; the bound.

    A price hands all that it is worth to the first of its variables, if it has several. So in the end the bound is what
    turns hold, and prices of one variable. `sizes` and `counts` tell how many variables a member of a turn stands for
    and how many prices a row of a bunch.
    """
    for turn in turns:
        turn.visit(0)
    for turn in reversed(turns):
        turn.visit(1)
    total = 0.0
    for i, turn in enumerate(turns):
        total += float(turn.held.min(axis=1).sum()) * (1 if sizes is None else sizes[i])
    for i, bunch in enumerate(bunches):
        if len(bunch.potentials) == 1:
            total += float(bunch.least() @ (np.ones(len(bunch.variables)) if counts is None else counts[i]))
    return total


def bunches_of(tables: Summed) -> list[Bunch]:
    groups: dict[int, list] = {}
    for price in tables.prices:
        groups.setdefault(id(price.shared), []).append(price)
    found = []
    for prices in groups.values():
        variables = np.array([price.scope for price in prices])
        empty = [np.zeros((len(prices), tables.sizes[v])) for v in prices[0].scope]
        found.append(Bunch(SharedMessages(prices[0].shared), variables, empty))
    return found


def turns_of(tables: Summed, bunches: Sequence[Bunch], unary: Sequence[np.ndarray]) -> list[Turn]:
    """All turns; equal layers one behind the other: a turn comes where its first member is."""
    around: list[list[tuple[int, int, int]]] = [[] for _ in tables.sizes]
    for number, bunch in enumerate(bunches):
        for row, scope in enumerate(bunch.variables.tolist()):
            for position, variable in enumerate(scope):
                around[variable].append((number, position, row))
    groups: dict[tuple, tuple[list[int], set[tuple[int, int]]]] = {}
    for variable, places in enumerate(around):
        mine = {(number, row) for number, _, row in places}
        key = (id(tables.choices[variable]), id(tables.unary[variable]))
        shape, turn = (*key, *((number, position) for number, position, _ in places)), 0
        while not mine.isdisjoint(groups.setdefault((*shape, turn), ([], set()))[1]):
            turn += 1
        members, taken = groups[*shape, turn]
        members.append(variable)
        taken |= mine
    ordered = sorted((members for members, _ in groups.values()), key=lambda members: members[0])
    when = np.empty(len(tables.sizes), dtype=np.int64)
    for i, members in enumerate(ordered):
        when[members] = i
    return [_turn(members, [around[v] for v in members], bunches, when, unary[members[0]]) for members in ordered]


def _turn(members: list[int], around: list, bunches: Sequence[Bunch], when: np.ndarray, unary: np.ndarray) -> Turn:
    now, slots, sides = when[members[0]], [], []
    for j, (number, position, _) in enumerate(around[0]):
        bunch, rows = bunches[number], np.array([places[j][2] for places in around])
        slots.append((bunch, position, rows))
        sides.append(_sides(when[bunch.variables[rows]], position, now))
    held = np.tile(unary, (len(members), 1))
    return Turn(np.array(members), held, slots, _passes(slots, sides, [None] * len(slots), len(members)))


def _sides(times: np.ndarray, position: int, now: int) -> np.ndarray:
    """[2, rows], whether a price has earlier variables, and later ones."""
    others = np.delete(times, position, axis=1)
    return np.stack([(others < now).any(axis=1), (others > now).any(axis=1)])


def _passes(
    slots: Sequence[tuple[Bunch, int, np.ndarray]],
    sides: Sequence[np.ndarray],
    mixes: Sequence[np.ndarray | None],
    members: int,
) -> list[tuple[list[Slot], np.ndarray]]:
    """The slots of both passes. Of what a variable has, each later price gets one part of as many as there are prices
    on the side that has more of them."""
    totals = np.zeros((2, members))
    for side, mix in zip(sides, mixes, strict=True):
        totals += side if mix is None else side @ mix.T
    counts = np.maximum(totals.max(axis=0), 1)
    found = []
    for first, then in ((0, 1), (1, 0)):
        made = []
        for (bunch, position, rows), side, mix in zip(slots, sides, mixes, strict=True):
            if side.any():
                receives = None if side[first].all() else side[first][:, None]
                share = (side[then] / counts)[:, None] if side[then].any() else None
                made.append(Slot(bunch, position, _run(rows), receives, not side[first].any(), share, mix))
        found.append((made, 1 - (totals[then] / counts)[:, None]))
    return found


def _run(rows: np.ndarray) -> Rows:
    """The same rows as a slice, if they are consecutive."""
    first, count = int(rows[0]), len(rows)
    return slice(first, first + count) if (rows == np.arange(first, first + count)).all() else rows


# -- the likeness


@dataclass(frozen=True, eq=False)
class Likeness:
    """Turns with one member each, that stands for all of theirs; `rows` has per bunch the row of the likeness for each
    of the bunch's rows, `counts` per bunch of the likeness how many rows each of its rows stands for."""

    turns: list[Turn]
    bunches: list[Bunch]
    rows: list[np.ndarray]
    counts: list[np.ndarray]
    sizes: list[int]

    def sweep(self) -> float:
        """Once forwards and once backwards; about what the messages are worth as a bound once all members have them."""
        return swept(self.turns, self.bunches, self.sizes, self.counts)


def likeness_of(turns: Sequence[Turn], bunches: Sequence[Bunch], when: np.ndarray) -> Likeness:
    """The likeness of turns that have passed no messages yet; `when` [variables] is the turn of each."""
    alike, made, counts, times = {}, [], [], {}
    for bunch in bunches:
        kinds, rows, count = np.unique(when[bunch.variables], axis=0, return_inverse=True, return_counts=True)
        rows = rows.reshape(-1)
        one = Bunch(bunch.messages, kinds, [np.zeros((len(kinds), of.shape[1])) for of in bunch.potentials])
        alike[id(bunch)], times[id(bunch)] = (one, rows), kinds
        made.append(one)
        counts.append(count)
    smaller = [_like(turn, i, alike, times) for i, turn in enumerate(turns)]
    rows = [alike[id(bunch)][1] for bunch in bunches]
    return Likeness(smaller, made, rows, counts, [len(turn.members) for turn in turns])


def _like(turn: Turn, now: int, alike: dict, times: dict) -> Turn:
    slots, sides, mixes = [], [], []
    for bunch, position, rows in turn.slots:
        one, stands = alike[id(bunch)]
        kinds, count = np.unique(stands[rows], return_counts=True)
        slots.append((one, position, kinds))
        sides.append(_sides(times[id(bunch)][kinds], position, now))
        mixes.append(count[None] / len(rows))
    return Turn(turn.members, turn.held.mean(axis=0, keepdims=True), slots, _passes(slots, sides, mixes, 1))
