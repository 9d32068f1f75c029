"""The remaining core as a mixed-integer program over the local polytope, solved by HiGHS.

One binary per choice; one continuous variable per allowed entry of a table, whose marginals must be the choices
(Schlesinger's local polytope). Its linear relaxation is tight on most cores that plans give, and HiGHS branches where
it is not. HiGHS works with tolerances: callers check what it returns with whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoshard.search.exact.wcsp import highs
from autoshard.search.exact.wcsp.problem import Scope, Term

# Columns that HiGHS is given at most.
COLUMNS = 3_000_000


@dataclass(frozen=True)
class LinearLimit:
    """Sum of the terms <= most; numbers of any scale (they are brought to about 1 here)."""

    terms: Sequence[Term]
    most: float


@dataclass(frozen=True)
class MilpAnswer:
    """What HiGHS said: a choice per variable (None: none found), a lower bound, and whether none exists."""

    choice: tuple[int, ...] | None
    bound: float
    infeasible: bool


class MilpBuilder:
    """Rows and columns of the program while it is being built."""

    def __init__(self, sizes: Sequence[int]):
        self.first = np.concatenate([[0], np.cumsum(sizes)]).astype(int)
        self.sizes = tuple(sizes)
        self.columns = int(self.first[-1])
        self.rows = 0
        self._entries: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._low: list[np.ndarray] = []
        self._high: list[np.ndarray] = []
        self._tables: dict[Scope, tuple[int, np.ndarray]] = {}
        for v in range(len(sizes)):
            columns = np.arange(self.first[v], self.first[v + 1])
            self._put(np.zeros(len(columns), int), columns, np.ones(len(columns)), [1.0], [1.0])

    def _put(
        self,
        rows: np.ndarray,
        columns: np.ndarray,
        numbers: np.ndarray,
        low: Sequence | np.ndarray,
        high: Sequence | np.ndarray,
    ) -> None:
        self._entries.append((rows + self.rows, columns, numbers))
        self._low.append(np.asarray(low, float))
        self._high.append(np.asarray(high, float))
        self.rows += len(low)

    def columns_of(self, scope: Scope, allowed: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """The columns of a scope's entries and their flat positions; made at the first call, from what is allowed."""
        if len(scope) == 1:
            return np.arange(self.first[scope[0]], self.first[scope[0] + 1]), np.arange(self.sizes[scope[0]])
        if scope not in self._tables:
            flat = np.arange(math.prod(self.sizes[v] for v in scope)) if allowed is None else np.flatnonzero(allowed)
            self._tables[scope] = (self.columns, flat)
            columns = np.arange(self.columns, self.columns + len(flat))
            self.columns += len(flat)
            places = np.unravel_index(flat, tuple(self.sizes[v] for v in scope))
            for v, place in zip(scope, places, strict=True):
                size = self.sizes[v]
                rows = np.concatenate([place, np.arange(size)])
                names = np.concatenate([columns, np.arange(self.first[v], self.first[v + 1])])
                numbers = np.concatenate([np.ones(len(flat)), -np.ones(size)])
                self._put(rows, names, numbers, np.zeros(size), np.zeros(size))
        start, flat = self._tables[scope]
        return np.arange(start, start + len(flat)), flat

    def limit(self, terms: Sequence[Term], most: float) -> None:
        """Add the row that a sum of terms is at most `most`."""
        scale = max([abs(most), *(float(np.abs(array).max()) for _, array in terms)]) or 1.0
        columns, numbers = [], []
        for scope, array in terms:
            mine, flat = self.columns_of(scope, None)
            columns.append(mine)
            numbers.append(array.ravel()[flat] / scale)
        names = np.concatenate(columns)
        self._put(np.zeros(len(names), int), names, np.concatenate(numbers), [-np.inf], [most / scale])

    def exclude(self, choice: dict[int, int]) -> None:
        """Forbid one combination of choices."""
        names = np.array([self.first[v] + position for v, position in choice.items()])
        self._put(np.zeros(len(names), int), names, np.ones(len(names)), [-np.inf], [len(names) - 1.0])

    def solve(self, cost: np.ndarray, upper: np.ndarray, time_limit: float) -> MilpAnswer:
        from scipy.optimize import LinearConstraint  # only here: the import takes long
        from scipy.sparse import coo_array

        rows, columns, numbers = (np.concatenate([entry[k] for entry in self._entries]) for k in range(3))
        matrix = coo_array((numbers, (rows, columns)), shape=(self.rows, self.columns)).tocsr()
        low, high = np.concatenate(self._low), np.concatenate(self._high)
        whole = np.zeros(self.columns)
        whole[: self.first[-1]] = 1
        rows = LinearConstraint(matrix, low, high)  # pyright: ignore[reportArgumentType] scipy's stubs know arrays only
        found = highs.least(cost, whole, upper, rows, time_limit)
        bound = -math.inf if found.mip_dual_bound is None else float(found.mip_dual_bound)
        if found.status == 2:
            return MilpAnswer(None, math.inf, True)
        if found.x is None:
            return MilpAnswer(None, bound, False)
        choice = tuple(int(found.x[a:b].argmax()) for a, b in zip(self.first[:-1], self.first[1:], strict=True))
        return MilpAnswer(choice, bound, False)


def cells(priced: Sequence[Term]) -> int:
    """How many columns the tables would make."""
    return sum(int(np.isfinite(array).sum()) for scope, array in priced if len(scope) > 1)


def minimize(
    sizes: Sequence[int],
    priced: Sequence[Term],
    time_limit: float,
    limits: Sequence[LinearLimit] = (),
    excluded: Sequence[dict[int, int]] = (),
) -> MilpAnswer:
    """The least sum of tables under limits; scopes ascending, one table per scope. Costs in any unit."""
    program = MilpBuilder(sizes)
    parts = [(program.columns_of(scope, np.isfinite(array)), scope, array) for scope, array in priced]
    for limit in limits:
        program.limit(limit.terms, limit.most)
    for choice in excluded:
        program.exclude(choice)
    cost, upper = np.zeros(program.columns), np.ones(program.columns)
    for (columns, flat), _, array in parts:
        numbers = array.ravel()[flat]
        known = np.isfinite(numbers)
        cost[columns] += np.where(known, numbers, 0.0)
        upper[columns[~known]] = 0.0
    # HiGHS stops within 1e-6 of its objective: the largest cost as 1000 puts that at 1e-9 of it.
    scale = (float(np.abs(cost).max()) or 1.0) / 1000
    answer = program.solve(cost / scale, upper, time_limit)
    return MilpAnswer(answer.choice, answer.bound * scale, answer.infeasible)
