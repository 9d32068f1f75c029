"""What is best at given prices of bytes: a bound for all choices, and a choice that is near it.

Tables with bytes priced are folded and bounded as tables are without a limit (`settle.py`); among the few choices of
each variable that hardly raise the bound, the best are found exactly, then improved one variable after another. So the
choice is the least at these prices, or nearly so, and tells how many bytes such prices leave.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autoshard.search.exact import CostProblem, solve
from autoshard.search.folded import Folded
from autoshard.search.rows_written import Merged, RowsBounds
from autoshard.search.settle import Restricted
from autoshard.search.tables import Tables
from autoshard.util.clock import now

SWEEPS, AGAIN, GAIN, ALIKE = 30, 8, 2e-4, 1e-4
"""Sweeps at first and where messages of near prices are there; and the growth of the bound that is worth another."""
NEAR, FAR, WIDER = 1e-4, 1e3, 30.0
"""Choices that raise the bound by at most that much, relatively, are searched; more if they do not fit each other."""
FEW = 6
"""Choices of a variable that are searched at most."""
CELLS = 200_000
"""The largest price that is written out."""
ROUNDS = 6
"""How often all variables are looked at again."""


class PricedSearch:
    """Tables with bytes priced; `lower` bounds the sum of prices over all choices.

    Args:
        end: by `clock.now`.
        near: a search of the same tables at other prices, whose messages are a good start.
    """

    def __init__(self, tables: Tables, end: float, near: PricedSearch | None = None) -> None:
        self.tables, self.end = tables, end
        self.folded = Folded(tables)
        self.merged = Merged(self.folded)
        self.bounds = RowsBounds(self.merged)
        if near is None:
            self.bounds.start(SWEEPS, end, ALIKE)
        else:
            self._continue(near)
        self.lower = self.tighten(SWEEPS if near is None else AGAIN, GAIN)

    def tighten(self, sweeps: int, gain: float) -> float:
        """More sweeps, until one gains less than `gain`, relatively; the bound."""
        self.lower = self.bounds.tighten(sweeps, self.end, gain)
        return self.lower

    def _continue(self, near: PricedSearch) -> None:
        """Begin with the messages of another search, as far as its prices are over the same variables."""
        known: dict[tuple[int, ...], list[np.ndarray]] = {}
        for bunch in near.bounds.bunches:
            for row, scope in enumerate(bunch.variables.tolist()):
                known[tuple(near.folded.variables[v] for v in scope)] = [one[row] for one in bunch.potentials]
        for bunch in self.bounds.bunches:
            scopes = [tuple(self.folded.variables[v] for v in scope) for scope in bunch.variables.tolist()]
            empty = [np.zeros(one.shape[1]) for one in bunch.potentials]
            parts = [known.get(scope, empty) for scope in scopes]
            bunch.reset([np.stack(column) for column in zip(*parts, strict=True)])
        for turn in self.bounds.turns:
            turn.held = np.stack([self.bounds.unary[v] for v in turn.members])
            for bunch, position, rows in turn.slots:
                turn.held -= bunch.potentials[position][rows]

    # -- a choice

    def choice(
        self, few: int = FEW, near: float = NEAR, others: Sequence[Sequence[int]] = ()
    ) -> tuple[int, ...] | None:
        """A choice of all variables that is near the bound; None if none was found in time.

        Args:
            few: choices of a variable that are searched.
            near: by how much these may raise the bound, relatively; more if they do not fit each other.
            others: choices that are known, of which the best is improved as well.
        """
        found = self._searched(few, near)
        made = [self._finished([one[v] for v in self.folded.variables]) for one in self._best_of(others)]
        made += [] if found is None else [self._finished(found)]
        return min(made, key=self.tables.seconds, default=None)

    def _best_of(self, others: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        return [min(others, key=self.tables.seconds)] if others else []

    def _finished(self, choice: Sequence[int]) -> tuple[int, ...]:
        return self.folded.complete(self._improved(choice))

    def _searched(self, few: int, near: float) -> tuple[int, ...] | None:
        """The best of what is folded, among few choices of each variable."""
        reduced, allowed = self._alike(), near * max(abs(self.lower), 1e-12)
        first = allowed
        while allowed <= FAR and (allowed == first or now() < self.end):
            keep = self._smaller([self._best(one, allowed, few) for one in reduced])
            found = self._among(keep)
            if found is not None:
                return found
            allowed *= WIDER
        return None

    def _alike(self) -> list[np.ndarray]:
        """Per turn, how much the bound rises at least by each choice of one of its members."""
        reduced = self.bounds.reduced()
        return [np.min([reduced[v] for v in turn.members], axis=0) for turn in self.bounds.turns]

    @staticmethod
    def _best(reduced: np.ndarray, allowed: float, few: int) -> np.ndarray:
        near = np.flatnonzero(reduced <= max(allowed, reduced.min()))
        return near[np.argsort(reduced[near], kind="stable")[:few]]

    def _smaller(self, best: list[np.ndarray]) -> list[np.ndarray]:
        """Per variable the best choices of its turn, so few that every price can be written out."""
        best, turns = list(best), self.bounds.turn_of
        for scope in dict.fromkeys(tuple(int(turns[v]) for v in price.scope) for price in self.merged.prices):
            while math.prod(len(best[turn]) for turn in scope) > CELLS:
                longest = max(scope, key=lambda turn: len(best[turn]))
                best[longest] = best[longest][:-1]
        return [best[turn] for turn in turns]

    def _among(self, keep: Sequence[np.ndarray]) -> tuple[int, ...] | None:
        problem = Restricted(self.merged, keep)
        if not math.isfinite(problem.constant):
            return None
        left = max(0.5, (self.end - now()) / 10)
        found = solve(CostProblem(problem.sizes, problem.factors), time_limit=left)
        return None if found.choice is None else problem.choice(found.choice)

    def _improved(self, choice: Sequence[int]) -> list[int]:
        """One variable after another changed for the better (Besag's iterated conditional modes, 1986)."""
        choice, around = list(choice), self._around()
        waiting = dict.fromkeys(range(len(choice)))
        for _ in range(ROUNDS):
            again: dict[int, None] = {}
            for v in waiting:
                costs = self.bounds.unary[v]
                for price, position in around[v]:
                    costs = costs + price.shared.along(position, [choice[u] for u in price.scope])
                best = int(costs.argmin())
                if costs[best] < costs[choice[v]] - 1e-12 * abs(costs[best]):
                    choice[v] = best
                    again.update(dict.fromkeys(u for price, _ in around[v] for u in price.scope))
            if not again:
                break
            waiting = again
        return choice

    def _around(self) -> list[list]:
        found: list[list] = [[] for _ in self.merged.sizes]
        for price in self.merged.prices:
            for position, v in enumerate(price.scope):
                found[v].append((price, position))
        return found
