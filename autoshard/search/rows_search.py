"""The least time within a memory limit, or the least memory, for tables too large to write out.

A linear program over the choices seen so far prices the bytes of the moments that bind. At any prices, message passing
bounds everything (Lagrangian relaxation), and says of each choice how much the bound rises if it is made: what hardly
raises it joins the program, until prices and bound stay. The program in whole numbers then gives plans; among all
choices that no better plan can do without, it proves the optimum. What was left out without proof is in the bound.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np

from autoshard.search.bounds import Bounds
from autoshard.search.rows import MemoryRows
from autoshard.search.rows_program import Answer, RowsProgram

EQUAL = 1e-9
SWEEPS = 60
ROUNDS = 16
"""Prices that are tried at most."""
STEADY = 1e-6
"""A bound that rises by less, relatively, is enough."""
MOST = 4
"""Choices per variable that join the program at each prices, on average."""
COLUMNS = 150_000
"""The largest program that is tried in whole numbers."""
WINDOW = 12
"""Of moments that follow each other so closely, one row is added at a time."""
SHARES = (0.02, 0.2, 1.0)
"""Parts of the gap within which choices are looked at, one after another."""


class RowsSearch:
    """One search; `value` and `bound` are seconds, or without `work` the largest row in parts of `limit`."""

    def __init__(self, rows: MemoryRows, limit: int, end: float, work: bool = True) -> None:
        self.rows, self.limit, self.end, self.work = rows, limit, end, work
        self.tables = rows.tables
        self.sizes = self.tables.sizes
        self.bound, self.value = -math.inf, math.inf
        self.best: tuple[int, ...] | None = None
        self.impossible = False
        self.seen = [np.zeros(size, bool) for size in self.sizes]
        self.active: list[int] = []
        self.at_prices = -math.inf
        self.reduced: list[np.ndarray] = []
        self.excess = 0.0
        self.stats: dict[str, float] = {"prices tried": 0, "programs": 0}

    def run(self) -> None:
        """Prices, then plans, then the proof, as far as time allows."""
        support = self._ascend()
        if support is None:
            return
        if not self.closed and self.left > 0:
            self._whole(support, 0.2 * self.left)
        if not self.closed and self.left > 0 and (self.best is None or self.gap > 1e-4):
            self._whole([np.flatnonzero(one) for one in self.seen], 0.3 * self.left)
        for share in SHARES:
            if self.closed or self.best is None or self.left < 0:
                break
            self._prove(share)

    @property
    def closed(self) -> bool:
        return math.isfinite(self.value) and self.value - self.bound <= EQUAL * abs(self.value)

    @property
    def gap(self) -> float:
        return (self.value - self.bound) / abs(self.value)

    @property
    def left(self) -> float:
        return self.end - time.monotonic()

    # -- plans

    def consider(self, choice: Sequence[int]) -> np.ndarray:
        """[moments] bytes of a choice; it is kept if it is the best."""
        nbytes, value = self.rows.at(choice), self.tables.seconds(choice)
        if not self.work:
            value = int(nbytes.max()) / self.limit if math.isfinite(value) else math.inf
        if value < self.value and (not self.work or int(nbytes.max()) <= self.limit):
            self.value, self.best = value, tuple(choice)
            self.note(choice)
        return nbytes

    def note(self, choice: Sequence[int]) -> None:
        """Programs have what this choice makes from now on."""
        for seen, one in zip(self.seen, choice, strict=True):
            seen[one] = True

    # -- prices

    def _ascend(self) -> list[np.ndarray] | None:
        """Raise the bound by better prices; what the relaxed program uses in the end, None if time was over."""
        self._bounded({} if self.work else dict.fromkeys(range(self.rows.model.moments), 1.0))
        support, penalty, last, raised = None, 0.0, -math.inf, False
        for _ in range(ROUNDS):
            if self.left < 0:
                break
            penalty = penalty or 20 * max(self.bound, 1e-9)
            program, answer = self._relaxed(penalty)
            if answer.columns is None:
                self.impossible = answer.impossible
                break
            support, self.excess = program.support(answer.columns), answer.excess
            before = self.bound
            self._bounded(answer.prices)
            near = answer.bound - self.bound <= STEADY * abs(answer.bound)
            if near or (self.bound - before <= STEADY * abs(self.bound) and before > last):
                if not self.work or self.excess <= 1e-9 or raised:
                    break
                penalty, raised = 100 * penalty, True
            last = before
        return support

    def _relaxed(self, penalty: float) -> tuple[RowsProgram, Answer]:
        """The program over what was seen, with all rows that bind in it."""
        program = RowsProgram(self.rows, [np.flatnonzero(one) for one in self.seen], self.limit, penalty, self.work)
        for moment in self.active:
            program.add_row(moment)
        while True:
            answer = program.relaxed(self.left)
            if answer.columns is None:
                return program, answer
            nbytes = self._expected(program, answer.columns)
            most = program.allowed + (answer.excess + 1e-7) * self.limit
            added = [moment for moment in _peaks(nbytes, most) if moment not in program.moments]
            if not added or self.left < 0:
                return program, answer
            for moment in added:
                program.add_row(moment)
            self.active += [moment for moment in added if moment not in self.active]

    def _expected(self, program: RowsProgram, columns: np.ndarray) -> np.ndarray:
        """[moments] bytes of a relaxed answer, as if variables chose independently of each other."""
        parts = []
        for v, kept in enumerate(program.keep):
            chances = np.zeros(self.sizes[v])
            chances[kept] = columns[program.first[v] : program.first[v + 1]]
            parts.append(chances)
        change = np.zeros(self.rows.model.moments + 1)
        for piece in self.rows.pieces:
            sides = [
                np.bincount(kinds, parts[v], count)
                for v, kinds, count in zip(piece.scope, piece.table.kinds, piece.table.nbytes.shape, strict=True)
            ]
            nbytes = sides[0] @ piece.table.nbytes @ sides[1] if len(sides) == 2 else sides[0] @ piece.table.nbytes
            change[piece.first] += nbytes
            change[piece.last + 1] -= nbytes
        return self.rows.constants + np.cumsum(change[:-1])

    def _bounded(self, prices: dict[int, float]) -> None:
        """The bound at these prices; what hardly raises it is seen from now on."""
        self.stats["prices tried"] += 1
        weights = np.zeros(self.rows.model.moments)
        for moment, price in prices.items():
            weights[moment] = price
        if not self.work and weights.any():
            weights /= weights.sum() * self.limit
        bounds = Bounds(self.rows.priced(weights, self.work))
        bounds.tighten(SWEEPS, self.end, STEADY)
        allowed = self.limit if self.work else 0
        bound = bounds.lower + float(weights @ (self.rows.constants - allowed))
        reduced = bounds.reduced()
        if bound > self.at_prices:
            self.at_prices, self.reduced = bound, reduced
        self.bound = max(self.bound, bound)
        self._see(reduced)

    def _see(self, reduced: Sequence[np.ndarray]) -> None:
        every = np.concatenate(reduced)
        count = min(MOST * len(reduced), len(every) - 1)
        most = float(np.partition(every, count)[count])
        for seen, one in zip(self.seen, reduced, strict=True):
            near = one <= max(min(most, 1e-2 * abs(self.bound)), float(one.min()))
            if near.sum() > 4 * MOST:
                near = np.isin(np.arange(len(one)), np.argsort(one, kind="stable")[: 4 * MOST])
            seen |= near

    # -- whole numbers

    def _whole(self, keep: Sequence[np.ndarray], seconds: float) -> float:
        """The best plan among these choices becomes known; a bound for all of them."""
        self.stats["programs"] += 1
        until = min(self.end, time.monotonic() + seconds)
        penalty = 20 * max(abs(self.bound), 1e-9)
        program = RowsProgram(self.rows, keep, self.limit, penalty, self.work)
        for moment in self.active:
            program.add_row(moment)
        bound = -math.inf
        while program.size <= COLUMNS and time.monotonic() < until:
            answer = program.whole(until - time.monotonic(), hard=True)
            bound = max(bound, math.inf if answer.impossible else answer.bound - EQUAL / 4 * abs(answer.bound))
            if answer.columns is None:
                break
            choice = program.choice(answer.columns)
            nbytes = self.consider(choice)
            allowed = self.limit if self.work else self.value * self.limit
            most = self.limit if self.work else (float(answer.columns[program.excess]) + 1e-9) * self.limit
            over = _peaks(nbytes, most)
            if not over or (not self.work and bound * self.limit >= allowed * (1 - EQUAL)):
                break
            self._explain(program, choice, over)
        self.stats["largest program"] = max(self.stats.get("largest program", 0), program.size)
        return bound

    def _explain(self, program: RowsProgram, choice: tuple[int, ...], over: list[int]) -> None:
        """Tell a program why a choice is over the limit."""
        new = [moment for moment in over if moment not in program.moments]
        for moment in new:
            program.add_row(moment)
        self.active += [moment for moment in new if moment not in self.active]
        told = bool(new)
        for moment in over:
            for number, more in self.rows.spots(choice, moment):
                told |= program.add_spot(number, more, choice)
        if not told:
            program.exclude(choice, [v for v, kept in enumerate(program.keep) if len(kept) > 1])

    def _prove(self, share: float) -> None:
        """The best among the choices that raise the bound by a share of the gap at most."""
        if not self.reduced:
            return
        beyond = share * (self.value - self.at_prices) + EQUAL * abs(self.value)
        keep = [np.flatnonzero(one <= max(beyond, one.min())) for one in self.reduced]
        assert self.best is not None
        keep = [np.union1d(kept, [one]) for kept, one in zip(keep, self.best, strict=True)]
        self.stats["kept"] = sum(map(len, keep))
        bound = self._whole(keep, (0.3 if share < 1 else 0.9) * self.left)
        self.bound = max(self.bound, min(bound, self.at_prices + beyond, self.value))


def _peaks(nbytes: np.ndarray, most: float) -> list[int]:
    """Moments above `most`, the highest first, that do not lie close to each other; three at most."""
    left, found = nbytes.astype(float), []
    while len(found) < 3:
        moment = int(left.argmax())
        if left[moment] <= most:
            break
        found.append(moment)
        left[max(0, moment - WINDOW) : moment + WINDOW + 1] = -1.0
    return found
