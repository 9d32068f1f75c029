"""The least sum of tables of which only the entries close to their minimum are listed: joins instead of arrays.

Variables leave one by one, as in bucket elimination (Dechter, 1999), but what is summed are the rows that agree on the
variables in common (a sort-merge join), and what exceeds the gap is dropped at once. After message passing few entries
are that close, and the number of rows, not the product of the variables' sizes, is what an elimination costs.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

Scope = tuple[int, ...]
KEYS = 1 << 62


@dataclass(frozen=True, eq=False)
class Listing:
    """Rows of choices [n, variables of `scope`], each at most once, and their `cost` [n], none negative.

    Combinations that are not listed cost more than the gap.
    """

    scope: Scope
    rows: np.ndarray
    cost: np.ndarray


@dataclass(frozen=True)
class Least:
    """The least sum and its choice, None where all sums exceed the gap.

    Every sum below `beyond` was looked at: what was given up for want of room costs at least that.
    """

    choice: tuple[int, ...] | None
    cost: float
    beyond: float


def least_sum(
    sizes: Sequence[int],
    listings: Sequence[Listing],
    gap: float,
    width: int = 1 << 20,
    stop: Callable[[], bool] = lambda: False,
) -> Least:
    """The least sum of listings among those of at most `gap`.

    Args:
        width: rows that are kept at most; of more the cheapest stay.
        stop: asked now and then; once it is true, hardly any rows are kept.
    """
    return _Elimination(sizes, listings, gap, width, stop).run()


@dataclass(frozen=True, eq=False)
class _Gone:
    """A variable that left: for each row of its neighbours' choices, ordered by key, its best choice."""

    variable: int
    around: Scope
    rows: np.ndarray
    best: np.ndarray


