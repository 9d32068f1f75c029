"""A sum of tables to be minimized: variables with choices, factors that price them, rows that bound memory.

Nothing here knows of graphs or layouts. Arrays may be the same object in many factors (equal layers share them), and
the solver then computes what follows from them once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from autoshard.util.errors import PlanError

Scope = tuple[int, ...]
Term = tuple[Scope, np.ndarray]


@dataclass(frozen=True, eq=False)
class CostFactor:
    """A price that depends on the variables of `scope`: `cost` has one dim per variable, in seconds; inf forbids."""

    scope: Scope
    cost: np.ndarray


@dataclass(frozen=True, eq=False)
class MemoryRow:
    """A moment: the sum of its terms, each (scope, int64 bytes shaped like a cost), is what lies in memory."""

    terms: tuple[Term, ...]
    name: str = ""

    def __post_init__(self):
        object.__setattr__(self, "terms", tuple((tuple(scope), nbytes) for scope, nbytes in self.terms))


@dataclass(frozen=True, eq=False)
class CostProblem:
    """Choose one of sizes[v] choices for every variable v so that the factors' sum is least.

    With a `limit` (bytes) every row's sum must be at most that.

    Raises:
        PlanError: a factor or row whose array does not fit its scope, or holds nan or -inf.
    """

    sizes: tuple[int, ...]
    factors: Sequence[CostFactor]
    rows: Sequence[MemoryRow] = ()
    limit: int | None = None

    def __post_init__(self):
        object.__setattr__(self, "sizes", tuple(int(size) for size in self.sizes))
        object.__setattr__(self, "factors", tuple(self.factors))
        object.__setattr__(self, "rows", tuple(self.rows))
        seen: set[int] = set()
        for number, factor in enumerate(self.factors):
            self._check(f"factor {number}", tuple(factor.scope), factor.cost)
            if id(factor.cost) not in seen:
                seen.add(id(factor.cost))
                _check_costs(number, factor.cost)
        for number, row in enumerate(self.rows):
            for scope, nbytes in row.terms:
                self._check(f"row {number}", scope, nbytes)
                if not np.issubdtype(nbytes.dtype, np.integer):
                    raise PlanError(f"row {number}: bytes over variables {scope} are {nbytes.dtype}, not integers")

    def _check(self, what: str, scope: Scope, array: np.ndarray) -> None:
        if len(set(scope)) != len(scope) or any(not 0 <= v < len(self.sizes) for v in scope):
            raise PlanError(f"{what}: scope {scope} must name distinct variables of 0..{len(self.sizes) - 1}")
        wanted = tuple(self.sizes[v] for v in scope)
        if array.shape != wanted:
            raise PlanError(f"{what}: an array of shape {array.shape} over variables {scope}, which have {wanted}")

    def value(self, choice: Sequence[int]) -> float:
        """The sum of all factors at a choice, correctly rounded."""
        return math.fsum(float(factor.cost[tuple(choice[v] for v in factor.scope)]) for factor in self.factors)

    def bytes_at(self, choice: Sequence[int]) -> tuple[int, ...]:
        """What every row sums to at a choice."""
        return tuple(
            sum(int(nbytes[tuple(choice[v] for v in scope)]) for scope, nbytes in row.terms) for row in self.rows
        )


def _check_costs(number: int, cost: np.ndarray) -> None:
    if not cost.size:
        return
    least = cost.min()
    if np.isnan(least) or least == -np.inf:
        raise PlanError(f"factor {number}: costs must be numbers above -inf, but the least of them is {least}")


@dataclass(frozen=True)
class TableSolution:
    """The best choice found, None where there is none; `proven` where `value` is the optimum (bound equal within 1e-9).

    `bound` (seconds) is never above the optimum. No choice and `proven`: nothing satisfies the tables and the rows.
    `peak` is the largest row at the choice, in bytes; 0 without rows. `prices` per row (seconds per byte) are the
    Lagrange multipliers of the bound; empty where the limit does not bind.
    """

    choice: tuple[int, ...] | None
    value: float
    bound: float
    proven: bool
    peak: int = 0
    stats: Mapping[str, float] = field(default_factory=dict)
    prices: tuple[float, ...] = ()

    @property
    def gap(self) -> float:
        """(value - bound) / |value|, 0 where proven."""
        if self.proven:
            return 0.0
        return (self.value - self.bound) / max(abs(self.value), 1e-300) if math.isfinite(self.value) else math.inf
