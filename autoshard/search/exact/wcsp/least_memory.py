"""The least memory that anything allowed by the tables needs: the smallest limit, and the row that binds there.

The largest row is at least every weighted mean of the rows, so the least weighted sum is a bound (weights by cutting
planes), and what is between it and the best choice found is searched in whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autoshard.search.exact.wcsp import milp
from autoshard.search.exact.wcsp.cutting_planes import CuttingPlane, ascend
from autoshard.search.exact.wcsp.label_setting import LabelSearch
from autoshard.search.exact.wcsp.memory_rows import BindingRows, cut_limits, merged
from autoshard.search.exact.wcsp.minimum import CELLS, NetworkSearch, minimum
from autoshard.search.exact.wcsp.network import product
from autoshard.search.exact.wcsp.problem import CostProblem, Term
from autoshard.search.exact.wcsp.scale import scaled
from autoshard.util.clock import now
from autoshard.util.errors import PlanError

ROUNDS = 40
# Problems with no more choices in all than this are listed outright.
SMALL = 20_000
WIDTH = 50_000


class LeastMemory(NamedTuple):
    """The least feasible limit in bytes, the row that reaches it, a choice that has it; `bound` equals it if proven."""

    nbytes: int
    row: int
    choice: tuple[int, ...]
    bound: int


def least_memory(problem: CostProblem, *, time_limit: float = 60.0, cells: int = CELLS) -> LeastMemory:
    """The smallest limit under which `problem` has a choice, whatever that costs; its own limit is not looked at.

    Raises:
        PlanError: it has no rows, or its tables allow nothing (or time was over before anything was found).
    """
    if not problem.rows:
        raise PlanError("least memory of a problem without rows: nothing says what lies in memory")
    return _LeastMemorySearch(problem, now() + time_limit, cells).find()


class _LeastMemorySearch:
    def __init__(self, problem: CostProblem, deadline: float, cells: int):
        self.problem, self.deadline, self.cells = problem, deadline, cells
        self.binding = BindingRows(problem.rows, None)
        self.forbidden = _forbidden(problem)
        self.choice: tuple[int, ...] | None = None
        self.upper = 2**62
        self.lower = 0

    def find(self) -> LeastMemory:
        count = len(self.binding.rows)
        start = np.full(count, 1 / count)
        first = self._evaluate(start)
        if first is None or self.choice is None:
            raise PlanError("least memory: no choice that the tables allow was found")
        dual = ascend(
            self._evaluate,
            first,
            start,
            box=np.ones(count),
            simplex=True,
            rounds=ROUNDS if product(self.problem.sizes) > min(self.cells, SMALL) else 0,
            done=lambda bound: self.lower >= self.upper,
        )
        while self.lower < self.upper and now() < self.deadline:
            if not self._improve(dual.prices):
                break
        nbytes = self.problem.bytes_at(self.choice)
        peak = max(nbytes)
        return LeastMemory(peak, nbytes.index(peak), self.choice, min(peak, self.lower))

    def _evaluate(self, weights: np.ndarray) -> CuttingPlane | None:
        if now() > self.deadline:
            return None
        self.binding.forget()
        priced = self.forbidden + self.binding.priced(weights)
        branch = self.choice is None
        best, scale = minimum(self.problem.sizes, priced, self.deadline, self.cells, self.choice, branch=branch)
        if best.choice is None:
            return None
        fixed = float(weights @ self.binding.constants)
        bound = scale.bound(best.lower) + fixed
        self.lower = max(self.lower, _whole(bound))
        nbytes = self._consider(best.choice)
        return CuttingPlane(0.0, nbytes.astype(float), bound)

    def _consider(self, choice: Sequence[int]) -> np.ndarray:
        nbytes = self.binding.at(choice)
        if int(nbytes.max()) < self.upper:
            self.upper, self.choice = int(nbytes.max()), tuple(choice)
        return nbytes

    def _improve(self, weights: np.ndarray) -> bool:
        """A choice below the best, or the proof that there is none (then the bounds meet); False: neither."""
        limits = self.upper - 1 - self.binding.constants
        fixed = float(weights @ self.binding.constants)
        priced = self.forbidden + self.binding.priced(weights)
        network, scale = scaled(self.problem.sizes, priced, self.upper - fixed)
        ceiling = math.ceil((self.upper - fixed - scale.floor + scale.error) / scale.unit)
        NetworkSearch(network, self.deadline, self.cells, ceiling=ceiling).reduce()
        if not math.isfinite(network.base):
            self.lower = self.upper
            return True
        if network.choices:
            return self._program()
        search = LabelSearch(network, self.binding, limits, weights / scale.unit, WIDTH)
        found = search.run(ceiling - network.base, lambda: now() > self.deadline, minimax=True)
        before = self.upper
        if found.choice is not None:
            self._consider(found.choice)
        if math.isinf(found.least):
            self.lower = self.upper
            return True
        self.lower = min(self.upper, max(self.lower, _whole(scale.bound(network.base + found.least) + fixed)))
        return self.upper < before or self._program()

    def _program(self) -> bool:
        """HiGHS asked for a choice half way between the bounds; what it says is checked in whole numbers."""
        middle = (self.lower + self.upper) // 2 if self.upper - self.lower > 1 else self.lower
        kept = [np.arange(size) for size in self.problem.sizes]
        priced = merged(self.forbidden, kept)
        rows = cut_limits(self.binding, middle - self.binding.constants, kept)
        if (middle < self.binding.constants).any():
            self.lower = middle + 1
            return True
        excluded: list[dict[int, int]] = []
        while now() < self.deadline and milp.cells(priced) <= milp.COLUMNS:
            left = self.deadline - now()
            answer = milp.minimize(self.problem.sizes, priced, left, rows, excluded)
            if answer.infeasible:
                self.lower = middle + 1
                return True
            if answer.choice is None:
                return False
            if int(self._consider(answer.choice).max()) <= middle:
                return True
            excluded.append(dict(enumerate(answer.choice)))
        return False


def _whole(bound: float) -> int:
    """A bound on a whole number of bytes, given one that floating point may have moved a little."""
    return math.ceil(bound - 1e-4 - 1e-13 * abs(bound))


def _forbidden(problem: CostProblem) -> list[Term]:
    """The tables' infs alone."""
    made: dict[int, np.ndarray | None] = {}
    found = []
    for factor in problem.factors:
        key = id(factor.cost)
        if key not in made:
            closed = np.isinf(factor.cost)
            made[key] = np.where(closed, np.inf, 0.0) if closed.any() else None
        table = made[key]
        if table is not None:
            found.append((tuple(factor.scope), table))
    return found
