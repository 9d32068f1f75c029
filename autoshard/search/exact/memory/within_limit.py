"""Solves a factor graph under a memory limit: the rows of the memory model, kept to the byte.

Where tables are small, all choices are written out, with a table for each term of the model, and searched completely
(`wcsp/`); larger ones are searched by `lagrangian.py`. Whatever is returned keeps the limit by the whole model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autoshard.core.strategy import Strategy
from autoshard.cost.memory import MemoryModel, Variable
from autoshard.ir.graph import Node
from autoshard.layout.layout import Layout
from autoshard.redistribute.positions import primes
from autoshard.search.domains import Domain
from autoshard.search.exact.memory.lagrangian import LagrangianSearch
from autoshard.search.exact.memory.rows import MemoryRows
from autoshard.search.exact.search import Solution
from autoshard.search.exact.wcsp import CostProblem, MemoryRow, least_memory, solve
from autoshard.search.factor_graph import FactorGraph
from autoshard.util.clock import now
from autoshard.util.errors import MemoryLimitError, PlanError
from costmodel import format_bytes

SMALL, WRITTEN = 100_000, 2_000_000
"""Cells of the largest table up to which all are written out; the second if there are at most FEW variables."""
FEW = 40
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
    if _cells(factor_graph, rows.model) <= (SMALL if len(factor_graph.variables) > FEW else WRITTEN):
        found = _settle_written(factor_graph, rows, limit, time_limit / 2)
        if found is not None:
            return found
    return _settle_large(rows, limit, end - now(), known)


def _cells(factor_graph: FactorGraph, model: MemoryModel) -> int:
    """Cells of the largest table, if all were written out."""
    sizes = [
        math.prod(len(one) for one in factor.multi_layout.kinds) * len(factor.multi_layout.maker)
        for factor in factor_graph.factors
    ]
    sizes += [math.prod(factor_graph.sizes[factor_graph.position[v]] for v in term.variables) for term in model.terms]
    return max(sizes, default=0)


def _settle_written(factor_graph: FactorGraph, rows: MemoryRows, limit: int, time_limit: float) -> Solution | None:
    """None: there was no time to tell."""
    end = now() + time_limit
    problem = CostProblem(factor_graph.sizes, factor_graph.dense_factors(), _rows(factor_graph, rows.model), limit)
    try:
        found = solve(problem, time_limit=time_limit)
        if found.choice is None and found.proven:
            least = least_memory(problem, time_limit=max(1.0, end - now()))
            raise _refused(rows, limit, least.choice, least.bound)
    except MemoryLimitError:
        raise
    except PlanError:  # not even one choice is known in time
        return None
    if found.choice is None:
        return None
    value = factor_graph.seconds(found.choice)
    stats = {f"exact {name}": number for name, number in found.stats.items()} | {"peak": float(found.peak)}
    return Solution(found.choice, value, min(found.bound, value), stats)


def _settle_large(rows: MemoryRows, limit: int, time_limit: float, known: float) -> Solution:
    """As far as time allows: a third of it for whether anything is possible, if that is not plain."""
    end = now() + time_limit
    unit = max(limit, rows.largest)
    least = LagrangianSearch(rows, unit, end, work=False)
    if _bytes(least.glance(), unit) > limit:
        raise _least_of(least, rows, limit, time_limit)
    search = LagrangianSearch(rows, limit, now() + 2 / 3 * time_limit)
    search.bound = known
    for choice in least.choices:
        search.know(choice)
    search.run()
    if search.best is None:
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


def _rows(factor_graph: FactorGraph, model: MemoryModel) -> list[MemoryRow]:
    """A row for each moment; of moments that follow each other only those after which something goes."""
    written: dict[tuple, np.ndarray] = {}
    starts: dict[int, list[tuple]] = {}
    ends: dict[int, list[tuple]] = {}
    for term in model.terms:
        places = tuple(factor_graph.position[variable] for variable in term.variables)
        key = (term.key, *(id(factor_graph.choices[place]) for place in places))
        if key not in written:
            written[key] = term.table(lambda variable: _choices(factor_graph, variable))
        if written[key].any():
            held = (places, written[key])
            starts.setdefault(term.first, []).append(held)
            ends.setdefault(term.last, []).append(held)
    rows, alive = [], []
    for moment in range(model.moments):
        alive += starts.get(moment, [])
        gone = {id(held) for held in ends.get(moment, [])}
        if gone or moment == model.moments - 1:
            rows.append(MemoryRow(tuple(alive), model.schedule.describe(moment)))
        alive = [held for held in alive if id(held) not in gone]
    return rows


def _choices(factor_graph: FactorGraph, variable: Variable) -> Sequence[Strategy | Layout]:
    menu = factor_graph.choices[factor_graph.position[variable]]
    if isinstance(menu, Domain):
        return [menu.strategy(row) for row in range(len(menu))]
    assert not isinstance(variable, Node)
    return [factor_graph.transfers.layout(int(code), variable.type.rank) for code in menu.codes]


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
        f"({shown}{rest}){_among(rows.factor_graph)}",
        needed=use.peak,
        limit=limit,
    )
