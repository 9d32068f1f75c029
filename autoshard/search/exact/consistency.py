"""Tables by their entries close to the minimum, and which of these can be part of a sum within the gap.

An entry goes where one of its choices has no entry left in another table, or where the least entries with that choice
are too dear together: soft arc consistency (Cooper et al., AIJ 2010) on listed entries. First all are looked at again
and again; once little goes, only what hangs on what went before.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

FEW = 0.05
"""The share of the entries below which a look at all of them is followed by looks at those around what went."""


@dataclass(frozen=True, eq=False)
class SparseTables:
    """Equal tables over different variables, by their entries within the gap; those not listed cost more than it.

    `scopes` [tables, places] are the variables of each table. Per entry: `table` [n], `rows` [n, places] of choices,
    each at most once, and `cost` [n], none negative.
    """

    scopes: np.ndarray
    table: np.ndarray
    rows: np.ndarray
    cost: np.ndarray

    def cut(self, keep: np.ndarray) -> SparseTables:
        """The entries of a mask."""
        return SparseTables(self.scopes, self.table[keep], self.rows[keep], self.cost[keep])


def unary_entries(unary: Sequence[np.ndarray], listings: Sequence[SparseTables]) -> SparseTables:
    """A listing of the variables that stand in no other, for their own costs."""
    inside = np.zeros(len(unary), dtype=bool)
    for one in listings:
        inside[one.scopes.reshape(-1)] = True
    lone = np.flatnonzero(~inside)
    sizes = np.array([len(unary[v]) for v in lone.tolist()], dtype=np.int64)
    table = np.repeat(np.arange(len(lone)), sizes)
    rows = np.arange(len(table)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return SparseTables(lone[:, None], table, rows[:, None], np.zeros(len(table)))


def consistent_entries(
    unary: Sequence[np.ndarray], listings: Sequence[SparseTables], gap: float
) -> tuple[list[SparseTables] | None, list[np.ndarray]]:
    """The listings without entries that make a choice which elsewhere has none, or too much to pay in all; None if
    nothing is left. Unary costs are put into the listings. Per variable, which choices are left."""
    first = np.concatenate([[0], np.cumsum([len(costs) for costs in unary])])
    own = np.concatenate(list(unary)) if unary else np.zeros(0)
    takers = _takers(listings, len(unary))
    listings = [_with_costs(one, first, own, taken) for one, taken in zip(listings, takers, strict=True)]
    own = np.where(np.isfinite(own), 0.0, np.inf)
    kept, alive = _Entries(listings, first, own).left(gap)
    ends = np.cumsum([0, *(len(one.cost) for one in listings)])
    listings = [
        one.cut(keep)
        for one, keep in zip(listings, (kept[low:high] for low, high in itertools.pairwise(ends)), strict=True)
    ]
    left = [alive[low:high] for low, high in itertools.pairwise(first.tolist())]
    return (listings if all(one.any() for one in left) else None), left


def _takers(listings: Sequence[SparseTables], count: int) -> list[np.ndarray]:
    """Per listing [tables, places], whether that place is where the variable's own costs are put."""
    free, found = np.ones(count, dtype=bool), []
    for one in listings:
        taken = np.zeros(one.scopes.shape, dtype=bool)
        for i, column in enumerate(one.scopes.T):
            taken[np.unique(column, return_index=True)[1], i] = True
            taken[:, i] &= free[column]
            free[column] = False
        found.append(taken)
    return found


def _with_costs(one: SparseTables, first: np.ndarray, own: np.ndarray, taken: np.ndarray) -> SparseTables:
    places = first[one.scopes][one.table] + one.rows
    return replace(one, cost=one.cost + np.where(taken[one.table], own[places], 0.0).sum(axis=1))


class _Entries:
    """All entries, with a place for each of their choices.

    `cell` [places] numbers the choice that an entry makes there, within its table; `choice` [cells] is that choice's
    number among all, `entry` [places] the entry's among all, `cost` [entries].
    """

    def __init__(self, listings: Sequence[SparseTables], first: np.ndarray, own: np.ndarray) -> None:
        sizes, cells, entries = np.diff(first), 0, 0
        cell, choice, entry = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for one in listings:
            for i, column in enumerate(one.scopes.T):
                start = np.concatenate([[0], np.cumsum(sizes[column])])
                cell.append(cells + start[one.table] + one.rows[:, i])
                choice.append(np.arange(start[-1]) + np.repeat(first[column] - start[:-1], sizes[column]))
                entry.append(np.arange(entries, entries + len(one.cost)))
                cells += int(start[-1])
            entries += len(one.cost)
        self.cell, self.choice, self.entry = map(np.concatenate, (cell, choice, entry))
        self.cost = np.concatenate([np.zeros(0), *(one.cost for one in listings)])
        self.own = own

    def left(self, gap: float) -> tuple[np.ndarray, np.ndarray]:
        """Which entries and which choices are left, once nothing more can be dropped."""
        kept = np.isfinite(self.cost)
        while True:
            chosen = kept[self.entry]
            self.cell, self.entry = self.cell[chosen], self.entry[chosen]
            least = np.full(len(self.choice), np.inf)
            np.minimum.at(least, self.cell, self.cost[self.entry])
            alive = self.own + np.bincount(self.choice, least, len(self.own)) <= gap
            before = kept.copy()
            kept[self.entry[~alive[self.choice[self.cell]]]] = False
            eliminated = np.flatnonzero(before & ~kept)
            if len(eliminated) <= FEW * kept.sum():
                self._spread(eliminated, kept, alive, least, gap)
                return kept, alive

    def _spread(
        self, eliminated: np.ndarray, kept: np.ndarray, alive: np.ndarray, least: np.ndarray, gap: float
    ) -> None:
        """Drop what hangs on entries that went, until nothing more goes; `least` is of each cell before they went."""
        of_cell = _Lists(self.cell, len(self.choice))
        of_choice = _Lists(self.choice, len(self.own))
        of_entry = _Lists(self.entry, len(self.cost))
        while len(eliminated):
            cells = np.unique(self.cell[of_entry.members(eliminated)[0]])
            places, starts = of_cell.members(cells)
            paid = np.where(kept[self.entry[places]], self.cost[self.entry[places]], np.inf)
            least[cells] = np.minimum.reduceat(paid, starts)
            choices = np.unique(self.choice[cells])
            choices = choices[alive[choices]]
            around, starts = of_choice.members(choices)
            total = np.add.reduceat(least[around], starts) if len(choices) else np.zeros(0)
            dead = choices[self.own[choices] + total > gap]
            alive[dead] = False
            entries = self.entry[of_cell.members(of_choice.members(dead)[0])[0]]
            eliminated = np.unique(entries[kept[entries]])
            kept[eliminated] = False


class _Lists:
    """Per key, the places where it stands."""

    def __init__(self, keys: np.ndarray, count: int) -> None:
        self.order = np.argsort(keys, kind="stable")
        self.ends = np.concatenate([[0], np.cumsum(np.bincount(keys, minlength=count))])

    def members(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The places of these keys, one key behind the other, and where each begins."""
        counts = self.ends[keys + 1] - self.ends[keys]
        starts = np.cumsum(counts) - counts
        place = np.arange(int(counts.sum())) + np.repeat(self.ends[keys] - starts, counts)
        return self.order[place], starts
