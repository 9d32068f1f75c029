"""Search mode "optimal": the plan of least time among all strategies on whole mesh axes, with its proof.

The graph becomes tables (`tables.py`), of which `settle.py` finds the least sum; the value is `evaluate_plan(...)`'s
seconds. A plan's `search_stats` have the bound and the gap; it is optimal where "proven" is 1. Where a mesh has so many
axes that an operator would have more than `ways.MOST` strategies, neighbouring axes are used as one: then "restricted"
is 1, and the proof is among the strategies of the "searched" ways to do so, which `started_from` names, without
redistributions of a dim between, say, 25 and 8 parts, or from terms of a sum along one axis to terms along another.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from autoshard.cost.evaluate import prices_for
from autoshard.cost.memory import peak_memory
from autoshard.ir.graph import Node, Value
from autoshard.layout.layout import Layout
from autoshard.plan.plan import CONFIGURED, GIVEN, Cause, Decision, Option, Plan
from autoshard.search.choose import ALTERNATIVES
from autoshard.search.limit import MEMORY
from autoshard.search.limited import settle_within
from autoshard.search.problem import Problem
from autoshard.search.recomputing import RECOMPUTE, recomputing
from autoshard.search.registry import search_mode
from autoshard.search.settle import EQUAL, Settled, settle, settle_below
from autoshard.search.strategies import Atoms
from autoshard.search.tables import Tables, needs_detours
from autoshard.search.transfers import Transfers
from autoshard.search.ways import Ways
from autoshard.util.errors import MemoryLimitError, PlanError
from costmodel import Hardware

NAME = "optimal"
OPTIMAL = "optimal"
TIME_LIMIT = "time_limit"
"""The option that bounds the search, in seconds; at its end the best plan so far is returned, with the bound so far."""


@search_mode(NAME, options=(TIME_LIMIT, RECOMPUTE), keeps_limit=True)
def optimal(problem: Problem) -> Plan:
    """The plan of least time; with the option recompute="auto" also among graphs with activations made again.

    Raises:
        PlanError: operators that hold others which no other part has settled, or a bad time limit.
        MemoryLimitError: no plan keeps the limit.
    """
    _time_limit(problem)
    return _optimal(problem) if problem.options.get(RECOMPUTE) is None else recomputing(_optimal, problem)


def _optimal(problem: Problem) -> Plan:
    limit = _time_limit(problem)
    if problem.options.get(MEMORY) is None:
        ways = Ways(problem)
        return _told(plan_of_choice(*search_ways(problem, limit, ways=ways)), ways)
    return _within_memory(problem, limit)


def search_ways(
    problem: Problem,
    time_limit: float,
    told: Callable[[str], None] = lambda what: None,
    ways: Ways | None = None,
) -> tuple[Tables, Settled]:
    """The best choice over the ways to use the mesh (`ways.py`), without a memory limit, and its way's tables.

    The bound is one for all ways that are searched: one whose own bound is above the best plan so far is left there;
    one for which no time was left counts with bound 0.

    Args:
        time_limit: seconds for all ways together; those with fewest strategies come first.
        told: called with "tables" and "solved" whenever one way's tables are made, or searched.
        ways: the problem's, from which to read afterwards which were searched.
    """
    end, ways = time.monotonic() + time_limit, ways or Ways(problem)
    best: tuple[Tables, Settled] | None = None
    bound, searched = math.inf, 0
    for atoms in ways:
        left = end - time.monotonic()
        if best is not None and left <= 0:
            bound = 0.0
            break
        tables = _tables(problem, atoms)
        told("tables")
        left = max(end - time.monotonic(), 0.0) / (ways.total - searched)
        found, proved = settle_below(tables, left, math.inf if best is None else best[1].value)
        told("solved")
        ways.note(proved if found is None else found.value)
        best, bound, searched = best if found is None else (tables, found), min(bound, proved), searched + 1
    assert best is not None
    tables, settled = best
    return tables, replace(settled, bound=min(bound, settled.value), stats=settled.stats | _counted(ways, searched))


def _counted(ways: Ways, searched: int) -> dict[str, float]:
    """How many ways there are with as many parts, how many are looked at, and were."""
    return {"possible ways": float(ways.possible), "ways": float(ways.total), "searched": float(searched)}


def _within_memory(problem: Problem, time_limit: float) -> Plan:
    """The best plan over the ways within the memory limit."""
    ways = Ways(problem)
    plans, refused = [], []
    for atoms in ways:
        try:
            plans.append(_planned(problem, atoms, time_limit / ways.total))
            ways.note(plans[-1].search_stats["seconds"])
        except MemoryLimitError as error:
            refused.append(error)
    if not plans:
        raise min(refused, key=lambda error: error.needed)
    best = min(plans, key=lambda plan: plan.search_stats["seconds"])
    known = {**best.search_stats, **_counted(ways, len(ways.searched))}
    best = _told(replace(best, search_stats=known), ways)
    return _bounded(best, min(plan.search_stats["bound"] for plan in plans))


def _told(plan: Plan, ways: Ways) -> Plan:
    """The plan, which says of which strategies it speaks."""
    return replace(plan, started_from=f"{plan.started_from} on {ways.told}") if ways.told else plan


def _bounded(plan: Plan, bound: float) -> Plan:
    """The plan with a bound for more than its own way."""
    seconds = plan.search_stats["seconds"]
    if bound == plan.search_stats["bound"]:
        return plan
    known = {"bound": bound, "gap": (seconds - bound) / seconds, "proven": float(seconds - bound <= EQUAL * seconds)}
    return replace(plan, search_stats={**plan.search_stats, **known})


def _time_limit(problem: Problem) -> float:
    given = problem.options.get(TIME_LIMIT, 60.0)
    try:
        seconds = float(given)
    except (TypeError, ValueError):
        seconds = math.nan
    if not seconds > 0:
        raise PlanError(f"search mode {NAME}: its option {TIME_LIMIT} is {given!r}; give seconds above 0")
    return seconds


@lru_cache(maxsize=16)
def _transfers(hardware: Hardware, atoms: Atoms, detours: bool) -> Transfers:
    """Redistribution tables that all searches on a mesh share."""
    return Transfers(prices_for(hardware), atoms, detours)


def _tables(problem: Problem, atoms: Atoms) -> Tables:
    transfers = _transfers(problem.hardware, atoms, needs_detours(problem, atoms))
    return Tables(problem, prices_for(problem.hardware), atoms, transfers)


def _planned(problem: Problem, atoms: Atoms, time_limit: float) -> Plan:
    """The best plan in one way that keeps the memory limit."""
    tables, limit, started = _tables(problem, atoms), problem.options[MEMORY], time.monotonic()
    settled = settle(tables, time_limit / 2)
    plan = plan_of_choice(tables, settled)
    if peak_memory(plan) <= limit:
        return plan
    left = time_limit - (time.monotonic() - started)
    return plan_of_choice(tables, settle_within(tables, limit, left, settled.bound))


def plan_of_choice(tables: Tables, settled: Settled) -> Plan:
    """The plan that a choice in the tables stands for."""
    problem, graph, choice = tables.problem, tables.graph, settled.choice
    layouts: dict[Value, Layout] = {value: tables.lies(value, choice) for value in graph.inputs}
    for node in graph.nodes:
        layouts.update(zip(node.results, problem.left(node, tables.strategy(node, choice)), strict=True))
    edges = _Edges(tables, choice)
    fixed = set(problem.input_layouts)
    return Plan(
        graph,
        problem.mesh,
        {node: edges.decision(node) for node in graph.nodes},
        layouts,
        problem.outputs(layouts),
        {value: Cause(GIVEN if value in fixed else OPTIMAL) for value in graph.inputs},
        started_from=f"all strategies of {len(graph.nodes)} operators",
        search=NAME,
        search_stats={
            "seconds": settled.value,
            "bound": settled.bound,
            "gap": (settled.value - settled.bound) / settled.value if settled.value else 0.0,
            "proven": float(settled.proven),
            "restricted": float(tables.atoms.bundled),
            "variables": float(len(tables.variables)),
            "strategies": float(sum(tables.sizes)),
            **{name: float(value) for name, value in settled.stats.items()},
        },
    )


class _Edges:
    """What each operator's options cost while all others stay as chosen."""

    def __init__(self, tables: Tables, choice: Sequence[int]) -> None:
        self.tables, self.choice = tables, choice
        self.around: list[list[int]] = [[] for _ in tables.variables]
        for number, price in enumerate(tables.prices):
            for variable in price.scope:
                self.around[variable].append(number)

    def decision(self, node: Node) -> Decision:
        at = self.tables.position[node]
        edges, work = np.zeros(self.tables.sizes[at]), self.tables.unary[at]
        for number in self.around[at]:
            price = self.tables.prices[number]
            edges += price.shared.along(price.scope.index(at), [self.choice[i] for i in price.scope])
        chosen = self.choice[at]
        ranked = [int(i) for i in np.argsort(edges + work, kind="stable") if i != chosen and np.isfinite(edges[i])]
        options = [
            Option(self.tables.menus[node].strategy(i), float(edges[i]), 0.0, float(work[i]))
            for i in (chosen, *ranked[:ALTERNATIVES])
        ]
        configured = node in self.tables.problem.configured
        return Decision(options[0], Cause(CONFIGURED if configured else OPTIMAL), tuple(options[1:]))
