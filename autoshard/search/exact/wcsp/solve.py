"""The entry: a cost problem to its best choice, with a bound that says how good it is."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoshard.search.exact.wcsp.lagrangian import WithinLimit
from autoshard.search.exact.wcsp.minimum import CELLS, EQUAL, Minimum, Progress, minimum
from autoshard.search.exact.wcsp.problem import CostProblem, TableSolution
from autoshard.search.exact.wcsp.scale import Scale
from autoshard.util.clock import now


def solve(
    problem: CostProblem,
    *,
    time_limit: float = 60.0,
    start: Sequence[int] | None = None,
    progress: Progress | None = None,
    cells: int = CELLS,
) -> TableSolution:
    """The choice of least cost among those within the memory limit.

    Args:
        time_limit: seconds, after which the best choice so far is returned with the bound so far.
        start: a choice to begin with.
        progress: called with (bound, best value) in seconds now and then.
        cells: the largest table that elimination may make.
    """
    deadline = now() + time_limit
    priced = [(tuple(factor.scope), factor.cost) for factor in problem.factors]
    best, scale = minimum(problem.sizes, priced, deadline, cells, start, progress)
    solution = _solution(problem, best, scale)
    if problem.limit is None or solution.peak <= problem.limit:
        return solution
    return WithinLimit(problem, solution, deadline, cells, progress).solve()


def _solution(problem: CostProblem, best: Minimum, scale: Scale) -> TableSolution:
    if best.choice is None:
        proven = not math.isfinite(best.lower)
        return TableSolution(None, math.inf, math.inf if proven else scale.bound(best.lower), proven, stats=best.stats)
    value = problem.value(best.choice)
    bound = min(value, scale.bound(best.lower))
    proven = bool(value - bound <= EQUAL * abs(value) + 2 * scale.error)
    peak = max(problem.bytes_at(best.choice), default=0)
    return TableSolution(best.choice, value, bound, proven, peak, best.stats)
