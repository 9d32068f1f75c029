"""Solves a factor graph: the least sum of its costs, with its proof.

Message passing (`srmp.py`) says of each choice, and of each combination of choices around a value, how much the bound
rises if it is made. All combinations within a small gap are enumerated (`enumerate_gap.py`) and joined
(`sparse_elimination.py`): if they hold an assignment, the best of them is the optimum; if not, the bound rises by
the gap, and a wider one is tried. Where too many are within the gap, the problem is branched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from autoshard.search.exact.enumerate_gap import TooManyEntries
from autoshard.search.exact.min_marginals import LARGE
from autoshard.search.exact.reduce import ReducedGraph, improved
from autoshard.search.exact.sparse_elimination import BestWithinGap, least_sum
from autoshard.search.exact.srmp import Srmp
from autoshard.search.factor_graph import FactorGraph
from autoshard.util.clock import now
from autoshard.util.doing import doing, so_far
from autoshard.util.errors import PlanError

Choice = tuple[int, ...]

EQUAL = 1e-9
NEAR = 1e-6
"""Choices that raise the bound by at most this, relatively, are looked at first where a plan is still to be found."""
SWEEPS, GLANCE = 60, 4
"""Sweeps at most: until choices are listed, and for a first bound, by which like searches are told apart."""
GAIN, ALIKE = 1e-4, 1e-4
"""The growth of the bound by a sweep, relatively, that is worth another: of all, and of what equal layers share."""
FIRST, LEAST, WIDER = 6e-5, 1e-12, 4.0
"""The first gap, relatively and at least in seconds, and by what it is widened."""
WIDTHS = (1 << 12, 1 << 20)
"""How many rows an elimination keeps, one look after the other."""
MOST, FEW = 1 << 20, 1 << 14
"""The most combinations that are listed of equal values, for a proof and where a good choice is enough."""
CLOSE = 1.3
"""Gaps that differ by less are not tried one behind the other."""
ENTRIES = 1 << 21
"""The most combinations that are listed to find a first plan."""
FIND = 0.5
"""Seconds that a look for a first plan has at least, however late it is."""


@dataclass(frozen=True)
class Solution:
    """A choice, its cost, and a bound below the cost of every choice; `stats` by name."""

    choice: tuple[int, ...]
    value: float
    bound: float
    stats: dict[str, float] = field(default_factory=dict)

    @property
    def proven(self) -> bool:
        return self.value - self.bound <= EQUAL * self.value


def solve(factor_graph: FactorGraph, time_limit: float = 60.0) -> Solution:
    """Minimizes the sum of all costs.

    Raises:
        PlanError: no choice at all is possible.
    """
    found, _ = ExactSearch(factor_graph, now() + time_limit).run()
    assert found is not None
    return found


class ExactSearch:
    """A search for the least sum of a factor graph, which says first what it promises.

    Args:
        end: by `clock.now`.
        gap: how far, relatively, the sum may be from the least. Above 0 a good choice is looked for, not a proof: no
            more is listed than is fast, nothing is branched, and a choice that is further from the bound is given, too.
    """

    def __init__(self, factor_graph: FactorGraph, end: float, gap: float = 0.0) -> None:
        self.gap = gap
        self.whole, self.factor_graph, self.end = factor_graph, ReducedGraph(factor_graph), end
        self.srmp = Srmp(self.factor_graph)
        self.best: Choice | None = None
        self.chosen: Choice = ()
        self.value = math.inf
        self.started = False
        self.stats: dict[str, float] = {"turns": len(self.srmp.orbits), "branches": 0}

    def glance(self, sweeps: int = SWEEPS, enough: float = math.inf) -> float:
        """A bound after a few sweeps, or one that is enough, behind up to so many that equal layers share."""
        self._start(sweeps)
        return self.srmp.tighten(GLANCE, self.end, GAIN, enough)

    def run(self, value: float = math.inf) -> tuple[Solution | None, float]:
        """The least sum if it is below a value, None if nothing below was found; and a bound for all assignments, which
        may just be that none is below.

        Raises:
            PlanError: no choice at all is possible.
        """
        self.value = value
        with doing("finding the least sum"):
            self._start()
            lower = self.srmp.tighten(SWEEPS, self.end, GAIN, self.enough)
            self.stats["message bound"] = lower
            so_far(bound=lower)
            proved = min(self._prove(lower, self.srmp.reduced()), self.value)
        if self.best is None:
            return None, proved
        return Solution(self.best, self.value, proved, self.stats), proved

    def _start(self, sweeps: int = SWEEPS) -> None:
        if not self.started:
            self.srmp.start(sweeps, self.end, ALIKE, self.enough)
            self.started = True

    @property
    def enough(self) -> float:
        """A bound that shows that nothing better is left."""
        return self.value * (1 - max(EQUAL, self.gap))

    @property
    def left(self) -> float:
        return self.end - now()

    def _note(self, choice: Choice) -> None:
        """Keep a choice of what is left if it is the best so far."""
        whole = self.factor_graph.complete(choice)
        value = self.whole.seconds(whole)
        if value < self.value:
            self.best, self.chosen, self.value = whole, choice, value
            so_far(best=value)

    def _prove(self, lower: float, reduced: list[np.ndarray]) -> float:
        """A bound for all choices that the bounds still allow; a better choice is noted on the way."""
        if lower >= self.enough or (self.left < 0 and math.isfinite(self.value)):
            return lower
        proved, done = self._widened(lower, reduced)
        if done or proved >= self.enough:
            return proved
        if self.gap or math.isinf(self.value):
            self._find(lower, reduced)
        if self.gap or proved >= self.enough or self.left < 0 or self.best is None:
            return proved
        return self._branched(proved, lower, reduced)

    def _widened(self, lower: float, reduced: list[np.ndarray]) -> tuple[float, bool]:
        """Look at all within wider and wider gaps: a bound, and whether a plan costs just that."""
        clear, wide, gap = 0.0, math.inf, max(FIRST * lower, LEAST)
        while self.left > 0 and lower + clear < self.enough and wide > max(CLOSE * clear, NEAR * lower):
            gap = min(gap, self.value - lower + EQUAL * lower)
            if self.best is None and lower + gap > LARGE / 2:
                raise self._impossible()
            found = self._within(lower, reduced, gap)
            if found is not None and found.choice is not None and found.cost <= found.beyond:
                return lower + found.cost, True
            if found is not None and found.beyond > gap:
                clear = gap
            else:
                wide = gap
                clear = clear if found is None else max(clear, found.beyond)
            gap = min(WIDER * gap, math.sqrt(wide * max(clear, wide / WIDER**2)))
        return lower + clear, False

    def _within(self, lower: float, reduced: list[np.ndarray], gap: float) -> BestWithinGap | None:
        """The best of all that is within a gap of the bound, as far as there is room; None if it is too much to list.

        A first look keeps few combinations, which finds a plan fast; then only what is better has to be looked at.
        """
        found = None
        for width in WIDTHS[:1] if self.gap else WIDTHS:
            try:
                unary, listings = self.srmp.listings(reduced, gap, FEW if self.gap else MOST)
            except TooManyEntries:
                return found
            self.stats["listed"] = sum(len(one.cost) for one in listings)
            found = least_sum(unary, listings, gap, width, stop=lambda: self.left < 0)
            if found.choice is not None:
                self._note(found.choice)
                gap = min(gap, self.value - lower + EQUAL * lower)
            if found.beyond >= min(found.cost, gap):
                break
        return found

    def _find(self, lower: float, reduced: list[np.ndarray]) -> None:
        """Some plan, out of few choices of each variable; where one is known already, only a look for a better one."""
        allowed, known = NEAR * lower, math.isfinite(self.value)
        widths = WIDTHS[:1] if known or self.gap else WIDTHS
        end = now() + max(FIND, self.left)
        while self.best is None:
            if allowed > 1e6 * LARGE:
                raise self._impossible()
            most = max(self.factor_graph.sizes)
            while self._entries(keep := self._keep(allowed, reduced, most)) > ENTRIES and most > 1:
                most //= 2
            found = best_among(self.srmp, keep, lambda: now() > end, widths)
            if found is not None:
                self._note(found)
            elif not known and (most == 1 or self.gap):
                self._descend(keep)
            if known:
                return
            allowed = 100 * max(allowed, 1e-9)

    def _descend(self, keep: Sequence[np.ndarray]) -> None:
        """Some plan, from the choice that is kept of each variable, or from the first of each, which splits least: for
        values of so many users that all combinations of two choices of each are too many."""
        for begin in ([int(one[0]) for one in keep], [0] * len(keep)):
            choice = improved(self.srmp.unary, self.factor_graph.factors, begin)
            if self.whole.seconds(self.factor_graph.complete(choice)) < LARGE / 2:
                self._note(tuple(choice))

    def _impossible(self) -> PlanError:
        name = self.whole.graph.name
        return PlanError(f"no strategies of {name!r} fit each other: no redistribution joins them")

    def _entries(self, keep: Sequence[np.ndarray]) -> int:
        """Combinations of the kept choices around all factors."""
        return sum(math.prod(len(keep[v]) for v in factor.scope) for factor in self.factor_graph.factors)

    def _branched(self, proved: float, lower: float, reduced: list[np.ndarray]) -> float:
        """Prove it once with the choice of one variable as it is in the best plan, and once otherwise."""
        variable, state = self._loosest(self.chosen, lower, reduced), self.srmp.state()
        if variable is None:
            return proved
        choices = np.arange(self.factor_graph.sizes[variable])
        mine, both = choices == self.chosen[variable], math.inf
        for forbidden in (choices[~mine], choices[mine]):
            self.stats["branches"] += 1
            self.srmp.go_back(state)
            self.srmp.forbid(variable, forbidden)
            bound = self.srmp.tighten(SWEEPS, self.end, GAIN, self.enough)
            rest = self.srmp.reduced() if bound < self.enough else []
            both = min(both, self._prove(bound, rest))
        return max(proved, both)

    def _loosest(self, near: Choice, lower: float, reduced: Sequence[np.ndarray]) -> int | None:
        """Of the variables with several choices left, the one where the bound misses most of the cost of `near`."""
        slack = self.srmp.slack(near)
        for variable, costs in enumerate(reduced):
            if (lower + costs < self.enough).sum() < 2:
                slack[variable] = -1.0
        return None if slack.max() < 0 else int(slack.argmax())

    def _keep(self, allowed: float, reduced: Sequence[np.ndarray], most: int | None = None) -> list[np.ndarray]:
        """Per variable, the choices that raise the bound by at most that for it or for one like it; at least one, and
        of these the `most` that raise it least."""
        least = self.srmp.of_orbits(reduced)
        kept = [np.flatnonzero(one <= max(allowed, one.min())) for one in least]
        if most is not None:
            kept = [np.sort(k[np.argsort(one[k], kind="stable")[:most]]) for k, one in zip(kept, least, strict=True)]
        return [kept[orbit] for orbit in self.srmp.orbit_of]


def best_among(
    srmp: Srmp,
    keep: Sequence[np.ndarray],
    stop: Callable[[], bool] = lambda: False,
    widths: Sequence[int] = WIDTHS,
) -> tuple[int, ...] | None:
    """Finds the best assignment of the kept choices, or a good one where many rows have to be given up.

    Args:
        keep: as of `Srmp.among`.
        stop: asked now and then; once it is true, hardly any rows are kept.
        widths: how many rows an elimination keeps, one look after the other until one finds an assignment.

    Returns:
        None where none of these is possible, or none was found among as many rows as there is room for.
    """
    unary, tables = srmp.among(keep)
    for width in widths:
        found = least_sum(unary, tables, LARGE / 2, width, stop)
        if found.choice is not None or math.isinf(found.beyond):
            return found.choice
    return None
