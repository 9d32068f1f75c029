"""The least sum of tables of which only the entries close to their minimum are listed: joins instead of arrays.

Variables leave one by one, as in bucket elimination (Dechter, 1999), but what is summed are the rows that agree on the
variables in common (a sort-merge join), and what exceeds the gap is dropped at once. After message passing few entries
are that close, and the number of rows, not the product of the variables' sizes, is what an elimination costs.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

Scope = tuple[int, ...]
KEYS = 1 << 62


@dataclass(frozen=True, eq=False)
class Listing:
    """Equal tables over different variables, by their entries within the gap; those not listed cost more than it.

    `scopes` [tables, places] are the variables of each table. Per entry: `table` [n], `rows` [n, places] of choices,
    each at most once, and `cost` [n], none negative.
    """

    scopes: np.ndarray
    table: np.ndarray
    rows: np.ndarray
    cost: np.ndarray


@dataclass(frozen=True, eq=False)
class _Rows:
    """One table: `rows` [n, variables of `scope`] of choices and their `cost` [n]."""

    scope: Scope
    rows: np.ndarray
    cost: np.ndarray


@dataclass(frozen=True)
class Nearest:
    """The least sum and its choice, None where all sums exceed the gap.

    Every sum below `beyond` was looked at: what was given up for want of room costs at least that.
    """

    choice: tuple[int, ...] | None
    cost: float
    beyond: float


def least_sum(
    unary: Sequence[np.ndarray],
    listings: Sequence[Listing],
    gap: float,
    width: int = 1 << 18,
    stop: Callable[[], bool] = lambda: False,
) -> Nearest:
    """The least sum among those of at most `gap`.

    Args:
        unary: per variable, [choices] costs, none negative; inf for what is out.
        width: rows that an elimination keeps at most; of more the cheapest stay.
        stop: asked now and then; once it is true, hardly any rows are kept.
    """
    left, alive = _consistent(unary, [*listings, _alone(unary, listings)], gap)
    if left is None:
        return Nearest(None, math.inf, math.inf)
    return _Elimination(alive, _separate(left, alive), gap, width, stop).run()


def _alone(unary: Sequence[np.ndarray], listings: Sequence[Listing]) -> Listing:
    """A listing of the variables that stand in no other, for their own costs."""
    inside = {v for one in listings for v in one.scopes.reshape(-1).tolist()}
    alone = np.array([v for v in range(len(unary)) if v not in inside], dtype=np.int64)
    sizes = np.array([len(unary[v]) for v in alone], dtype=np.int64)
    table = np.repeat(np.arange(len(alone)), sizes)
    rows = np.arange(len(table)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return Listing(alone[:, None], table, rows[:, None], np.zeros(len(table)))


def _consistent(
    unary: Sequence[np.ndarray], listings: Sequence[Listing], gap: float
) -> tuple[list[Listing] | None, list[np.ndarray]]:
    """The listings without entries that make a choice which elsewhere has none, or too much to pay in all; None if
    nothing is left. Unary costs are put into the listings. Per variable, which choices are left."""
    first = np.concatenate([[0], np.cumsum([len(costs) for costs in unary])])
    own = np.concatenate(list(unary)) if unary else np.zeros(0)
    takers = _takers(listings, len(unary))
    listings = [_with_costs(one, first, own, taken) for one, taken in zip(listings, takers, strict=True)]
    taken = [one.scopes[mine] for one, mine in zip(listings, takers, strict=True)]
    for v in np.concatenate([*taken, np.zeros(0, dtype=np.int64)]).tolist():
        own[first[v] : first[v + 1]] = np.where(np.isfinite(own[first[v] : first[v + 1]]), 0.0, np.inf)
    alive, kept = _alive(own, _Flat(listings, first), gap)
    ends = np.cumsum([0, *(len(one.cost) for one in listings)])
    listings = [
        Listing(one.scopes, one.table[keep], one.rows[keep], one.cost[keep])
        for one, keep in zip(listings, (kept[low:high] for low, high in itertools.pairwise(ends)), strict=True)
    ]
    left = [alive[low:high] for low, high in itertools.pairwise(first.tolist())]
    return (listings if all(one.any() for one in left) else None), left


class _Flat:
    """All places of all entries behind one another.

    `cell` [places] numbers the choice that an entry makes there, within its table; `choice` [cells] is that choice's
    number among all, `entry` [places] the entry's among all, `cost` [entries].
    """

    def __init__(self, listings: Sequence[Listing], first: np.ndarray) -> None:
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


def _alive(own: np.ndarray, flat: _Flat, gap: float) -> tuple[np.ndarray, np.ndarray]:
    """Which choices and which entries are left, once nothing more can be dropped."""
    kept = np.isfinite(flat.cost)
    cell, entry = flat.cell, flat.entry
    alive, before = own <= gap, -1
    while before != (before := int(kept.sum())):
        chosen = kept[entry]
        cell, entry = cell[chosen], entry[chosen]
        least = np.full(len(flat.choice), np.inf)
        np.minimum.at(least, cell, flat.cost[entry])
        alive = own + np.bincount(flat.choice, least, len(own)) <= gap
        kept[entry[~alive[flat.choice[cell]]]] = False
    return alive, kept


def _takers(listings: Sequence[Listing], count: int) -> list[np.ndarray]:
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


def _with_costs(one: Listing, first: np.ndarray, own: np.ndarray, taken: np.ndarray) -> Listing:
    places = first[one.scopes][one.table] + one.rows
    return replace(one, cost=one.cost + np.where(taken[one.table], own[places], 0.0).sum(axis=1))


def _separate(listings: Sequence[Listing], alive: Sequence[np.ndarray]) -> Iterator[_Rows]:
    """Each table by itself, over the variables that still have several choices."""
    several = np.array([one.sum() > 1 for one in alive], dtype=bool)
    for one in listings:
        order = np.argsort(one.table, kind="stable")
        ends = np.searchsorted(one.table[order], np.arange(len(one.scopes) + 1))
        for scope, low, high in zip(one.scopes.tolist(), ends[:-1], ends[1:], strict=True):
            free = sorted((i for i, v in enumerate(scope) if several[v]), key=scope.__getitem__)
            mine = order[low:high]
            yield _Rows(tuple(scope[i] for i in free), one.rows[mine][:, free], one.cost[mine])


@dataclass(frozen=True, eq=False)
class _Gone:
    """A variable that left: for each row of its neighbours' choices, ordered by key, its best choice."""

    variable: int
    around: Scope
    rows: np.ndarray
    best: np.ndarray


