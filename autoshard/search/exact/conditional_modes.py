"""Iterated conditional modes: one variable after another takes the choice that is best beside what the others have.

Source: J. Besag, On the Statistical Analysis of Dirty Pictures, J. R. Stat. Soc. B 48 (1986), 2.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

ROUNDS = 6
"""How often a variable is looked at again, at most, after what is beside it has changed."""


class _Cost(Protocol):
    def along(self, position: int, choice: Sequence[int]) -> np.ndarray: ...


class _Factor(Protocol):
    @property
    def scope(self) -> tuple[int, ...]: ...

    @property
    def multi_layout(self) -> _Cost: ...


def improved(unary: Sequence[np.ndarray], factors: Sequence[_Factor], choice: Sequence[int]) -> list[int]:
    """A choice for each variable that no change of one alone betters, or that of the last round.

    Args:
        unary: per variable, seconds of each choice.
        factors: what else costs, by the choices of the variables in its scope.
        choice: where it begins.
    """
    found, around = list(choice), _around(len(unary), factors)
    waiting = dict.fromkeys(range(len(found)))
    for _ in range(ROUNDS):
        again: dict[int, None] = {}
        for v in waiting:
            costs = unary[v]
            for factor, position in around[v]:
                costs = costs + factor.multi_layout.along(position, [found[u] for u in factor.scope])
            best = int(costs.argmin())
            if costs[best] < costs[found[v]] - 1e-12 * abs(costs[best]):
                found[v] = best
                again.update(dict.fromkeys(u for factor, _ in around[v] for u in factor.scope))
        if not again:
            break
        waiting = again
    return found


def _around(count: int, factors: Sequence[_Factor]) -> list[list[tuple[_Factor, int]]]:
    found: list[list[tuple[_Factor, int]]] = [[] for _ in range(count)]
    for factor in factors:
        for position, v in enumerate(factor.scope):
            found[v].append((factor, position))
    return found
