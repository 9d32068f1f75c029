"""A lower bound for all plans, and for each choice one for all plans that make it: what is above a known plan is out.

Sequential reweighted message passing (Kolmogorov, "A new look at reweighted message passing", IEEE TPAMI 37(5), 2015)
on the tables. Variables whose surroundings are equal, those of equal layers, take their turns together (`turns.py`),
and begin with messages that they have in common.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from autoshard.search.exact.enumerate_gap import nearby
from autoshard.search.exact.message_schedule import bunches_of, likeness_of, swept, turns_of
from autoshard.search.exact.min_marginals import LARGE
from autoshard.search.exact.reduce import Summed
from autoshard.search.exact.wcsp import Listing
from autoshard.util.clock import now

LIKE = 2
"""How many members turns must have on average for a start in common to pay."""


class Bounds:
    """Message passing on tables. `lower` is a valid bound at any moment, `marginals` per variable and choice."""

    def __init__(self, tables: Summed) -> None:
        self.tables = tables
        self.unary = [
            np.minimum(costs, LARGE) if len(costs) else np.zeros(size)
            for costs, size in zip(tables.unary, tables.sizes, strict=True)
        ]
        self.bunches = bunches_of(tables)
        self.turns = turns_of(tables, self.bunches, self.unary)
        self.turn_of = np.empty(len(tables.sizes), dtype=np.int64)
        for i, turn in enumerate(self.turns):
            self.turn_of[turn.members] = i

    # -- passes

    def start(self, sweeps: int, end: float, gain: float) -> None:
        """Begin with messages that members of a turn have in common, which is far less work than sweeps of all.

        Args:
            sweeps, end, gain: as of `tighten`.
        """
        if len(self.turns) * LIKE > len(self.tables.sizes):
            return
        alike = likeness_of(self.turns, self.bunches, self.turn_of)
        _swept(alike, 0.0, sweeps, end, gain)
        for bunch, one, rows in zip(self.bunches, alike.bunches, alike.rows, strict=True):
            bunch.reset([of[rows] for of in one.potentials])
        for turn in self.turns:
            turn.held = np.stack([self.unary[v] for v in turn.members])
            for bunch, position, rows in turn.slots:
                turn.held -= bunch.potentials[position][rows]

    def sweep(self) -> float:
        """Once forwards and once backwards; `lower` after it, but for rounding."""
        return swept(self.turns, self.bunches)

    # -- branches

    def state(self) -> list[np.ndarray]:
        """All messages as they stand, for `go_back`."""
        held = (turn.held for turn in self.turns)
        return [one.copy() for one in (*held, *(one for bunch in self.bunches for one in bunch.potentials))]

    def go_back(self, state: list[np.ndarray]) -> None:
        copies = iter(state)
        for turn in self.turns:
            turn.held = next(copies).copy()
        for bunch in self.bunches:
            bunch.reset([next(copies).copy() for _ in bunch.potentials])

    def forbid(self, variable: int, choices: np.ndarray) -> None:
        """From now on bound only what makes none of these choices."""
        turn = self.turns[self.turn_of[variable]]
        turn.held[int(np.flatnonzero(turn.members == variable)[0]), choices] += LARGE

    def slack(self, choice: Sequence[int]) -> np.ndarray:
        """Per variable, by how much the bound falls short of what this choice costs there and around."""
        found = np.zeros(len(self.tables.sizes))
        for turn in self.turns:
            chosen = turn.held[np.arange(len(turn.members)), [choice[v] for v in turn.members]]
            found[turn.members] += chosen - turn.held.min(axis=1)
        for bunch in self.bunches:
            least = bunch.least()
            for row, scope in enumerate(bunch.variables.tolist()):
                paid = bunch.messages.shared.at([choice[v] for v in scope])
                paid += sum(float(one[row, choice[v]]) for one, v in zip(bunch.potentials, scope, strict=True))
                found[scope] += paid - least[row]
        return found

    # -- what comes out

    @property
    def lower(self) -> float:
        """No plan of these tables costs less."""
        total = sum(float(turn.held.min(axis=1).sum()) for turn in self.turns)
        return total + sum(float(bunch.least().sum()) for bunch in self.bunches)

    def reduced(self) -> list[np.ndarray]:
        """Per variable, [choices]: by how much the bound rises if that choice is made."""
        found: list[np.ndarray] = [np.zeros(0)] * len(self.tables.sizes)
        for turn in self.turns:
            total = turn.held - turn.held.min(axis=1, keepdims=True)
            for bunch, position, rows in turn.slots:
                marginal = bunch.potentials[position][rows] + bunch.message(position, rows)
                total = total + (marginal - marginal.min(axis=1, keepdims=True))
            for variable, row in zip(turn.members.tolist(), total, strict=True):
                found[variable] = row
        return found

    def listings(self, reduced: Sequence[np.ndarray], gap: float, most: int) -> tuple[list[np.ndarray], list[Listing]]:
        """What all plans within `gap` of the bound choose from: per variable the costs above the bound, inf for what is
        out, and per bunch the combinations of choices.

        Args:
            reduced: as by `reduced()`.
            most: combinations of a bunch.

        Raises:
            TooMany: a bunch has more.
        """
        out = [np.where(costs <= gap, 0.0, np.inf) for costs in reduced]
        unary = list(out)
        for turn in self.turns:
            above = turn.held - turn.held.min(axis=1, keepdims=True)
            for variable, row in zip(turn.members.tolist(), above, strict=True):
                unary[variable] = row + out[variable]
        found = []
        for bunch in self.bunches:
            masked = [
                one + np.stack([out[v] for v in column])
                for one, column in zip(bunch.potentials, bunch.variables.T.tolist(), strict=True)
            ]
            listed = nearby(bunch.messages, masked, bunch.least(), gap, most)
            found.append(Listing(bunch.variables, listed.value, listed.choices, listed.excess))
        return unary, found

    def tighten(self, sweeps: int, end: float, gain: float, enough: float = math.inf) -> float:
        """Sweep until the bound hardly grows or is `enough`; the bound.

        Args:
            end: by `clock.now`.
            gain: the least growth by a sweep, relatively, that is worth another.
        """
        _swept(self, self.lower, sweeps, end, gain, enough)
        return self.lower


class _Passing(Protocol):
    def sweep(self) -> float: ...


def _swept(passing: _Passing, lower: float, sweeps: int, end: float, gain: float, enough: float = math.inf) -> None:
    """Sweep until the bound, `lower` at first, hardly grows or is `enough`."""
    for _ in range(sweeps):
        if lower >= enough or now() > end:
            break
        last, lower = lower, passing.sweep()
        if lower - last <= gain * abs(lower):
            break