class _Elimination:
    def __init__(
        self, alive: Sequence[np.ndarray], tables: Iterable[_Rows], gap: float, width: int, stop: Callable[[], bool]
    ) -> None:
        self.sizes, self.gap, self.width, self.stop = tuple(map(len, alive)), gap, width, stop
        self.room = [int(one.sum()) for one in alive]
        self.weights = [math.log(max(1, room)) for room in self.room]
        self.chosen = [int(one.argmax()) for one in alive]
        self.tables: dict[int, _Rows] = {}
        self.at: list[set[int]] = [set() for _ in alive]
        self.base, self.beyond = 0.0, math.inf
        self.gone: list[_Gone] = []
        self.estimates: dict[int, float] = {}
        self._count = 0
        same: dict[Scope, list[_Rows]] = {}
        for table in tables:
            same.setdefault(table.scope, []).append(table)
        for parts in same.values():
            self._add(reduce(self._joined, parts))

    def _add(self, table: _Rows) -> None:
        if not table.scope:
            self.base += float(table.cost[0]) if len(table.cost) else math.inf
            return
        self.tables[self._count] = table
        for v in table.scope:
            self.at[v].add(self._count)
        self._count += 1

    def run(self) -> Nearest:
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
            return Nearest(None, math.inf, self.beyond)
        return Nearest(self._choice(), self.base, self.beyond)

    # -- elimination

    def _estimate(self, v: int) -> float:
        """How dear eliminating v seems, as a logarithm: half by the rows that it would join if tables were independent,
        half by the combinations of all variables around, which holds back tables over many variables."""
        rows = combinations = 0.0
        seen: set[int] = set()
        for number in self.at[v]:
            table = self.tables[number]
            rows += math.log(max(1, len(table.cost)))
            for u in table.scope:
                if u in seen:
                    rows -= self.weights[u]
                else:
                    seen.add(u)
                    combinations += self.weights[u]
        self.estimates[v] = rows + combinations
        return rows + combinations

    def _eliminate(self, v: int) -> list[int]:
        """Minimize v out; its neighbours."""
        numbers = sorted(self.at[v], key=lambda number: (len(self.tables[number].cost), number))
        tables = [self.tables.pop(number) for number in numbers]
        for number, table in zip(numbers, tables, strict=True):
            for u in table.scope:
                self.at[u].discard(number)
        if not tables:
            return []
        total = tables.pop(0)
        while tables:
            near = max(range(len(tables)), key=lambda i: len(set(total.scope) & set(tables[i].scope)))
            total = self._joined(total, tables.pop(near))
        return self._minimized(v, total)

    def _joined(self, one: _Rows, other: _Rows) -> _Rows:
        """The rows of both that agree on the variables in common."""
        if not len(other.cost):
            one, other = other, one
        common = [v for v in one.scope if v in other.scope]
        more = [i for i, v in enumerate(other.scope) if v not in common]
        mine, theirs = self._keys(
            common,
            one.rows[:, [one.scope.index(v) for v in common]],
            other.rows[:, [other.scope.index(v) for v in common]],
        )
        # The rows that agree and are within the gap are neighbours in the order of key and cost.
        present, theirs = np.unique(theirs, return_inverse=True)
        key = np.minimum(np.searchsorted(present, mine), len(present) - 1)
        found = present[key] == mine
        span = 4 * self.gap or 1.0
        place = theirs.reshape(-1) + other.cost / span
        order = np.argsort(place, kind="stable")
        first = np.searchsorted(place[order], key - 0.25)
        last = np.searchsorted(place[order], key + (self.gap - one.cost) / span + 1e-7)
        counts = np.where(found, last - first, 0)
        place = np.repeat(np.arange(len(mine)), counts)
        inner = order[first[place] + np.arange(len(place)) - np.repeat(np.cumsum(counts) - counts, counts)]
        cost = one.cost[place] + other.cost[inner]
        good = np.flatnonzero(cost <= self.gap)
        good = self._kept(cost, good)
        place, inner = place[good], inner[good]
        rows = np.concatenate([one.rows[place], other.rows[inner][:, more]], axis=1)
        return _Rows((*one.scope, *(other.scope[i] for i in more)), rows, cost[good])

    def _kept(self, cost: np.ndarray, good: np.ndarray) -> np.ndarray:
        """Of the rows within the gap, as many as there is room for."""
        width = 64 if self.stop() else self.width
        if len(good) <= width:
            return good
        order = np.argsort(cost[good], kind="stable")
        self.beyond = min(self.beyond, float(cost[good[order[width]]]))
        return np.sort(good[order[:width]])

    def _minimized(self, v: int, total: _Rows) -> list[int]:
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
        self._add(_Rows(around, others[best], total.cost[best]))
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
        chosen = list(self.chosen)
        for gone in reversed(self.gone):
            wanted = [chosen[u] for u in gone.around]
            place = int(np.flatnonzero((gone.rows == wanted).all(axis=1))[0])
            chosen[gone.variable] = int(gone.best[place])
        return tuple(chosen)
