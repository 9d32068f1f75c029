"""Solves for the least time within a memory limit, or for the least memory, where tables are too large to write out.

Multipliers of the bytes at moments that bind turn the limit into costs (Lagrangian relaxation): at any multipliers
message passing bounds everything (`lagrangian_subproblem.py`), and the assignments that are best there are plans, or
nearly. Multipliers follow the cutting planes of all assignments seen (Kelley, 1960; Cheney and Goldstein, 1959): each
is nowhere below the dual function, and where the least of them is highest it promises the highest bound. Plans that
keep the limit take over from faster ones that do not what still fits (`path_relinking.py`). At the end an integer
program (`columns.py`) looks among all choices that no better plan can do without, and proves the optimum where it can
look at all of them. What was left out without proof is in the bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoshard.search.exact.memory.columns import MemoryProgram
from autoshard.search.exact.memory.lagrangian_subproblem import LagrangianSubproblem
from autoshard.search.exact.memory.path_relinking import PathRelinking
from autoshard.search.exact.memory.rows import MemoryRows
from autoshard.util.clock import now
from autoshard.util.doing import so_far

EQUAL = 1e-9
ROUNDS = 24
"""Prices that are tried at most."""
STILL = 6
"""Prices tried one after another that gain nothing, after which it is enough."""
GAINED = 1e-4
"""A bound that rises by less, relatively, is no gain."""
BEGIN = 0.05
"""The share of the cost that what is over the limit may cost at first; highest prices rise where they are reached."""
SAME = 1e-3
"""Prices that differ by less, relatively, are the same."""
ASCENT = 0.7
"""Of the time, for prices."""
POLISH = (100, 1e-5)
"""Sweeps at the best prices, and the gain of one that is worth another."""
THOROUGH = (12, 1e-4)
"""Choices of a variable, and how much they raise the bound, for a last plan at the best prices."""
TIES = 1e-5
"""What all seconds together weigh at most against the least memory, as a part of it: of equal bytes the faster."""
COLUMNS = 60_000
"""The largest program that is tried in whole numbers."""
SHARE = 0.2
"""Of the time left, for a program of some of the choices."""
WIDER = (1.5, 2.5, 5.0, 8.0, 12.0, 20.0, math.inf)
"""How many choices per variable are searched completely in the end, one after another."""


@dataclass(frozen=True, eq=False)
class CuttingPlane:
    """cost + prices . excess is above the dual function everywhere; `bound` is below it at the prices tried."""

    cost: float
    excess: np.ndarray
    bound: float


def model(planes: list[CuttingPlane], box: np.ndarray, simplex: bool) -> tuple[np.ndarray, float]:
    """The prices where the least of the planes is highest, and that height."""
    from scipy.optimize import linprog  # only here: the import takes longer than most searches

    count = len(box)
    size = max(1e-300, *(abs(plane.cost) for plane in planes), *(float(np.abs(p.excess * box).max()) for p in planes))
    left = np.array([[*(-plane.excess * box / size), 1.0] for plane in planes])
    right = np.array([plane.cost / size for plane in planes])
    equal = {"A_eq": np.array([[*([1.0] * count), 0.0]]), "b_eq": [1.0]} if simplex else {}
    bounds = [(0.0, 1.0)] * count + [(None, None)]
    found = linprog([*([0.0] * count), -1.0], A_ub=left, b_ub=right, bounds=bounds, **equal)
    if found.x is None:
        return box / count, np.inf
    return np.maximum(found.x[:-1], 0.0) * box, float(found.x[-1]) * size


class LagrangianSearch:
    """One search; `value` and `bound` are seconds, or without `work` the largest row in parts of `limit`."""

    def __init__(self, rows: MemoryRows, limit: int, end: float, work: bool = True) -> None:
        self.rows, self.limit, self.end, self.work = rows, limit, end, work
        self.factor_graph = rows.factor_graph
        self.bound, self.value = -math.inf, math.inf
        self.best: tuple[int, ...] | None = None
        self.prices = np.zeros(rows.model.moments)
        self.planes: list[CuttingPlane] = []
        self.choices: list[tuple[int, ...]] = []
        self.near: LagrangianSubproblem | None = None
        self.relink = PathRelinking(rows, limit)
        self.weight = 1.0 if work else TIES / max(_dearest(self.factor_graph), 1e-300)
        self.at_prices = -math.inf
        self.polished: LagrangianSubproblem | None = None
        self.reduced: list[np.ndarray] = []
        self.stats: dict[str, float] = {"prices tried": 0, "programs": 0}

    def run(self) -> None:
        """Prices, then plans, then the proof, as far as time allows."""
        self._ascend()
        self._polish()
        self.improve()

    def glance(self) -> float:
        """A first bound: at no price, or that of the moment at which the fastest choice needs most."""
        if self.work:
            self._evaluate(self.prices)
            return self.bound
        fastest = LagrangianSubproblem(self.factor_graph, self.end).choice()
        if fastest is not None:
            self.know(fastest)
        self._evaluate(np.ones(len(self.prices)) if fastest is None else _only(self.rows.at(fastest)))
        return self.bound

    def improve(self) -> None:
        """Look for better plans than the best, or for a first one, among ever more choices, until there is none or time
        is over."""
        self.stats.pop("kept", None)
        for most in WIDER:
            if self.closed or self.left < 0 or not self._prove(most):
                break

    @property
    def closed(self) -> bool:
        return math.isfinite(self.value) and self.value - self.bound <= EQUAL * abs(self.value)

    @property
    def gap(self) -> float:
        return (self.value - self.bound) / abs(self.value)

    @property
    def left(self) -> float:
        return self.end - now()

    # -- plans

    def consider(self, choice: Sequence[int]) -> np.ndarray:
        """[moments] bytes of a choice; it is kept if it is the best."""
        nbytes, seconds = self.rows.at(choice), self.factor_graph.seconds(choice)
        if not self.work:
            value = int(nbytes.max()) / self.limit if math.isfinite(seconds) else math.inf
        else:
            value = seconds if int(nbytes.max()) <= self.limit else math.inf
        if value < self.value:
            self.value, self.best = value, tuple(choice)
            if self.work:
                so_far(best=value)
        return nbytes

    def _offer(self, choice: Sequence[int]) -> np.ndarray:
        """The same, and what this choice and the best have in common."""
        nbytes = self.consider(choice)
        if self.work and self.best is not None and tuple(choice) != self.best:
            for found in self.relink.between(self.best, choice):
                self.consider(found)
        return nbytes

    # -- prices

    def _ascend(self) -> None:
        """Raise the bound by better prices; the choices that are best there may be plans."""
        until, still = now() + ASCENT * self.left, 0
        if not self.planes:
            self.glance()
        if not self.planes:
            return
        box, tried = self._box(), [self.prices] if not self.work else []
        for orbit in range(ROUNDS):
            if self.closed or still >= STILL or now() > until:
                break
            target, _ = model(self.planes, box, simplex=not self.work)
            at_edge = self.work and target >= 0.999 * box
            box = np.where(at_edge, 4 * box, box)
            step = 1.0 if orbit % 4 == 3 or np.any(at_edge) or not self.work and orbit < 2 else 0.5
            prices, before, value = self.prices + step * (target - self.prices), self.bound, self.value
            if any(np.allclose(prices, one, rtol=SAME, atol=0.0) for one in tried):
                break  # no other prices promise more: what is left is between the bound and the choices there
            tried.append(prices)
            if not self._evaluate(prices):
                break
            gained = self.bound - before > GAINED * abs(self.bound) or self.value < value * (1 - GAINED)
            still = 0 if gained else still + 1

    def _box(self) -> np.ndarray:
        """The highest prices to begin with: BEGIN of the cost for an excess like the first one."""
        first = self.planes[0]
        if not self.work:
            return np.ones(len(self.prices))
        excess = np.maximum(first.excess, 0.02)
        return BEGIN * abs(first.cost) / excess

    def _evaluate(self, prices: np.ndarray) -> bool:
        """The bound at prices (seconds per `limit` bytes) and a choice there; False if time was too short for one."""
        self.stats["prices tried"] += 1
        prices = np.where(prices < 1e-6 * prices.max(initial=0.0), 0.0, prices)
        if not self.work:
            prices = prices / prices.sum()
        priced = self.rows.priced(prices / self.limit, self.weight)
        self.near = LagrangianSubproblem(priced, min(self.end, now() + max(1.0, 0.2 * self.left)), self.near)
        self._raise(prices, self.near)
        return self.know(self.near.choice(others=self._promising(prices)))

    def _raise(self, prices: np.ndarray, search: LagrangianSubproblem) -> None:
        bound = self._bound_of(prices, search.lower)
        if bound > self.at_prices:
            self.at_prices, self.prices = bound, prices
        self.bound = max(self.bound, bound)
        if self.work:
            so_far(bound=self.bound)

    def _bound_of(self, prices: np.ndarray, lower: float) -> float:
        """What the least sum with priced bytes says of seconds, or of the largest row."""
        constants = self.rows.constants - (self.limit if self.work else 0)
        return lower + float(prices @ constants) / self.limit - (0.0 if self.work else TIES)

    def know(self, choice: tuple[int, ...] | None) -> bool:
        """Look at a choice, which may be a plan, and tells what prices are worth trying; False if there is none."""
        if choice is None:
            return False
        nbytes = self._offer(choice)
        cost = self.factor_graph.seconds(choice) if self.work else 0.0
        excess = (nbytes - (self.limit if self.work else 0)) / self.limit
        self.planes.append(CuttingPlane(cost, excess, self.bound))
        self.choices.append(tuple(choice))
        return True

    def _promising(self, prices: np.ndarray) -> list[tuple[int, ...]]:
        """Of the choices seen, the one that is least at these prices, and the best plan."""
        known = [] if self.best is None else [self.best]
        if self.planes:
            costs = [plane.cost + float(prices @ plane.excess) for plane in self.planes]
            known.append(self.choices[int(np.argmin(costs))])
        return known

    def _polish(self) -> None:
        """A tighter bound, and a better plan, at the best prices."""
        if self.closed or self.near is None or self.left < 0:
            return
        priced = self.rows.priced(self.prices / self.limit, self.weight)
        search = LagrangianSubproblem(priced, self.end, self.near)
        search.tighten(*POLISH)
        self._raise(self.prices, search)
        self.polished = search
        for few, near in ((4, THOROUGH[1]), THOROUGH):
            if not self.closed and self.left > 0:
                self.know(search.choice(few, near, self._promising(self.prices)))

    # -- whole numbers

    def _prove(self, most: float) -> bool:
        """The best among the choices that raise the bound least, `most` per variable on average; False if these are too
        many."""
        if not self.reduced:
            self.reduced = self._reduced()
        reduced = self.reduced
        every = np.sort(np.concatenate(reduced))
        every_plan = self.value - self.at_prices + EQUAL * abs(self.value)
        beyond = min(every_plan, float(every[int(min(most * len(reduced), len(every) - 1))]))
        keep = [np.flatnonzero(one <= max(beyond, one.min())) for one in reduced]
        if self.best is not None:
            keep = [np.union1d(kept, [one]) for kept, one in zip(keep, self.best, strict=True)]
        count = sum(map(len, keep))
        if count == self.stats.get("kept"):
            return True  # nothing new to look at
        self.stats["kept"] = count
        # Programs of some choices find plans; that of all which a better plan could make has the time that is left.
        is_last = beyond >= min(every_plan, float(every[-1]))
        bound = self._whole(keep, self.left if is_last else SHARE * self.left)
        left_out = min(
            float(np.delete(one, kept).min(initial=math.inf)) for one, kept in zip(reduced, keep, strict=True)
        )
        self.bound = max(self.bound, min(bound, self.at_prices + left_out, self.value))
        return bound > -math.inf  # inf: none of these is a plan, but one of more of them may be

    def _reduced(self) -> list[np.ndarray]:
        """By how much the best bound rises for each choice, at least."""
        search = self.polished
        if search is None:
            return [np.zeros(size) for size in self.factor_graph.sizes]
        # By how much the best bound is above this one is known for all choices.
        higher = self.at_prices - self._bound_of(self.prices, search.lower)
        return [np.maximum(one - higher, 0.0) for one in search.folded.marginals(search.srmp.reduced())]

    def _whole(self, keep: Sequence[np.ndarray], seconds: float) -> float:
        """The best plan among these choices becomes known; a bound for all of them, -inf if they are too many."""
        self.stats["programs"] += 1
        until = min(self.end, now() + seconds)
        program = MemoryProgram(self.rows, keep, self.limit, self.work)
        for moment in np.flatnonzero(self.prices).tolist():
            program.add_row(moment)
        bound = -math.inf
        while program.size <= COLUMNS and now() < until:
            answer = program.solved(until - now())
            bound = max(bound, math.inf if answer.impossible else answer.bound - EQUAL / 4 * abs(answer.bound))
            if answer.columns is None:
                break
            choice = program.choice(answer.columns)
            nbytes = self.consider(choice)
            allowed = self.limit if self.work else self.value * self.limit
            most = self.limit if self.work else (float(answer.columns[program.excess]) + 1e-9) * self.limit
            over = peaks(nbytes, most)
            if not over or (not self.work and bound * self.limit >= allowed * (1 - EQUAL)):
                break
            self._explain(program, choice, over)
        self.stats["largest program"] = max(self.stats.get("largest program", 0), program.size)
        return bound

    def _explain(self, program: MemoryProgram, choice: tuple[int, ...], over: list[int]) -> None:
        """Tell a program why a choice is over the limit."""
        new = [moment for moment in over if moment not in program.moments]
        for moment in new:
            program.add_row(moment)
        told = bool(new)
        for moment in over:
            for number, more in self.rows.spots(choice, moment):
                told |= program.add_spot(number, more, choice)
        if not told:
            program.exclude(choice, [v for v, kept in enumerate(program.keep) if len(kept) > 1])


WINDOW = 12
"""Of moments that follow each other so closely, one row is added at a time."""


def peaks(nbytes: np.ndarray, most: float) -> list[int]:
    """Moments above `most`, the highest first, that do not lie close to each other; three at most."""
    left, found = nbytes.astype(float), []
    while len(found) < 3:
        moment = int(left.argmax())
        if left[moment] <= most:
            break
        found.append(moment)
        left[max(0, moment - WINDOW) : moment + WINDOW + 1] = -1.0
    return found


def _only(nbytes: np.ndarray) -> np.ndarray:
    """The price 1 at the moment with the most bytes."""
    prices = np.zeros(len(nbytes))
    prices[int(nbytes.argmax())] = 1.0
    return prices


def _dearest(factor_graph) -> float:
    """At most what any choice costs, in seconds."""
    total = sum(_most(costs) for costs in factor_graph.unary)
    return total + sum(
        _most(factor.multi_layout.base) + float(_rows(factor.multi_layout.seconds)) for factor in factor_graph.factors
    )


def _most(costs: np.ndarray) -> float:
    return float(np.max(costs, where=np.isfinite(costs), initial=0.0))


def _rows(seconds: np.ndarray) -> float:
    """The largest sum of a row: all layouts at once."""
    return float(np.where(np.isfinite(seconds), seconds, 0.0).sum(axis=1).max(initial=0.0))
