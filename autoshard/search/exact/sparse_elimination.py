"""The least sum of tables of which only the entries close to their minimum are listed: joins instead of large arrays.

Variables leave one by one, as in bucket elimination (Dechter, 1999), and what exceeds the gap is dropped at once. Where
the choices left around a variable have few combinations, tables are small arrays that are added up. Elsewhere rows are
joined that agree on the variables in common: after message passing few entries are close to the minimum, and the number
of rows, not the product of the variables' sizes, is what an elimination costs.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autoshard.search.exact.consistency import SparseTables, consistent_entries, unary_entries

Scope = tuple[int, ...]

# Tables as rows: joined where they agree on the variables in common, and minimized over one of these.
#
# A join is a sort-merge join in which the rows that agree lie in the order of their costs, so that what exceeds the gap
# is never made.


KEYS = 1 << 62
MOST_JOINED = 1 << 23
"""Rows that a join makes at most, before the cheapest are kept: half a GiB."""
HALVINGS = 40
"""Gaps that are tried for one within which there is room for all rows."""


@dataclass(frozen=True, eq=False)
class RowTable:
    """One table: `rows` [n, variables of `scope`] of choices and their `cost` [n]."""

    scope: Scope
    rows: np.ndarray
    cost: np.ndarray


class RowJoins:
    """Joins of rows within a gap.

    Of more rows than `width` the cheapest stay; `beyond` is what those that were given up cost at least.
    """

    def __init__(self, sizes: Sequence[int], gap: float, width: int, stop: Callable[[], bool]) -> None:
        self.sizes, self.gap, self.width, self.stop = sizes, gap, width, stop
        self.beyond = math.inf

    def joined(self, one: RowTable, other: RowTable) -> RowTable:
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
        gap = min(self.gap, float(one.cost.max(initial=0.0) + other.cost.max(initial=0.0)))
        span = 4 * gap or 1.0
        place = theirs.reshape(-1) + other.cost / span
        order = np.argsort(place, kind="stable")
        place = place[order]
        first = np.searchsorted(place, key - 0.25)

        def within(gap: float) -> np.ndarray:
            """How many rows each row meets whose sums are within a gap."""
            last = np.searchsorted(place, key + np.maximum(gap - one.cost, -0.5 * span) / span + 1e-7)
            return np.where(found, np.maximum(last - first, 0), 0)

        counts = within(gap)
        if counts.sum() > MOST_JOINED:
            counts = self._fewer(within, gap)
        place = np.repeat(np.arange(len(mine)), counts)
        inner = order[first[place] + np.arange(len(place)) - np.repeat(np.cumsum(counts) - counts, counts)]
        cost = one.cost[place] + other.cost[inner]
        good = np.flatnonzero(cost <= self.gap)
        good = self._kept(cost, good)
        place, inner = place[good], inner[good]
        rows = np.concatenate([one.rows[place], other.rows[inner][:, more]], axis=1)
        return RowTable((*one.scope, *(other.scope[i] for i in more)), rows, cost[good])

    def _fewer(self, within: Callable[[float], np.ndarray], gap: float) -> np.ndarray:
        """How many rows each row meets where there is no room for all within the gap: those within the widest gap for
        which there is, and of others at the next one as many for each row as fit."""
        low, high = 0.0, gap
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if within(middle).sum() > MOST_JOINED else (middle, high)
        self.beyond = min(self.beyond, low)
        wide, counts = within(high), within(low)
        if counts.sum() > MOST_JOINED:  # as many cost nothing
            counts = np.zeros_like(counts)
        return np.maximum(counts, np.minimum(wide, max(1, MOST_JOINED // max(1, len(wide)))))

    def _kept(self, cost: np.ndarray, good: np.ndarray) -> np.ndarray:
        """Of the rows within the gap, as many as there is room for."""
        width = 64 if self.stop() else self.width
        if len(good) <= width:
            return good
        found = cost[good]
        first = np.partition(found, width)[width]  # of what is given up
        self.beyond = min(self.beyond, float(first))
        keep = found < first
        keep[np.flatnonzero(found == first)[: width - int(keep.sum())]] = True
        return good[keep]

    def minimized(self, v: int, total: RowTable) -> tuple[Scope, np.ndarray, np.ndarray, np.ndarray]:
        """Over v: the variables around it, the combinations of these, and for each the best of v and its cost."""
        at = total.scope.index(v)
        around = tuple(u for u in total.scope if u != v)
        others = np.delete(total.rows, at, axis=1)
        (key,) = self._keys(around, others)
        order = np.lexsort((total.cost, key))
        key = key[order]
        best = order[np.concatenate([[True], key[1:] != key[:-1]])] if len(order) else order
        return around, others[best], total.rows[best, at], total.cost[best]

    def _keys(self, scope: Sequence[int], *tables: np.ndarray) -> list[np.ndarray]:
        """A number per row of each table, equal for equal rows."""
        if math.prod(self.sizes[v] for v in scope) < KEYS:
            found = [np.zeros(len(rows), dtype=np.int64) for rows in tables]
            for i, v in enumerate(scope):
                found = [keys * self.sizes[v] + rows[:, i] for keys, rows in zip(found, tables, strict=True)]
            return found
        together = np.unique(np.concatenate(tables), axis=0, return_inverse=True)[1].reshape(-1)
        return np.split(together, np.cumsum([len(rows) for rows in tables])[:-1])


SMALL = 1 << 13
"""Up to so many combinations tables are arrays."""


@dataclass(frozen=True)
class BestWithinGap:
    """The least sum and its choice, None where all sums exceed the gap.

    Every sum below `beyond` was looked at: what was given up for want of room costs at least that.
    """

    choice: tuple[int, ...] | None
    cost: float
    beyond: float


def least_sum(
    unary: Sequence[np.ndarray],
    listings: Sequence[SparseTables],
    gap: float,
    width: int = 1 << 18,
    stop: Callable[[], bool] = lambda: False,
) -> BestWithinGap:
    """The least sum among those of at most `gap`.

    Args:
        unary: per variable, [choices] costs, none negative; inf for what is out.
        width: rows that an elimination keeps at most; of more the cheapest stay.
        stop: asked now and then; once it is true, hardly any rows are kept.
    """
    left, alive = consistent_entries(unary, [*listings, unary_entries(unary, listings)], gap)
    if left is None:
        return BestWithinGap(None, math.inf, math.inf)
    elimination = _Elimination(list(map(np.flatnonzero, alive)), gap, width, stop)
    for one in left:
        elimination.add(one)
    return elimination.run()


@dataclass(frozen=True, eq=False)
class _SparseTable:
    """A table over variables in ascending order, as an array of their choices (inf for what is out) or as rows."""

    scope: Scope
    array: np.ndarray | None
    rows: RowTable | None
    count: int


@dataclass(frozen=True, eq=False)
class _EliminatedRows:
    """A variable that left: its best choice for each combination around it, in an array or in rows."""

    variable: int
    around: Scope
    rows: np.ndarray | None
    best: np.ndarray

    def answer(self, chosen: Sequence[int]) -> int:
        wanted = [chosen[u] for u in self.around]
        if self.rows is None:
            return int(self.best[tuple(wanted)])
        return int(self.best[np.flatnonzero((self.rows == wanted).all(axis=1))[0]])


class _Elimination:
    """Choices are numbered among those left; `left` has their numbers among all."""

    def __init__(self, left: list[np.ndarray], gap: float, width: int, stop: Callable[[], bool]) -> None:
        self.left, self.gap = left, gap
        self.room = np.array([len(one) for one in left], dtype=np.int64)
        self.rooms: list[int] = self.room.tolist()
        self.weights = np.log(self.room).tolist()
        # Where the choices of each variable begin among all of all, and the number of each among those left.
        self.first = np.cumsum([0, *(int(one[-1]) + 1 for one in left)])
        self.number = np.zeros(self.first[-1], dtype=np.int64)
        for one, start, room in zip(left, self.first.tolist(), self.rooms, strict=False):
            self.number[start + one] = range(room)
        self.joins = RowJoins(self.rooms, gap, width, stop)
        self.base = 0.0
        self.tables: dict[int, _SparseTable] = {}
        self.at: list[set[int]] = [set() for _ in left]
        self.same: dict[Scope, int] = {}
        self.eliminated: list[_EliminatedRows] = []
        self.estimates: dict[int, float] = {}
        self._count = 0

    # -- tables

    def add(self, one: SparseTables) -> None:
        """All tables of a listing."""
        open_ = np.asarray(self.room[one.scopes] > 1)
        bare = np.logical_not(open_.any(axis=1))
        self.base += float(one.cost[bare[one.table]].sum())
        for table in self._arranged(one, open_, np.flatnonzero(~bare)):
            self._put(table)

    def _arranged(self, one: SparseTables, open_: np.ndarray, which: np.ndarray) -> Iterator[_SparseTable]:
        """Some of a listing's tables over the variables that still have several choices."""
        rank = np.where(open_[one.table], self.number[self.first[one.scopes][one.table] + one.rows], 0)
        order = np.argsort(one.table, kind="stable")
        ends = np.searchsorted(one.table[order], np.arange(len(one.scopes) + 1)).tolist()
        scopes, places = one.scopes.tolist(), open_.tolist()
        for table in which.tolist():
            free = sorted((i for i, isopen in enumerate(places[table]) if isopen), key=scopes[table].__getitem__)
            mine = order[ends[table] : ends[table + 1]]
            scope = tuple(scopes[table][i] for i in free)
            yield self._table(scope, RowTable(scope, rank[mine][:, free], one.cost[mine]))

    def _table(self, scope: Scope, rows: RowTable) -> _SparseTable:
        """Rows, as an array if it is small."""
        shape = [self.rooms[v] for v in scope]
        if not scope or math.prod(shape) > SMALL:
            return _SparseTable(scope, None, rows, len(rows.cost))
        array = np.full(shape, np.inf)
        array[tuple(rows.rows[:, [rows.scope.index(v) for v in scope]].T)] = rows.cost
        return _SparseTable(scope, array, None, len(rows.cost))

    def _rows(self, table: _SparseTable) -> RowTable:
        if table.rows is not None:
            return table.rows
        assert table.array is not None
        places = np.nonzero(table.array <= self.gap)
        return RowTable(table.scope, np.stack(places, axis=1), table.array[places])

    def _put(self, table: _SparseTable) -> None:
        if not table.scope:
            costs = np.asarray(table.array) if table.rows is None else table.rows.cost
            self.base += float(costs.min(initial=np.inf))
            return
        number = self.same.get(table.scope)
        if number is not None and number in self.tables:
            other = self.tables[number]
            if table.array is not None and other.array is not None:
                array = other.array + table.array
                self.tables[number] = _SparseTable(table.scope, array, None, int((array <= self.gap).sum()))
            else:
                joined = self.joins.joined(self._rows(other), self._rows(table))
                self.tables[number] = self._table(table.scope, joined)
            return
        self.same[table.scope] = self._count
        self.tables[self._count] = table
        for v in table.scope:
            self.at[v].add(self._count)
        self._count += 1

    # -- elimination

    def run(self) -> BestWithinGap:
        heap = [(self._estimate(v), v) for v, room in enumerate(self.rooms) if room > 1]
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
            return BestWithinGap(None, math.inf, self.joins.beyond)
        return BestWithinGap(self._choice(), self.base, self.joins.beyond)

    def _estimate(self, v: int) -> float:
        """How dear eliminating v seems, as a logarithm: half by the rows that it would join if tables were independent,
        half by the combinations of all variables around, which holds back tables over many variables."""
        rows = combinations = 0.0
        seen: set[int] = set()
        for number in self.at[v]:
            table = self.tables[number]
            rows += math.log(max(1, table.count))
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
        numbers = sorted(self.at[v], key=lambda number: (self.tables[number].count, number))
        tables = [self.tables.pop(number) for number in numbers]
        for number, table in zip(numbers, tables, strict=True):
            for u in table.scope:
                self.at[u].discard(number)
        if not tables:
            return []
        scope = tuple(sorted({u for table in tables for u in table.scope}))
        if math.prod(self.rooms[u] for u in scope) <= SMALL:
            return self._added_up(v, scope, tables)
        total, *rows = map(self._rows, tables)
        while rows:
            near = max(range(len(rows)), key=lambda i: len(set(total.scope) & set(rows[i].scope)))
            total = self.joins.joined(total, rows.pop(near))
        around, others, best, cost = self.joins.minimized(v, total)
        self.eliminated.append(_EliminatedRows(v, around, others, best))
        if not len(best):
            self.base = math.inf
        self._put(self._table(tuple(sorted(around)), RowTable(around, others, cost)))
        return list(around)

    def _added_up(self, v: int, scope: Scope, tables: Sequence[_SparseTable]) -> list[int]:
        """The same in arrays."""
        total = np.zeros(())
        for table in tables:
            array = self._table(table.scope, self._rows(table)).array if table.array is None else table.array
            assert array is not None
            inside = set(table.scope)
            total = total + array.reshape([self.rooms[u] if u in inside else 1 for u in scope])
        at = scope.index(v)
        around = scope[:at] + scope[at + 1 :]
        self.eliminated.append(_EliminatedRows(v, around, None, total.argmin(axis=at)))
        least = total.min(axis=at)
        near = least <= self.gap
        count = int(near.sum())
        if not count:
            self.base = math.inf
            return list(around)
        if count < near.size:
            least = np.where(near, least, np.inf)
        self._put(_SparseTable(around, least, None, count))
        return list(around)

    def _choice(self) -> tuple[int, ...]:
        chosen = [0] * len(self.left)
        for eliminated in reversed(self.eliminated):
            chosen[eliminated.variable] = eliminated.answer(chosen)
        return tuple(int(choices[one]) for choices, one in zip(self.left, chosen, strict=True))