class _Elimination:
    def __init__(
        self, sizes: Sequence[int], listings: Sequence[Listing], gap: float, width: int, stop: Callable[[], bool]
    ) -> None:
        self.sizes, self.gap, self.width, self.stop = tuple(sizes), gap, width, stop
        self.tables: dict[int, Listing] = {}
        self.at: list[set[int]] = [set() for _ in sizes]
        self.beyond = math.inf
        self.base, self.gone, self._count = 0.0, [], 0
        self.left = [np.ones(size, dtype=bool) for size in self.sizes]
        self.singles: dict[int, int] = {}
        self.estimates: dict[int, float] = {}
        self.widest = 0
        for listing in listings:
            self._add(listing)

    def _add(self, listing: Listing) -> None:
        if not listing.scope:
            self.base += float(listing.cost[0]) if len(listing.cost) else math.inf
            return
        self.tables[self._count] = listing
        for v in listing.scope:
            self.at[v].add(self._count)
        self._count += 1

    def run(self) -> Least:
        self._make_consistent()
        if math.isfinite(self.base):
            self._settle_singles()
        self.room = [int(alive.sum()) for alive in self.left]
        heap = [(self._estimate(v), v) for v, room in enumerate(self.room) if room > 1]
        heapq.heapify(heap)
        waiting = {v for _, v in heap}
        while heap and math.isfinite(self.base):
            estimate, v = heapq.heappop(heap)
            if v not in waiting or estimate != self.estimates[v]:
                continue
            waiting.discard(v)
            for u in self._eliminate(v):
                heapq.heappush(heap, (self._estimate(u), u))
        if not self.base <= self.gap:
            return Least(None, math.inf, self.beyond)
        return Least(self._choice(), self.base, self.beyond)

    def _settle_singles(self) -> None:
        """Take out the variables with one choice left, and make one listing of those over the same variables."""
        self.singles = {v: int(alive.argmax()) for v, alive in enumerate(self.left) if alive.sum() == 1}
        tables = [self.tables[number] for number in sorted(self.tables)]
        self.tables, self.at = {}, [set() for _ in self.sizes]
        same: dict[Scope, list[Listing]] = {}
        for table in tables:
            free = [i for i, v in enumerate(table.scope) if v not in self.singles]
            free.sort(key=lambda i, table=table: table.scope[i])
            scope = tuple(table.scope[i] for i in free)
            same.setdefault(scope, []).append(Listing(scope, table.rows[:, free], table.cost))
        for listings in same.values():
            self._add(reduce(self._joined, listings))

    # -- what no row supports

    def _make_consistent(self) -> None:
        """Drop the rows with a choice that another listing has not, or that all together cost more than the gap."""
        suspects = set(self.tables)
        least: dict[tuple[int, int], np.ndarray] = {}
        while suspects and math.isfinite(self.base):
            touched: set[int] = set()
            for number in sorted(suspects):
                table = self.tables[number]
                if not len(table.cost):
                    self.base = math.inf
                    return
                for i, v in enumerate(table.scope):
                    cost = np.full(self.sizes[v], np.inf)
                    np.minimum.at(cost, table.rows[:, i], table.cost)
                    least[number, v] = cost
                    touched.add(v)
            suspects = set()
            for v in sorted(touched):
                total = sum(least[number, v] for number in sorted(self.at[v]))
                alive = np.asarray(total <= self.gap)
                if (alive < self.left[v]).any():
                    self.left[v] &= alive
                    suspects |= self.at[v]
            for number in sorted(suspects):
                table = self.tables[number]
                keep = np.ones(len(table.cost), dtype=bool)
                for i, v in enumerate(table.scope):
                    keep &= self.left[v][table.rows[:, i]]
                self.tables[number] = Listing(table.scope, table.rows[keep], table.cost[keep])

    # -- elimination

    def _estimate(self, v: int) -> float:
        """About how many rows eliminating v joins."""
        rows, seen = 1.0, set()
        for number in self.at[v]:
            table = self.tables[number]
            rows *= len(table.cost)
            for u in table.scope:
                if u in seen:
                    rows /= self.room[u]
                seen.add(u)
        self.estimates[v] = rows
        return rows

    def _eliminate(self, v: int) -> list[int]:
        """Minimize v out; its neighbours."""
        numbers = sorted(self.at[v], key=lambda number: (len(self.tables[number].cost), number))
        tables = [self.tables.pop(number) for number in numbers]
        for number, table in zip(numbers, tables, strict=True):
            for u in table.scope:
                self.at[u].discard(number)
        if not tables:
            self.gone.append(_Gone(v, (), np.zeros((1, 0), dtype=np.int64), np.flatnonzero(self.left[v])[:1]))
            return []
        total = tables.pop(0)
        while tables:
            near = max(range(len(tables)), key=lambda i: len(set(total.scope) & set(tables[i].scope)))
            total = self._joined(total, tables.pop(near))
        return self._minimized(v, total)

    def _joined(self, one: Listing, other: Listing) -> Listing:
        common = [v for v in one.scope if v in other.scope]
        more = [i for i, v in enumerate(other.scope) if v not in common]
        mine, theirs = self._keys(
            common, one.rows[:, [one.scope.index(v) for v in common]], other.rows[:, [other.scope.index(v) for v in common]]
        )
        order = np.argsort(theirs, kind="stable")
        theirs = theirs[order]
        first, last = np.searchsorted(theirs, mine, "left"), np.searchsorted(theirs, mine, "right")
        counts = last - first
        place = np.repeat(np.arange(len(mine)), counts)
        inner = order[first[place] + np.arange(len(place)) - np.repeat(np.cumsum(counts) - counts, counts)]
        cost = one.cost[place] + other.cost[inner]
        good = np.flatnonzero(cost <= self.gap)
        good = self._kept(cost, good)
        place, inner = place[good], inner[good]
        rows = np.concatenate([one.rows[place], other.rows[inner][:, more]], axis=1)
        return Listing((*one.scope, *(other.scope[i] for i in more)), rows, cost[good])

    def _kept(self, cost: np.ndarray, good: np.ndarray) -> np.ndarray:
        """Of the rows within the gap, as many as there is room for."""
        self.widest = max(self.widest, len(good))
        width = 64 if self.stop() else self.width
        if len(good) <= width:
            return good
        order = np.argsort(cost[good], kind="stable")
        self.beyond = min(self.beyond, float(cost[good[order[width]]]))
        return np.sort(good[order[:width]])

    def _minimized(self, v: int, total: Listing) -> list[int]:
        at = total.scope.index(v)
        around = tuple(u for u in total.scope if u != v)
        others = np.delete(total.rows, at, axis=1)
        (key,) = self._keys(around, others)
        order = np.lexsort((total.cost, key))
        key = key[order]
        best = order[np.concatenate([[True], key[1:] != key[:-1]])] if len(order) else order
        self.gone.append(_Gone(v, around, others[best], total.rows[best, at]))
        if not len(best):
            self.base = math.inf
        self._add(Listing(around, others[best], total.cost[best]))
        return list(around)

    def _keys(self, scope: Sequence[int], *tables: np.ndarray) -> list[np.ndarray]:
        """A number per row of each table, equal for equal rows."""
        if math.prod(self.sizes[v] for v in scope) < KEYS:
            found = [np.zeros(len(rows), dtype=np.int64) for rows in tables]
            for i, v in enumerate(scope):
                found = [keys * self.sizes[v] + rows[:, i] for keys, rows in zip(found, tables, strict=True)]
            return found
        together = np.unique(np.concatenate(tables), axis=0, return_inverse=True)[1].reshape(-1)
        return np.split(together, np.cumsum([len(rows) for rows in tables])[:-1])

    def _choice(self) -> tuple[int, ...]:
        chosen = [self.singles.get(v, 0) for v in range(len(self.sizes))]
        for gone in reversed(self.gone):
            wanted = [chosen[u] for u in gone.around]
            place = int(np.flatnonzero((gone.rows == wanted).all(axis=1))[0])
            chosen[gone.variable] = int(gone.best[place])
        return tuple(chosen)
