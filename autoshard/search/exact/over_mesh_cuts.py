"""The exact search over the ways to use a mesh: tables (`tables.py`), their least sum (`settle.py`), and its plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from autoshard.cost.prices import prices_for
from autoshard.ir.graph import Node, Value
from autoshard.layout.layout import Layout
from autoshard.plan.plan import CONFIGURED, GIVEN, Cause, Decision, Option, Plan
from autoshard.search.domains import Atoms
from autoshard.search.exact.search import Settled, settle_below
from autoshard.search.factor_graph import Candidates, Tables
from autoshard.search.greedy.choose import ALTERNATIVES
from autoshard.search.mesh_cuts import Ways
from autoshard.search.problem import Problem
from autoshard.search.redistribution_tables import ALL, NONE, PARTS, Detours, Transfers
from autoshard.util.clock import now
from autoshard.util.errors import PlanError
from costmodel import Hardware

OPTIMAL = "optimal"
"""The mode that these plans are of, and the cause of what it decides."""
SMALL_NODES, SMALL_CHOICES, SMALL_SECONDS = 2_500, 80_000, 20.0
"""Problems with so many operators and strategies are small: a least sum takes some seconds (`benchmarks/search.py`)."""
SMALL_MESH = 64
"""Devices up to which searches that are short in one way look at meshes that are used in several ways, too."""
GOOD = 0.01
"""How far, relatively, the sum of a plan to begin with may be from the least; and by how much less than those that are
known it has to cost."""


def search_ways(
    problem: Problem,
    time_limit: float,
    told: Callable[[str], None] = lambda what: None,
    ways: Ways | None = None,
    gap: float = 0.0,
    detours: Detours = ALL,
) -> tuple[Tables, Settled]:
    """The best choice over the ways to use the mesh (`ways.py`), without a memory limit, and its way's tables.

    The bound is one for all ways that are searched: one whose own bound is above the best plan so far is left there;
    one for which no time was left counts with bound 0.

    Args:
        time_limit: seconds for all ways together; those with fewest strategies come first.
        told: called with "tables" and "solved" whenever one way's tables are made, or searched.
        ways: the problem's, from which to read afterwards which were searched.
        gap: how far, relatively, the sum may be from the least (`settle_below`).
        detours: which redistributions take another way round where that costs less (`transfers.py`).
    """
    end, ways = now() + time_limit, ways or Ways(problem)
    best: tuple[Tables, Settled] | None = None
    bound, searched = math.inf, 0
    for atoms in ways:
        left = end - now()
        if best is not None and left <= 0:
            bound = 0.0
            break
        tables = tables_of(problem, atoms, detours=detours)
        told("tables")
        left = max(end - now(), 0.0) / (ways.total - searched)
        found, proved = settle_below(tables, left, math.inf if best is None else best[1].value, gap)
        told("solved")
        ways.note(proved if found is None else found.value)
        best, bound, searched = best if found is None else (tables, found), min(bound, proved), searched + 1
    assert best is not None
    tables, settled = best
    return tables, replace(settled, bound=min(bound, settled.value), stats=settled.stats | counted(ways, searched))


def counted(ways: Ways, searched: int) -> dict[str, float]:
    """How many ways there are with as many parts, how many are looked at, and were."""
    return {"possible ways": float(ways.possible), "ways": float(ways.total), "searched": float(searched)}


def small_optimum(problem: Problem, known: float = math.inf) -> Plan:
    """A plan of the least sum or near it (`GOOD`), for problems that are so small that it is found at once.

    Of a mesh that is used in several ways, the best of these; thrifty problems do without.

    Args:
        known: seconds of the best plan that is known (as `plan_seconds`): of a mesh that is used in one way, others are
            looked for until it is proven that none costs less by GOOD.

    Raises:
        PlanError: the problem is larger, or no plan is found that costs less.
    """
    if len(problem.graph.nodes) > SMALL_NODES:
        raise PlanError(f"{problem.graph.name!r} has more than {SMALL_NODES} operators")
    ways = Ways(problem)
    if not ways.is_whole:
        if not several_ways(problem):
            raise PlanError(f"mesh {problem.mesh} has several ways to be used")
        return plan_of_choice(*search_ways(problem, SMALL_SECONDS, ways=ways, gap=GOOD, detours=PARTS))
    tables = tables_of(problem, ways.atoms, detours=PARTS)
    if sum(tables.sizes) > SMALL_CHOICES:
        raise PlanError(f"{problem.graph.name!r} has more than {SMALL_CHOICES} strategies")
    found, _ = settle_below(tables, SMALL_SECONDS, known, gap=GOOD)
    if found is None:
        raise PlanError(f"no plan of {problem.graph.name!r} is found that costs less than {known} s by {GOOD:.0%}")
    return plan_of_choice(tables, found)


def several_ways(problem: Problem) -> bool:
    """Whether there is time to search all ways to use the problem's mesh, if there are several."""
    return problem.mesh.devices <= SMALL_MESH and not problem.thrifty


@lru_cache(maxsize=16)
def _transfers(hardware: Hardware, atoms: Atoms) -> Transfers:
    """Redistribution tables that all searches on a mesh share."""
    return Transfers(prices_for(hardware), atoms)


def tables_of(problem: Problem, atoms: Atoms, candidates: Candidates | None = None, detours: Detours = ALL) -> Tables:
    """The tables of a problem on these pieces of its mesh, with all strategies unless `candidates` chooses some.

    Of a small mesh, or one that is used in one way alone, they are made once, whichever search asks. Where people
    fixed something all are possible; where axes are bundled, so that not all is searched anyway, none.
    """
    fixed = problem.configured or problem.given or problem.asked or any(problem.asked_outputs)
    detours = ALL if fixed else NONE if atoms.bundled else detours
    key = Tables, atoms, detours
    if key in problem.remembered and candidates is None:
        return problem.remembered[key]
    transfers = _transfers(problem.hardware, atoms)
    tables = Tables(problem, prices_for(problem.hardware), atoms, transfers, candidates, detours)
    if candidates is None and (not atoms.bundled or problem.mesh.devices <= SMALL_MESH):
        problem.remembered[key] = tables
    return tables


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
        search=OPTIMAL,
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
