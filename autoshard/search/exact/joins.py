"""Tables as rows: joined where they agree on the variables in common, and minimized over one of these.

A join is a sort-merge join in which the rows that agree lie in the order of their costs, so that what exceeds the gap
is never made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Scope = tuple[int, ...]
KEYS = 1 << 62


@dataclass(frozen=True, eq=False)
class Rows:
    """One table: `rows` [n, variables of `scope`] of choices and their `cost` [n]."""

    scope: Scope
    rows: np.ndarray
    cost: np.ndarray


class Joins:
    """Joins of rows within a gap.

    Of more rows than `width` the cheapest stay; `beyond` is what those that were given up cost at least.
    """

    def __init__(self, sizes: Sequence[int], gap: float, width: int, stop: Callable[[], bool]) -> None:
        self.sizes, self.gap, self.width, self.stop = sizes, gap, width, stop
        self.beyond = math.inf

    def joined(self, one: Rows, other: Rows) -> Rows:
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
        return Rows((*one.scope, *(other.scope[i] for i in more)), rows, cost[good])

    def _kept(self, cost: np.ndarray, good: np.ndarray) -> np.ndarray:
        """Of the rows within the gap, as many as there is room for."""
        width = 64 if self.stop() else self.width
        if len(good) <= width:
            return good
        order = np.argsort(cost[good], kind="stable")
        self.beyond = min(self.beyond, float(cost[good[order[width]]]))
        return np.sort(good[order[:width]])

    def minimized(self, v: int, total: Rows) -> tuple[Scope, np.ndarray, np.ndarray, np.ndarray]:
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
