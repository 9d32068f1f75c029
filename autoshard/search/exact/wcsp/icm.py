"""Choices that are good but not proven: one variable after another, then changes of single variables.

Besag's iterated conditional modes (1986), started from a greedy pass that looks one table ahead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autoshard.search.exact.wcsp.problem import Term


class Icm:
    """Prices of single changes under a sum of tables."""

    def __init__(self, sizes: Sequence[int], priced: Sequence[Term]):
        self.sizes = tuple(sizes)
        self.priced = list(priced)
        self.at: list[list[Term]] = [[] for _ in sizes]
        for scope, array in self.priced:
            for v in scope:
                self.at[v].append((scope, array))

    def prices(self, v: int, choice: Sequence[int | None]) -> np.ndarray:
        """What each choice of v costs in v's tables; variables not chosen yet (None) take what suits best."""
        total = np.zeros(self.sizes[v])
        for scope, array in self.at[v]:
            index = tuple(slice(None) if u == v or choice[u] is None else choice[u] for u in scope)
            cut = array[index]
            if cut.ndim > 1:
                free = [u for u in scope if u == v or choice[u] is None]
                cut = cut.min(axis=tuple(dim for dim, u in enumerate(free) if u != v))
            total = total + cut
        return total

    def greedy(self) -> list[int] | None:
        """One pass in the variables' order; None where it runs into something forbidden."""
        choice: list[int | None] = [None] * len(self.sizes)
        for v in range(len(self.sizes)):
            prices = self.prices(v, choice)
            if not prices.size or not math.isfinite(prices.min()):
                return None
            choice[v] = int(prices.argmin())
        return [c for c in choice if c is not None]

    def improve(self, choice: Sequence[int], rounds: int = 20) -> list[int]:
        """Change single variables for the better until no change helps (or the rounds are over)."""
        choice = list(choice)
        queue = list(range(len(self.sizes)))
        for _ in range(rounds):
            moved: set[int] = set()
            for v in queue:
                prices = self.prices(v, choice)
                best = int(prices.argmin())
                if prices[best] < prices[choice[v]]:
                    choice[v] = best
                    moved.add(v)
            if not moved:
                break
            queue = sorted({u for v in moved for scope, _ in self.at[v] for u in scope})
        return choice

    def total(self, choice: Sequence[int]) -> float:
        return math.fsum(float(array[tuple(choice[v] for v in scope)]) for scope, array in self.priced)


def first_assignment(
    sizes: Sequence[int], priced: Sequence[Term], start: Sequence[int] | None = None
) -> tuple[list[int] | None, float]:
    """A good choice and its value, from `start` where that is allowed; None and inf where nothing allowed is found."""
    descent = Icm(sizes, priced)
    if start is not None:
        choice = descent.improve(start, rounds=3)
        value = descent.total(choice)
        if math.isfinite(value):
            return choice, value
    choice = descent.greedy()
    if choice is None:
        return None, math.inf
    choice = descent.improve(choice, rounds=3)
    return choice, descent.total(choice)
