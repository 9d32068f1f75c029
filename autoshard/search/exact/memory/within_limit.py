"""Solves a factor graph under a memory limit: the rows of the memory model, kept to the byte.

First comes a bound of the least memory that anything needs: a limit below it is refused. Else `lagrangian.py` searches.
Whatever is returned keeps the limit by the whole model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoshard.redistribute.positions import primes
from autoshard.search.exact.memory.lagrangian import LagrangianSearch
from autoshard.search.exact.memory.rows import MemoryRows
from autoshard.search.exact.search import Solution
from autoshard.search.factor_graph import FactorGraph
from autoshard.util.clock import now
from autoshard.util.errors import MemoryLimitError, PlanError
from costmodel import format_bytes

BIGGEST = 5


def solve_within_limit(factor_graph: FactorGraph, limit: int, time_limit: float, known: float = 0.0) -> Solution:
    """Minimize the sum of all prices among choices that need at most `limit` bytes on a device.

    Args:
        known: seconds that are known as a bound for all choices.

    Raises:
        PlanError: nothing found in time.
        MemoryLimitError: no choice needs so little; it names the least limit and the moment that binds.
    """
    rows, end = MemoryRows(factor_graph), now() + time_limit
    unit = max(limit, rows.largest)
    least = LagrangianSearch(rows, unit, end, work=False)
    if _bytes(least.glance(), unit) > limit:
        raise _least_of(least, rows, limit, time_limit)
    search = LagrangianSearch(rows, limit, end)
    search.bound = known
    for choice in least.choices:
        search.know(choice)
    if search.best is None:
        search.end = now() + 2 / 3 * time_limit
    search.run()
    if search.best is None:
        for choice in search.choices:
            least.know(choice)
        refused = _least_of(least, rows, limit, time_limit)
        if least.best is None or int(rows.at(least.best).max()) > limit:
            raise refused
        search.end = end
        search.know(least.best)
        search.improve()
    assert search.best is not None
    stats = {f"limit {name}": number for name, number in search.stats.items()}
    stats["peak"] = float(rows.at(search.best).max())
    return Solution(search.best, search.value, min(search.bound, search.value), stats)


def _least_of(least: LagrangianSearch, rows: MemoryRows, limit: int, time_limit: float) -> MemoryLimitError | PlanError:
    """What to say of a limit that nothing is known to keep, after a search for the least memory."""
    least.run()
    if least.best is None:
        return _too_late(rows.factor_graph, limit, time_limit)
    bound = _bytes(least.bound, least.limit)
    if bound > limit:
        return _refused(rows, limit, least.best, bound)
    return _too_late(rows.factor_graph, limit, time_limit, int(rows.at(least.best).max()), bound)


def _bytes(part: float, unit: int) -> int:
    """Whole bytes that a bound in parts of `unit` leaves."""
    return math.ceil(part * unit * (1 - 1e-12) - 1e-6)


def _what(factor_graph: FactorGraph, limit: int) -> str:
    name = factor_graph.graph.name
    return f"search mode optimal found no plan for {name!r} within {format_bytes(limit)} ({limit} B) a device"


def _among(factor_graph: FactorGraph) -> str:
    """Of which strategies that is said, where there are others: those that split by a part of an axis."""
    return (
        ""
        if all(len(primes(int(size))) == 1 for size in factor_graph.units.sizes)
        else "; among strategies on whole mesh axes"
    )


def _too_late(
    factor_graph: FactorGraph, limit: int, seconds: float, known: int | None = None, bound: int | None = None
) -> PlanError:
    so_far = f"; a plan with {known} B is known, and none needs less than {bound} B" if known else ""
    return PlanError(f"{_what(factor_graph, limit)} in {seconds:g} s{so_far}; give it more time, or more memory")


def _refused(rows: MemoryRows, limit: int, choice: Sequence[int], bound: int) -> PlanError:
    """The choice that needs least tells what binds."""
    use = rows.use(choice)
    least = (
        "the least that is possible is" if bound == use.peak else f"any needs {bound} B at least, a plan is known with"
    )
    held = use.at(use.peak_moment)
    shown = ", ".join(f"{one.kind} {one.what} {format_bytes(one.nbytes)}" for one in held[:BIGGEST])
    rest = f" and {len(held) - BIGGEST} more" if len(held) > BIGGEST else ""
    return MemoryLimitError(
        f"{_what(rows.factor_graph, limit)}: {least} {format_bytes(use.peak)} ({use.peak} B), at {use.peak_at} "
        f"({shown}{rest}){_among(rows.factor_graph)}; what programs save by sharing memory is not counted",
        needed=use.peak,
        limit=limit,
    )
