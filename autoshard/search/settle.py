"""The least cost of tables, with its proof: bounds first, then an exact search among what they leave.

Message passing says of each choice how much the bound rises if it is made. An exact search among the choices that
hardly raise it finds a plan; all choices that no better plan can make are left out then, and a search among the rest
proves the optimum. What was left out without proof is counted in the bound.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from autoshard.errors import PlanError
from autoshard.search.bounds import Bounds
from autoshard.search.exact import CostProblem, Factor, solve
from autoshard.search.shared_messages import LARGE
from autoshard.search.tables import Tables

Choice = tuple[int, ...]

EQUAL = 1e-9
NEAR = 1e-6
"""Choices that raise the bound by at most this, relatively, are looked at first."""
SWEEPS = 60
CELLS = 3_000_000
"""The largest price that is written out."""
SHARE = 0.25
"""Of the time that is left, for an exact search; if that proves nothing, the problem is branched."""


@dataclass(frozen=True)
class Settled:
    """A choice, its cost, and a bound below the cost of every choice; `stats` by name."""

    choice: tuple[int, ...]
    value: float
    bound: float
    marginals: tuple[np.ndarray, ...]
    stats: dict[str, float] = field(default_factory=dict)

    @property
    def proven(self) -> bool:
        return self.value - self.bound <= EQUAL * self.value


def settle(tables: Tables, time_limit: float = 60.0) -> Settled:
    """Minimize the sum of all prices.

    Raises:
        PlanError: no choice at all is possible.
    """
    return _Search(tables, time.monotonic() + time_limit).run()


class _Search:
    def __init__(self, tables: Tables, end: float) -> None:
        self.tables, self.end = tables, end
        self.bounds = Bounds(tables)
        self.kinds = self._kinds()
        self.best: tuple[int, ...] | None = None
        self.value = math.inf
        self.stats: dict[str, float] = {"turns": len(self.bounds.turns), "branches": 0}

    def run(self) -> Settled:
        lower = self.bounds.tighten(SWEEPS, self.end, 1e-6)
        self.stats["message bound"] = lower
        marginals = self.bounds.reduced()
        proved = self._prove(lower, marginals, None)
        assert self.best is not None
        return Settled(self.best, self.value, min(proved, self.value), tuple(marginals), self.stats)

    @property
    def enough(self) -> float:
        """A bound that shows that nothing better is left."""
        return self.value * (1 - EQUAL)

    def _prove(self, lower: float, reduced: list[np.ndarray], near: Choice | None) -> float:
        """A bound for all choices that the bounds still allow; a better choice is noted on the way.

        `near` is a good one of these choices, if one is known.
        """
        if lower >= self.enough or (self.left < 0 and self.best is not None):
            return lower
        allowed = NEAR * lower
        while near is None:
            if allowed > 1e6 * LARGE:
                raise PlanError(
                    f"no strategies of {self.tables.graph.name!r} fit each other: no redistribution joins them"
                )
            most = max(self.tables.sizes)
            while self._largest(keep := self._keep(allowed, reduced, most)) > CELLS:
                most //= 2
            all_kept = most == max(self.tables.sizes)
            bound, near = self._among(keep, lower + allowed if all_kept else lower, self.left)
            if bound >= self.enough:
                return bound
            allowed = 100 * max(allowed, 1e-9)
        allowed = self.value - lower + EQUAL * self.value
        keep = self._keep(allowed, reduced)
        if self._largest(keep) <= CELLS:
            lower = max(lower, self._among(keep, lower + allowed, SHARE * self.left)[0])
        if lower >= self.enough or self.left < 0 or all(len(kept) == 1 for kept in keep):
            return lower
        return self._branched(lower, reduced, near)

    def _largest(self, keep: Sequence[np.ndarray]) -> int:
        """Cells of the largest price, written out for the kept choices."""
        return max((math.prod(len(keep[v]) for v in price.scope) for price in self.tables.prices), default=1)

    def _branched(self, lower: float, reduced: list[np.ndarray], near: Choice) -> float:
        """Prove it once with the choice of one variable as it is in `near`, and once otherwise."""
        variable, state = self._loosest(near, lower, reduced), self.bounds.state()
        if variable is None:
            return lower
        choices = np.arange(self.tables.sizes[variable])
        mine, proved = choices == near[variable], math.inf
        for forbidden, known in ((choices[~mine], near), (choices[mine], None)):
            self.stats["branches"] += 1
            self.bounds.go_back(state)
            self.bounds.forbid(variable, forbidden)
            bound = self.bounds.tighten(SWEEPS, self.end, NEAR, self.enough)
            rest = self.bounds.reduced() if bound < self.enough else []
            proved = min(proved, self._prove(max(bound, lower), rest, known))
        return proved

    def _loosest(self, near: Choice, lower: float, reduced: Sequence[np.ndarray]) -> int | None:
        """Of the variables with several choices left, the one where the bound misses most of the cost of `near`."""
        slack = self.bounds.slack(near)
        for variable, costs in enumerate(reduced):
            if (lower + costs < self.enough).sum() < 2:
                slack[variable] = -1.0
        return None if slack.max() < 0 else int(slack.argmax())

    @property
    def left(self) -> float:
        return self.end - time.monotonic()

    def _kinds(self) -> np.ndarray:
        """Per variable, a number that variables with equal surroundings share: they keep the same choices."""
        found = np.empty(len(self.tables.variables), dtype=np.int64)
        for i, turn in enumerate(self.bounds.turns):
            found[turn.members] = i
        return found

    def _keep(self, allowed: float, reduced: Sequence[np.ndarray], most: int | None = None) -> list[np.ndarray]:
        """Per variable, the choices that raise the bound by at most that for it or for one like it; at least one, and
        of these the `most` that raise it least."""
        least = [np.full(self.tables.sizes[turn.members[0]], math.inf) for turn in self.bounds.turns]
        for variable, kind in enumerate(self.kinds):
            least[kind] = np.minimum(least[kind], reduced[variable])
        kept = [np.flatnonzero(one <= max(allowed, one.min())) for one in least]
        if most is not None:
            kept = [np.sort(k[np.argsort(one[k], kind="stable")[:most]]) for k, one in zip(kept, least, strict=True)]
        return [kept[kind] for kind in self.kinds]

    def _among(self, keep: list[np.ndarray], beyond: float, seconds: float) -> tuple[float, Choice | None]:
        """The best among the kept choices, and the bound that results if all else costs at least `beyond`."""
        problem = Restricted(self.tables, keep)
        self.stats["kept"] = sum(map(len, keep))
        self.stats["largest table"] = problem.largest
        found = solve(CostProblem(problem.sizes, problem.factors), time_limit=max(0.5, seconds))
        self.stats.update({f"exact {name}": value for name, value in found.stats.items()})
        if found.choice is None:
            return min(problem.constant + found.bound, beyond), None
        choice = problem.choice(found.choice)
        value = self.tables.seconds(choice)
        if value < self.value:
            self.best, self.value = choice, value
        return min(problem.constant + found.bound, beyond), choice


class Restricted:
    """Tables with only some choices of each variable, written out for the exact search.

    Variables with one choice left are put in: `constant` is what they cost among themselves.
    """

    def __init__(self, tables: Tables, keep: Sequence[np.ndarray]) -> None:
        self.tables, self.keep, self.constant = tables, keep, 0.0
        self.free = [variable for variable, kept in enumerate(keep) if len(kept) > 1]
        self.place = {variable: i for i, variable in enumerate(self.free)}
        self.sizes = tuple(len(keep[variable]) for variable in self.free)
        self.factors: list[Factor] = []
        self._written: dict[tuple, np.ndarray] = {}
        for i, costs in enumerate(tables.unary):
            if len(costs):
                self._add((i,), (id(costs), id(keep[i])), lambda c=costs, k=keep[i]: c[k])
        for price in tables.prices:
            kept = [keep[i] for i in price.scope]
            key = (id(price.shared), *map(id, kept))
            self._add(price.scope, key, lambda p=price, k=kept: p.shared.restricted(k).dense)

    def _add(self, scope: Sequence[int], key: tuple, make: Callable[[], np.ndarray]) -> None:
        if key not in self._written:
            self._written[key] = make().squeeze()
        written, free = self._written[key], tuple(self.place[v] for v in scope if v in self.place)
        if free:
            self.factors.append(Factor(free, written))
        else:
            self.constant += float(written)

    @property
    def largest(self) -> int:
        return max((array.size for array in self._written.values()), default=0)

    def choice(self, found: Sequence[int]) -> tuple[int, ...]:
        """A choice of the free variables as one of the tables."""
        return tuple(
            int(kept[found[self.place[variable]]] if variable in self.place else kept[0])
            for variable, kept in enumerate(self.keep)
        )
