"""The least cost of tables under a memory limit: the rows of the memory model, kept to the byte.

All choices are written out, with a table for each term of the model; graphs that are too large for that are refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autoshard.errors import MemoryLimitError, PlanError
from autoshard.ir.graph import Node
from autoshard.layout.layout import Layout
from autoshard.search.exact import CostProblem, Row, least_memory, solve
from autoshard.search.memory import MemoryModel, Variable, memory_model
from autoshard.search.settle import CELLS, Settled
from autoshard.search.strategies import Menu
from autoshard.search.tables import Tables
from autoshard.strategy import Strategy
from costmodel import format_bytes


def settle_within(tables: Tables, limit: int, time_limit: float) -> Settled:
    """Minimize the sum of all prices among choices that need at most `limit` bytes on a device.

    Raises:
        PlanError: too many combinations of choices around one value, or nothing found in time.
        MemoryLimitError: no choice needs so little; it names the least limit and the moment that binds.
    """
    model = memory_model(tables.problem)
    _check_size(tables, model)
    problem = CostProblem(tables.sizes, tables.factors(), _rows(tables, model), limit)
    found = solve(problem, time_limit=time_limit)
    if found.choice is None:
        raise _refused(tables, problem, limit, found.proven, time_limit)
    value = tables.seconds(found.choice)
    stats = {f"exact {name}": number for name, number in found.stats.items()} | {"peak": float(found.peak)}
    return Settled(found.choice, value, min(found.bound, value), (), stats)


def _check_size(tables: Tables, model: MemoryModel) -> None:
    sizes = [(math.prod(len(one) for one in price.shared.kinds) * len(price.shared.maker), price.value.name)
             for price in tables.prices]  # fmt: skip
    sizes += [(math.prod(tables.sizes[tables.position[v]] for v in term.variables), term.what) for term in model.terms]
    cells, name = max(sizes, default=(0, ""))
    if cells > CELLS:
        raise PlanError(
            f"search mode optimal cannot keep a memory limit for {tables.graph.name!r} on mesh '{tables.problem.mesh}' "
            f"yet: {cells} combinations of strategies around {name}, at most {CELLS} are written out; plan without the "
            "limit, with another mode, or on fewer axes"
        )


def _rows(tables: Tables, model: MemoryModel) -> list[Row]:
    """A row for each moment; of moments that follow each other only those after which something goes."""
    written: dict[tuple, np.ndarray] = {}
    starts: dict[int, list[tuple]] = {}
    ends: dict[int, list[tuple]] = {}
    for term in model.terms:
        places = tuple(tables.position[variable] for variable in term.variables)
        key = (term.key, *(id(tables.choices[place]) for place in places))
        if key not in written:
            written[key] = term.table(lambda variable: _choices(tables, variable))
        if written[key].any():
            held = (places, written[key])
            starts.setdefault(term.first, []).append(held)
            ends.setdefault(term.last, []).append(held)
    rows, alive = [], []
    for moment in range(model.moments):
        alive += starts.get(moment, [])
        gone = {id(held) for held in ends.get(moment, [])}
        if gone or moment == model.moments - 1:
            rows.append(Row(tuple(alive), model.schedule.describe(moment)))
        alive = [held for held in alive if id(held) not in gone]
    return rows


def _choices(tables: Tables, variable: Variable) -> Sequence[Strategy | Layout]:
    menu = tables.choices[tables.position[variable]]
    if isinstance(menu, Menu):
        return [menu.strategy(row) for row in range(len(menu))]
    assert not isinstance(variable, Node)
    return [tables.transfers.layout(int(code), variable.type.rank) for code in menu.codes]


def _refused(tables: Tables, problem: CostProblem, limit: int, proven: bool, seconds: float) -> PlanError:
    what = (
        f"search mode optimal found no plan for {tables.graph.name!r} within {format_bytes(limit)} ({limit} B) a device"
    )
    if not proven:
        return PlanError(f"{what} in {seconds:g} s; give it more time, or more memory")
    least = least_memory(problem, time_limit=seconds)
    told = "the least that is possible is" if least.bound == least.nbytes else "a plan is known with"
    return MemoryLimitError(
        f"{what}: {told} {format_bytes(least.nbytes)} ({least.nbytes} B), at {problem.rows[least.row].name}",
        needed=least.nbytes,
        limit=limit,
    )
