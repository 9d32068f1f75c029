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

from autoshard.search.rows import MemoryRows
from autoshard.search.rows_copies import RowsBounds
from autoshard.search.rows_program import Answer, RowsProgram

EQUAL = 1e-9
SWEEPS = 60
ROUNDS = 16
"""Prices that are tried at most."""
ASCENT = 0.4
"""Of the time, for prices."""
STEADY = 1e-6
"""A bound that rises by less, relatively, is enough."""
MOST = 1
"""New choices per variable that join the program at each prices, on average."""
DEARER = (1.5, 4.0, 32.0)
"""What prices are raised by, one after another, for choices that need less, while no plan is known."""
NEAR = 1e-2
"""Choices that raise the bound by more, relatively, do not join."""
COLUMNS = 60_000
"""The largest program that is tried in whole numbers."""
WINDOW = 12
"""Of moments that follow each other so closely, one row is added at a time."""
WIDER = (1.5, 2.5, 5.0, 20.0, math.inf)
"""How many choices per variable are searched completely in the end, one after another."""


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
        self.used = [np.zeros(size, bool) for size in self.sizes]
        self.active: list[int] = []
        self.at_prices = -math.inf
        self.reduced: list[np.ndarray] = []
        self.prices: dict[int, float] = {}
        self.stats: dict[str, float] = {"prices tried": 0, "programs": 0}

    def run(self) -> None:
        """Prices, then plans, then the proof, as far as time allows."""
        self._ascend()
        for factor in DEARER:
            if self.best is not None or self.impossible or self.left < 0:
                break
            self._bounded({moment: factor * price for moment, price in self.prices.items()})
            self._relaxed_and_whole(20 * max(self.bound, 1e-9))
        self.improve()

    def glance(self) -> float:
        """A first bound, at equal prices for all moments."""
        self._bounded({} if self.work else dict.fromkeys(range(self.rows.model.moments), 1.0))
        return self.bound

    def improve(self) -> None:
        """Look for better plans than the best, among ever more choices, until there is none or time is over."""
        for most in WIDER:
            if self.closed or self.best is None or self.left < 0:
                break
            self._prove(most)

    def _chosen(self) -> list[np.ndarray]:
        return [np.flatnonzero(one) for one in self.seen]

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
        for seen, used, one in zip(self.seen, self.used, choice, strict=True):
            seen[one] = used[one] = True

    # -- prices

    def _ascend(self) -> None:
        """Raise the bound by better prices; plans come from what the relaxed programs use."""
        until, raised, last = time.monotonic() + ASCENT * self.left, False, 0.0
        if not self.stats["prices tried"]:
            self.glance()
        penalty = 20 * max(self.bound, 1e-9)
        for turn in range(ROUNDS):
            answer = self._relaxed_and_whole(penalty)
            if answer.columns is None or self.closed or time.monotonic() > until:
                self.impossible = answer.impossible
                break
            before = self.bound
            # Half way to the best prices every other time: those of a restricted program swing around them.
            half = answer.excess <= 1e-9 and turn % 2 == 1
            self._bounded(_middle(self.prices, answer.prices) if half else answer.prices)
            near = answer.bound - self.bound <= STEADY * abs(answer.bound)
            still = abs(last - answer.bound) <= 10 * STEADY * abs(answer.bound)
            if near or (still and self.bound - before <= STEADY * abs(self.bound)):
                if not self.work or answer.excess <= 1e-9 or raised:
                    break
                penalty, raised = 100 * penalty, True
            last = answer.bound

    def _relaxed_and_whole(self, penalty: float) -> Answer:
        """The relaxed program, and in whole numbers that over all that relaxed ones have used."""
        program, answer = self._relaxed(penalty)
        if answer.columns is not None:
            for used, now in zip(self.used, program.support(answer.columns), strict=True):
                used[now] = True
            if not self.closed and self.left > 0:
                self._whole([np.flatnonzero(one) for one in self.used], 0.1 * self.left)
        return answer

    def _relaxed(self, penalty: float) -> tuple[RowsProgram, Answer]:
        """The program over what was seen, with all rows that bind in it."""
        program = RowsProgram(self.rows, self._chosen(), self.limit, penalty, self.work)
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
        for copies in self.rows.copies:
            program.expect(copies, columns, change)
        return self.rows.constants + np.cumsum(change[:-1])

    def _bounded(self, prices: dict[int, float]) -> None:
        """The bound at these prices; what hardly raises it is seen from now on."""
        self.stats["prices tried"] += 1
        weights = np.zeros(self.rows.model.moments)
        for moment, price in prices.items():
            weights[moment] = price
        if not self.work and weights.any():
            weights /= weights.sum() * self.limit
        bounds = RowsBounds(self.rows.priced(weights, self.work))
        bounds.tighten(SWEEPS, time.monotonic() + 0.1 * max(self.left, 0.0), STEADY)
        allowed = self.limit if self.work else 0
        bound = bounds.lower + float(weights @ (self.rows.constants - allowed))
        reduced = bounds.reduced()
        if bound > self.at_prices:
            self.at_prices, self.reduced, self.prices = bound, reduced, prices
        self.bound = max(self.bound, bound)
        self._see(reduced)

    def _see(self, reduced: Sequence[np.ndarray]) -> None:
        """Of the choices not seen yet, those that raise the bound least join; for each variable its best does."""
        new = np.concatenate([one[~seen] for one, seen in zip(reduced, self.seen, strict=True)])
        count = min(MOST * len(reduced), len(new) - 1)
        most = min(float(np.partition(new, count)[count]), NEAR * abs(self.bound)) if len(new) else 0.0
        for seen, one in zip(self.seen, reduced, strict=True):
            near = np.flatnonzero(~seen & (one <= max(most, float(one.min()))))
            seen[near[np.argsort(one[near], kind="stable")[: 4 * MOST]]] = True

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

    def _prove(self, most: float) -> None:
        """The best among the choices that raise the bound least, `most` per variable on average."""
        if not self.reduced or self.best is None:
            return
        every = np.sort(np.concatenate(self.reduced))
        beyond = self.value - self.at_prices + EQUAL * abs(self.value)
        beyond = min(beyond, float(every[int(min(most * len(self.sizes), len(every) - 1))]))
        keep = [np.flatnonzero(one <= max(beyond, one.min())) for one in self.reduced]
        keep = [np.union1d(kept, np.flatnonzero(used)) for kept, used in zip(keep, self.used, strict=True)]
        self.stats["kept"] = sum(map(len, keep))
        bound = self._whole(keep, 0.5 * self.left)
        self.bound = max(self.bound, min(bound, self.at_prices + beyond, self.value))


def _middle(some: dict[int, float], others: dict[int, float]) -> dict[int, float]:
    """Half way between prices: those of a restricted program swing widely around the best ones."""
    return {moment: (some.get(moment, 0.0) + others.get(moment, 0.0)) / 2 for moment in sorted({*some, *others})}


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
