"""The least cost within a memory limit: Lagrangian bound, repair, then everything within the gap.

The bound prices the bytes of the rows; the choices that its evaluations come to, repaired, give values. What is left
between the two is searched completely, with all rows kept as whole numbers: by labels where the tables can be
eliminated, else by HiGHS on the choices that the bound leaves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autoshard.search.exact.wcsp import milp
from autoshard.search.exact.wcsp.cutting_planes import CuttingPlane, ascend
from autoshard.search.exact.wcsp.icm import Icm
from autoshard.search.exact.wcsp.label_setting import LabelSearch
from autoshard.search.exact.wcsp.least_memory import least_memory
from autoshard.search.exact.wcsp.memory_rows import BindingRows, cut_limits, merged
from autoshard.search.exact.wcsp.minimum import EQUAL, SWEEPS, NetworkSearch, Progress, minimum
from autoshard.search.exact.wcsp.network import Network, product
from autoshard.search.exact.wcsp.problem import CostProblem, TableSolution, Term
from autoshard.search.exact.wcsp.scale import Scale, scaled
from autoshard.search.exact.wcsp.trws import pass_messages, strike_out
from autoshard.util.clock import now

ROUNDS = 40
# By what prices are raised, one after another, until a choice fits.
REPAIRS = (1.2, 1.5, 2.0, 4.0, 16.0, 64.0, 1024.0, 2.0**20)
# An evaluation may take this part of the time left.
SHARE = 20
# Problems with no more choices in all than this are listed outright.
SMALL = 20_000
# Labels kept per step: first few, for a good value; then as many as memory allows.
WIDTHS = (1_000, 200_000)


class WithinLimit:
    """One search under a limit; starts from the solution without it."""

    def __init__(
        self, problem: CostProblem, free: TableSolution, deadline: float, cells: int, progress: Progress | None
    ):
        assert problem.limit is not None and free.choice is not None, "only a solution over the limit needs this"
        self.problem, self.deadline, self.cells = problem, deadline, cells
        self.progress = progress or (lambda low, high: None)
        self.binding = BindingRows(problem.rows, problem.limit)
        self.limits = problem.limit - self.binding.constants
        self.priced: list[Term] = [(tuple(factor.scope), factor.cost) for factor in problem.factors]
        self.descent = Icm(problem.sizes, self.priced)
        self.bound = free.bound
        self.free = free.choice
        self.near = free.choice
        self.value = math.inf
        self.choice: tuple[int, ...] | None = None
        self.evaluations = 0
        self.prices = np.zeros(len(self.limits))

    def solve(self) -> TableSolution:
        if (self.limits < 0).any():
            return self._answer(nothing=True)
        self.priced += self._forbidden()
        if product(self.problem.sizes) <= min(self.cells, SMALL):
            self._search(np.zeros(len(self.limits)))
            return self._answer(nothing=self.bound == math.inf)
        first = self._plane(self.free, self.bound)
        dual = ascend(
            self._evaluate,
            first,
            np.zeros(len(self.limits)),
            box=self._box(first),
            simplex=False,
            rounds=ROUNDS,
            done=lambda bound: bound == math.inf or self._closed(bound),
        )
        self.bound, self.prices = max(self.bound, dual.bound), dual.prices
        if self.bound == math.inf:
            return self._answer(nothing=True)
        if self.choice is None and self._infeasible():
            return self._answer(nothing=True)
        if not self._closed(self.bound) and not self._late():
            self._search(self.prices)
        return self._answer()

    def _closed(self, bound: float) -> bool:
        if math.isinf(self.value):
            return False
        return self.value - bound <= EQUAL * abs(self.value)

    def _forbidden(self) -> list[Term]:
        """Tables that forbid what alone is over a row's limit."""
        made: dict[tuple[int, int], np.ndarray] = {}
        found = []
        share = self.binding.share.tocsc()
        for t, (scope, array) in enumerate(self.binding.terms):
            most = int(self.limits[share.indices[share.indptr[t] : share.indptr[t + 1]]].min())
            if int(array.max()) > most:
                key = (id(array), most)
                if key not in made:
                    made[key] = np.where(array > most, np.inf, 0.0)
                found.append((scope, made[key]))
        return found

    def _box(self, first: CuttingPlane) -> np.ndarray:
        """Prices to begin with: the whole cost for an excess like the first one."""
        excess = np.maximum(np.abs(first.excess), np.maximum(self.limits, 1) * 1e-3)
        return max(abs(first.cost), 1e-12) / excess

    def _plane(self, choice: Sequence[int], bound: float) -> CuttingPlane:
        excess = self.binding.at(choice) - self.problem.limit
        return CuttingPlane(self.problem.value(choice), excess.astype(float), bound)

    def _evaluate(self, prices: np.ndarray) -> CuttingPlane | None:
        if self._late():
            return None
        self.evaluations += 1
        self.binding.forget()
        priced = self.priced + self.binding.priced(prices)
        soon = now() + max(1.0, (self.deadline - now()) / SHARE)
        best, scale = minimum(self.problem.sizes, priced, soon, self.cells, self.near, branch=False)
        if best.choice is None:
            # Nothing at all where that is proven; else time was too short for anything.
            return CuttingPlane(math.inf, np.zeros(len(prices)), math.inf) if best.lower == math.inf else None
        self.near = best.choice
        self._consider(best.choice)
        if not self._closed(self.bound):
            self._repair(best.choice, prices)
        fixed = float(prices @ self.limits)
        bound = scale.bound(best.lower) - fixed - 4 * np.finfo(float).eps * abs(fixed)
        self.progress(max(bound, self.bound), self.value)
        return self._plane(best.choice, bound)

    def _consider(self, choice: Sequence[int]) -> bool:
        """Keep a choice within the limit if it is the best; whether it is within the limit."""
        if (self.binding.at(choice) > self.problem.limit).any():
            return False
        value = self.problem.value(choice)
        if value < self.value:
            self.value, self.choice = value, tuple(choice)
        return True

    def _repair(self, choice: Sequence[int], prices: np.ndarray) -> None:
        """Single changes under ever higher prices until the choice fits."""
        prices = np.maximum(prices, self._box(self._plane(choice, 0.0)) * 1e-3)
        for factor in REPAIRS:
            if self._consider(choice) or self._late():
                return
            priced = self.priced + self.binding.priced(prices * factor)
            choice = Icm(self.problem.sizes, priced).improve(choice, rounds=4)
        self._consider(choice)

    def _infeasible(self) -> bool:
        """Whether no choice is within the limit; else (or where time is over) the least one is a value."""
        least = least_memory(self.problem, time_limit=self.deadline - now(), cells=self.cells)
        assert self.problem.limit is not None
        if least.bound > self.problem.limit:
            return True
        self._consider(least.choice)
        return False

    def _search(self, prices: np.ndarray) -> None:
        """Everything whose bound at these prices is up to the best value."""
        fixed = float(prices @ self.limits)
        for width in WIDTHS:
            network, scale = self._scaled(prices)
            ceiling = self._ceiling(prices, scale)
            NetworkSearch(network, self.deadline, self.cells, ceiling=ceiling).reduce()
            if not math.isfinite(network.base):
                # Nothing is as cheap as the best value, not even within rounding: so it is the best.
                self.bound = self.value
                return
            if network.choices:
                self._program(prices)
                return
            search = LabelSearch(network, self.binding, self.limits, prices / scale.unit, width)
            found = search.run(ceiling - network.base, self._late)
            if found.choice is not None:
                self._consider(found.choice)
            left = scale.bound(network.base + found.least) - fixed
            self.bound = max(self.bound, min(self.value, left))
            if self._closed(self.bound) or self._late():
                return

    def _late(self) -> bool:
        return now() > self.deadline

    def _scaled(self, prices: np.ndarray) -> tuple[Network, Scale]:
        priced = self.priced + self.binding.priced(prices)
        return scaled(self.problem.sizes, priced, self.value + float(prices @ self.limits))

    def _ceiling(self, prices: np.ndarray, scale: Scale) -> float:
        """The best value in units of the priced tables, with room for what rounding did."""
        way = self.value + float(prices @ self.limits) - scale.floor + scale.error
        return math.ceil(way / scale.unit) if math.isfinite(way) else math.inf

    def _program(self, prices: np.ndarray) -> None:
        """HiGHS on the choices that the bound leaves; what it returns is checked, and excluded where it is over."""
        network, scale = self._scaled(prices)
        network.make_consistent()
        ceiling = self._ceiling(prices, scale)
        strike_out(pass_messages(network, ceiling, lambda messages: ceiling, SWEEPS, self._late))
        if not math.isfinite(network.base):
            self.bound = self.value
            return
        kept = [network.choices[v] for v in range(len(self.problem.sizes))]
        priced = merged(self.priced, kept)
        limits = cut_limits(self.binding, self.limits, kept)
        excluded: list[dict[int, int]] = []
        while not self._late() and milp.cells(priced) <= milp.COLUMNS:
            sizes = [len(left) for left in kept]
            answer = milp.minimize(sizes, priced, self.deadline - now(), limits, excluded)
            bound = math.inf if answer.infeasible else answer.bound - EQUAL * abs(answer.bound) / 4
            self.bound = max(self.bound, min(self.value, bound))
            if answer.choice is None:
                return
            if self._consider([int(left[c]) for left, c in zip(kept, answer.choice, strict=True)]):
                self.bound = max(self.bound, min(self.value, bound))
                return
            excluded.append(dict(enumerate(answer.choice)))

    def _answer(self, nothing: bool = False) -> TableSolution:
        stats = {"evaluations": self.evaluations, "rows": len(self.binding.rows)}
        if nothing:
            return TableSolution(None, math.inf, math.inf, True, stats=stats)
        if self.choice is None:
            return TableSolution(None, math.inf, self.bound, False, stats=stats)
        peak = max(self.problem.bytes_at(self.choice), default=0)
        proven = self._closed(self.bound)
        prices = np.zeros(len(self.problem.rows))
        prices[self.binding.rows] = self.prices
        bound = min(self.bound, self.value)
        return TableSolution(self.choice, self.value, bound, proven, peak, stats, tuple(prices.tolist()))
