"""A lower bound by moving costs between tables, and the choices that it rules out.

Sequential reweighted message passing (Kolmogorov, "A new look at reweighted message passing", PAMI 2015; TRW-S for
pairwise tables): a variable collects what its tables can spare, keeps the minimum as part of the bound and hands the
rest on to the tables that come later in the sweep. Messages are whole numbers, so the bound is exact; a projection is
remembered by its table and the messages that went in, and equal layers share it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from autoshard.search.exact.wcsp.interning import InternedTable
from autoshard.search.exact.wcsp.network import Network
from autoshard.search.exact.wcsp.problem import Scope

# Bytes of vectors kept before those out of use are forgotten.
VECTORS = 1 << 28


class Vectors:
    """Vectors that exist once: equal contents have one number."""

    def __init__(self):
        self.items: list[np.ndarray] = []
        self.nbytes = 0
        self._numbers: dict[bytes, int] = {}

    def number(self, vector: np.ndarray) -> int:
        key = vector.tobytes()
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.items)
            self.items.append(vector)
            self.nbytes += 2 * len(key)
        return found


class _Outcome(NamedTuple):
    """What a visit comes to: rise of the bound, the vector before it was handed on, the largest number of that, the
    vector kept, and per table the new loan."""

    least: float
    total: np.ndarray
    most: float
    unary: int
    lent: list[int]


class Trws:
    """The state of the message passing on a network; `bound` is in the network's units, its base included.

    `unary[v]` is the number of what variable v holds. `state[f]` has, for each dim of table f, the number of what the
    table has lent to that variable (subtracted from the table, added to the variable), then for each dim the number of
    the variable's penalty: 0 for choices left, inf for those struck out.
    """

    def __init__(self, network: Network):
        self.network = network
        self.bound = network.base
        self.order = sorted(network.choices)
        self.tables: list[tuple[Scope, InternedTable]] = []
        self.vectors = Vectors()
        self._visits: dict[tuple, _Outcome] = {}
        self._projections: dict[tuple, np.ndarray] = {}
        number = self.vectors.number
        zeros = {size: np.zeros(size) for size in {network.size(v) for v in self.order}}
        self.unary = {v: number(zeros[network.size(v)]) for v in self.order}
        for scope, table in sorted(network.tables.items()):
            if len(scope) == 1:
                self.unary[scope[0]] = number(table.data)
            else:
                self.tables.append((scope, table))
        none = {v: number(zeros[network.size(v)]) for v in self.order}
        self.state = [[none[v] for v in scope] * 2 for scope, _ in self.tables]
        self.at: dict[int, list[tuple[int, int]]] = {v: [] for v in self.order}
        for f, (scope, _) in enumerate(self.tables):
            for dim, v in enumerate(scope):
                self.at[v].append((f, dim))
        self._later = {forward: {v: self._goes_on(v, forward) for v in self.order} for forward in (True, False)}
        for v in self.order:
            self._mark(v)

    def _goes_on(self, v: int, forward: bool) -> tuple[tuple[int, int, bool], ...]:
        """Per table of v: its serial, v's dim, and whether the sweep comes to the table again."""
        end = -1 if forward else 0
        return tuple((self.tables[f][1].serial, dim, self.tables[f][0][end] != v) for f, dim in self.at[v])

    def _mark(self, v: int) -> None:
        """Tell the tables of v which of its choices are struck out."""
        known = np.isfinite(self.vectors.items[self.unary[v]])
        penalty = self.vectors.number(np.where(known, 0.0, np.inf))
        for f, dim in self.at[v]:
            self.state[f][len(self.tables[f][0]) + dim] = penalty

    def lent(self, f: int, dim: int) -> np.ndarray:
        """What table f has lent to its variable `dim`, per choice."""
        return self.vectors.items[self.state[f][dim]]

    def sweep(self, upper: float) -> None:
        """Once through the variables and back; choices that cannot be in a solution up to `upper` are struck out."""
        for forward in (True, False):
            self._projections.clear()
            if self.vectors.nbytes > VECTORS:
                self._compact()
            for v in self.order if forward else reversed(self.order):
                if np.isfinite(self.bound):
                    self._visit(v, forward, upper)

    def _compact(self) -> None:
        """Forget the vectors that nothing holds any more, and the visits with them."""
        old, self.vectors = self.vectors.items, Vectors()
        self._visits.clear()
        self.unary = {v: self.vectors.number(old[one]) for v, one in self.unary.items()}
        self.state = [[self.vectors.number(old[one]) for one in state] for state in self.state]

    def _visit(self, v: int, forward: bool, upper: float) -> None:
        later = self._later[forward][v]
        key = (self.unary[v], later, *(tuple(self.state[f]) for f, _ in self.at[v]))
        outcome = self._visits.get(key)
        if outcome is None:
            outcome = self._visits[key] = self._compute(v, later)
        self.bound += outcome.least
        if not np.isfinite(self.bound):
            return
        for (f, dim), lent in zip(self.at[v], outcome.lent, strict=True):
            self.state[f][dim] = lent
        before, self.unary[v] = self.unary[v], outcome.unary
        if outcome.most > upper - self.bound:
            out = outcome.total > upper - self.bound
            self.unary[v] = self.vectors.number(np.where(out, np.inf, self.vectors.items[outcome.unary]))
            self._mark(v)
        elif outcome.unary != before:
            self._mark(v)

    def _compute(self, v: int, later: tuple[tuple[int, int, bool], ...]) -> _Outcome:
        """Collect what the tables of v can spare, keep the minimum, hand on the rest."""
        mine = self.at[v]
        total = self.vectors.items[self.unary[v]]
        lent = []
        for f, dim in mine:
            spare = self._project(f, dim)
            lent.append(self.lent(f, dim) + np.where(np.isfinite(spare), spare, 0.0))
            total = total + spare
        least = float(total.min())
        if not np.isfinite(least):
            return _Outcome(least, total, least, self.unary[v], [self.state[f][dim] for f, dim in mine])
        total = total - least
        known = np.where(np.isfinite(total), total, 0.0)
        count, kept = sum(goes for _, _, goes in later), total
        if count:
            part = np.floor(known / max(count, len(mine) - count))
            lent = [one - part if goes else one for one, (_, _, goes) in zip(lent, later, strict=True)]
            kept = total - part * count
        number = self.vectors.number
        return _Outcome(least, total, float(known.max()), number(kept), [number(one) for one in lent])

    def _project(self, f: int, dim: int) -> np.ndarray:
        """The least that table f less its loans can be, for each choice of its variable `dim`."""
        scope, table = self.tables[f]
        state, count, items = self.state[f], len(scope), self.vectors.items
        others = [d for d in range(count) if d != dim]
        key = (table.serial, dim, *(state[d] for d in others), *(state[count + d] for d in others))
        found = self._projections.get(key)
        if found is None:
            total = table.data
            for d in others:
                offer = items[state[count + d]] - items[state[d]]
                total = total + offer.reshape([-1 if k == d else 1 for k in range(count)])
            found = self._projections[key] = total.min(axis=tuple(others))
        return found + (items[state[count + dim]] - items[state[dim]])

    def collected(self, v: int) -> np.ndarray:
        """What each choice of v costs at least above the bound."""
        return sum((self._project(f, dim) for f, dim in self.at[v]), self.vectors.items[self.unary[v]])

    def alive(self) -> dict[int, np.ndarray]:
        """Positions that are left, for each variable that lost some."""
        kept = {v: np.flatnonzero(np.isfinite(self.vectors.items[one])) for v, one in self.unary.items()}
        return {v: keep for v, keep in kept.items() if len(keep) < self.network.size(v)}


def pass_messages(
    network: Network, upper: float, report: Callable[[Trws], float], most: int, stop: Callable[[], bool]
) -> Trws:
    """Sweep until the bound hardly moves, with `report(messages)` now and then, which says the upper bound to beat."""
    messages = Trws(network)
    stuck = 0
    for round_ in range(most):
        before = messages.bound
        messages.sweep(upper)
        if not np.isfinite(messages.bound):
            return messages
        gap = upper - messages.bound
        stuck = stuck + 1 if messages.bound - before < 0.005 * gap else 0
        if round_ % 4 == 2 or stuck == 2:
            upper = report(messages)
        if upper <= messages.bound or stuck == 2 or stop():
            break
    return messages


def strike_out(messages: Trws) -> None:
    """Restrict the network to the choices that the messages leave."""
    if not np.isfinite(messages.bound):
        messages.network.base = np.inf
        return
    messages.network.restrict(messages.alive())
    messages.network.make_consistent()
