"""Search mode "optimal": the plan of least time among all strategies on whole mesh axes, with its proof.

The graph becomes tables (`tables.py`), of which `settle.py` finds the least sum; the value is `evaluate_plan(...)`'s
seconds. A plan's `search_stats` have the bound and the gap; it is optimal where "proven" is 1. Where a mesh has so many
axes that an operator would have more than MOST strategies, neighbouring axes are used as one: then "restricted" is 1,
and the proof is among such strategies, without redistributions of a dim between, say, 25 and 8 parts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from autoshard.errors import PlanError
from autoshard.ir.graph import Node, Value
from autoshard.layout.layout import Layout
from autoshard.plan import CONFIGURED, GIVEN, Cause, Decision, Option, Plan
from autoshard.search.choose import ALTERNATIVES
from autoshard.search.evaluate import prices_for
from autoshard.search.limit import MEMORY
from autoshard.search.limited import settle_within
from autoshard.search.memory import peak_memory
from autoshard.search.problem import Problem
from autoshard.search.recomputing import RECOMPUTE, recomputing
from autoshard.search.registry import search_mode
from autoshard.search.settle import Settled, settle
from autoshard.search.strategies import Atoms, atoms_of, count_bound
from autoshard.search.tables import Tables, needs_detours
from autoshard.search.transfers import Transfers
from costmodel import Hardware

NAME = "optimal"
OPTIMAL = "optimal"
TIME_LIMIT = "time_limit"
"""The option that bounds the search, in seconds; at its end the best plan so far is returned, with the bound so far."""
MOST = 1000


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
    ways = list(atoms_for(problem))
    plans = [_planned(problem, atoms, limit / len(ways)) for atoms in ways]
    return min(plans, key=lambda plan: plan.search_stats["seconds"])


def _time_limit(problem: Problem) -> float:
    given = problem.options.get(TIME_LIMIT, 60.0)
    try:
        seconds = float(given)
    except (TypeError, ValueError):
        seconds = math.nan
    if not seconds > 0:
        raise PlanError(f"search mode {NAME}: its option {TIME_LIMIT} is {given!r}; give seconds above 0")
    return seconds


def atoms_for(problem: Problem) -> Iterator[Atoms]:
    """The mesh's axes; or, if they allow too many strategies, all ways to use neighbours among them as one."""
    atoms = atoms_of(problem.mesh, problem.graph)
    if count_bound(problem.graph, atoms) <= MOST:
        yield atoms
        return
    for count in range(len(atoms) - 1, 0, -1):
        bundles = list(atoms.bundles(count))
        if all(count_bound(problem.graph, one) <= MOST for one in bundles):
            yield from bundles
            return


@lru_cache(maxsize=32)
def _transfers(hardware: Hardware, atoms: Atoms, detours: bool) -> Transfers:
    """Redistribution tables that all searches on a mesh share."""
    return Transfers(prices_for(hardware), atoms, detours)


def _planned(problem: Problem, atoms: Atoms, time_limit: float) -> Plan:
    transfers = _transfers(problem.hardware, atoms, needs_detours(problem, atoms))
    tables = Tables(problem, prices_for(problem.hardware), atoms, transfers)
    limit, started = problem.options.get(MEMORY), time.monotonic()
    settled = settle(tables, time_limit if limit is None else time_limit / 2)
    plan = plan_of_choice(tables, settled)
    if limit is None or peak_memory(plan) <= limit:
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
