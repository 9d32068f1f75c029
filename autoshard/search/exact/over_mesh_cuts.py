"""Solves a problem over the cuts of its mesh: a factor graph for each, its least sum, and the plan of the best."""

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
from autoshard.search.domains import MeshUnits
from autoshard.search.exact.search import SWEEPS, ExactSearch, Solution
from autoshard.search.factor_graph import Candidates, FactorGraph
from autoshard.search.greedy.choose import ALTERNATIVES
from autoshard.search.mesh_cuts import MeshCuts
from autoshard.search.problem import Problem
from autoshard.search.redistribution_tables import ALL, NONE, PARTS, Detours, RedistributionTables
from autoshard.util.clock import now
from autoshard.util.errors import PlanError
from costmodel import Hardware

OPTIMAL = "optimal"
"""The mode that these plans are of, and the cause of what it decides."""
SMALL_NODES, SMALL_CHOICES, SMALL_SECONDS = 4_000, 80_000, 20.0
"""Problems with so many operators and strategies are small: a least sum takes some seconds (`benchmarks/search.py`)."""
SHARED_UNITS = 3
"""Of a mesh in up to so many parts tables are kept for all searches of a problem: they are small."""
SMALL_MESH = 64
"""Devices up to which searches that are short in one way look at meshes that are used in several ways, too."""
GOOD = 0.01
"""How far, relatively, the sum of a plan to begin with may be from the least; and by how much less than those that are
known it has to cost."""
FEW_SWEEPS = 3
"""Sweeps over equal layers for a first bound of ways that are many."""
PROMISING = 2
"""Of several ways to use a mesh so many are searched for a good plan, those of the least bounds at first."""


def solve_over_mesh_cuts(
    problem: Problem,
    time_limit: float,
    on_progress: Callable[[str], None] = lambda what: None,
    mesh_cuts: MeshCuts | None = None,
) -> tuple[FactorGraph, Solution]:
    """The best choice over the ways to use the mesh (`mesh_cuts.py`), without a memory limit, and its way's tables.

    The bound is one for all ways that are searched: one whose own bound is above the best plan so far is left there;
    one for which no time was left counts with bound 0.

    Args:
        time_limit: seconds for all ways together; those with fewest strategies come first.
        on_progress: called with "tables" and "solved" whenever one way's tables are made, or searched.
        ways: the problem's, from which to read afterwards which were searched.
    """
    end, mesh_cuts = now() + time_limit, mesh_cuts or MeshCuts(problem)
    best: tuple[FactorGraph, Solution] | None = None
    bound, searched = math.inf, 0
    for units in mesh_cuts:
        left = end - now()
        if best is not None and left <= 0:
            bound = 0.0
            break
        factor_graph = factor_graph_of(problem, units)
        on_progress("tables")
        left = max(end - now(), 0.0) / (mesh_cuts.total - searched)
        found, proved = ExactSearch(factor_graph, now() + left).run(math.inf if best is None else best[1].value)
        on_progress("solved")
        mesh_cuts.note(proved if found is None else found.value)
        best, bound, searched = best if found is None else (factor_graph, found), min(bound, proved), searched + 1
    assert best is not None
    factor_graph, solution = best
    return factor_graph, replace(
        solution, bound=min(bound, solution.value), stats=solution.stats | counted(mesh_cuts, searched)
    )


def counted(mesh_cuts: MeshCuts, searched: int) -> dict[str, float]:
    """How many ways there are with as many parts, how many are looked at, and were."""
    return {"possible ways": float(mesh_cuts.possible), "ways": float(mesh_cuts.total), "searched": float(searched)}


class TooLargeError(PlanError):
    """The problem has more operators or strategies than a short search looks at."""


def small_optimum(problem: Problem, known: float = math.inf) -> Plan | None:
    """A plan of the least sum or near it (`GOOD`), for problems that are so small that it is found at once; None where
    none is found that costs less than what is known.

    The mesh is used in few parts (`MeshCuts`, short). Of several ways to do so the best of those that a first bound
    promises most of.

    Args:
        known: seconds of the best plan that is known (as `plan_seconds`): of a mesh that is used in one way, others are
            looked for until it is proven that none costs less by GOOD.

    Raises:
        TooLargeError: the problem is larger.
    """
    best: Plan | None = None
    searches = promising(problem)
    known = math.inf if any(search.whole.units.bundled for search in searches) else known
    for search in searches:
        best = near_optimum(search, known) or best
        known = min(known, search.value)
    return best


def near_optimum(search: ExactSearch, known: float = math.inf) -> Plan | None:
    """The plan that one of the searches of `promising` finds; None if it finds none that costs less than is known."""
    solution, _ = search.run(known)
    return None if solution is None else plan_of_assignment(search.whole, solution)


def promising(problem: Problem, most: float = math.inf) -> list[ExactSearch]:
    """Searches for the least sum of a small problem, on the cuts of its mesh of which a first bound promises most.

    Args:
        most: seconds above which a sum is of no use; cuts with such a bound are left out.

    Raises:
        TooLargeError: the problem is larger.
    """
    if len(problem.graph.nodes) > SMALL_NODES:
        raise TooLargeError(f"{problem.graph.name!r} has more than {SMALL_NODES} operators")
    mesh_cuts, end = MeshCuts(problem, short=True), now() + SMALL_SECONDS
    sweeps = SWEEPS if is_short(problem) else FEW_SWEEPS
    found: list[tuple[float, ExactSearch]] = []
    for units in mesh_cuts:
        factor_graph = factor_graph_of(problem, units, detours=PARTS)
        if sum(factor_graph.sizes) > SMALL_CHOICES:
            raise TooLargeError(f"{problem.graph.name!r} has more than {SMALL_CHOICES} strategies")
        search = ExactSearch(factor_graph, end, GOOD)
        # Of two parts one that is above the best is left out, and all beyond it: how far above does not matter.
        best = min((bound for bound, _ in found), default=math.inf) if mesh_cuts.parts == 2 else math.inf
        bound = 0.0 if mesh_cuts.total == 1 else search.glance(sweeps, max(best, most))
        mesh_cuts.note(bound)
        found.append((bound, search))
    found = sorted(found, key=lambda one: one[0])[:PROMISING]
    return [search for bound, search in found if bound <= most]


def is_short(problem: Problem) -> bool:
    """Whether short searches have time for the problem's mesh before others: to use it whole, or in all ways that they
    know."""
    return affords_all_cuts(problem) or MeshCuts(problem).is_whole


def affords_all_cuts(problem: Problem) -> bool:
    """Whether there is time to search all ways to use the problem's mesh, if there are several."""
    return problem.mesh.devices <= SMALL_MESH and not problem.thrifty


@lru_cache(maxsize=16)
def _transfers(hardware: Hardware, units: MeshUnits) -> RedistributionTables:
    """Redistribution tables that all searches on a mesh share."""
    return RedistributionTables(prices_for(hardware), units)


def factor_graph_of(
    problem: Problem, units: MeshUnits, candidates: Candidates | None = None, detours: Detours = ALL
) -> FactorGraph:
    """The tables of a problem on these pieces of its mesh, with all strategies unless `candidates` chooses some.

    Of a mesh that is used whole or in few parts they are made once, whichever search asks. Where people fixed something
    all detours are possible; where axes are bundled, so that not all is searched anyway, none.
    """
    fixed = problem.configured or problem.given or problem.asked or any(problem.asked_outputs)
    detours = ALL if fixed else NONE if units.bundled else detours
    key = FactorGraph, units, detours
    if key in problem.remembered and candidates is None:
        return problem.remembered[key]
    transfers = _transfers(problem.hardware, units)
    factor_graph = FactorGraph(problem, problem.prices, units, transfers, candidates, detours)
    if candidates is None and (not units.bundled or len(units) <= SHARED_UNITS):
        problem.remembered[key] = factor_graph
    return factor_graph


def plan_of_assignment(factor_graph: FactorGraph, solution: Solution) -> Plan:
    """The plan that a choice in the tables stands for."""
    problem, graph, choice = factor_graph.problem, factor_graph.graph, solution.choice
    layouts: dict[Value, Layout] = {value: factor_graph.lies(value, choice) for value in graph.inputs}
    for node in graph.nodes:
        layouts.update(zip(node.results, problem.left(node, factor_graph.strategy(node, choice)), strict=True))
    edges = _Edges(factor_graph, choice)
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
            "seconds": solution.value,
            "bound": solution.bound,
            "gap": (solution.value - solution.bound) / solution.value if solution.value else 0.0,
            "proven": float(solution.proven),
            "restricted": float(factor_graph.units.bundled),
            "variables": float(len(factor_graph.variables)),
            "strategies": float(sum(factor_graph.sizes)),
            **{name: float(value) for name, value in solution.stats.items()},
        },
    )


class _Edges:
    """What each operator's options cost while all others stay as chosen."""

    def __init__(self, factor_graph: FactorGraph, choice: Sequence[int]) -> None:
        self.factor_graph, self.choice = factor_graph, choice
        self.around: list[list[int]] = [[] for _ in factor_graph.variables]
        for number, factor in enumerate(factor_graph.factors):
            for variable in factor.scope:
                self.around[variable].append(number)

    def decision(self, node: Node) -> Decision:
        at = self.factor_graph.position[node]
        edges, work = np.zeros(self.factor_graph.sizes[at]), self.factor_graph.unary[at]
        for number in self.around[at]:
            factor = self.factor_graph.factors[number]
            edges += factor.multi_layout.along(factor.scope.index(at), [self.choice[i] for i in factor.scope])
        chosen = self.choice[at]
        ranked = [int(i) for i in np.argsort(edges + work, kind="stable") if i != chosen and np.isfinite(edges[i])]
        options = [
            Option(self.factor_graph.menus[node].strategy(i), float(edges[i]), 0.0, float(work[i]))
            for i in (chosen, *ranked[:ALTERNATIVES])
        ]
        configured = node in self.factor_graph.problem.configured
        return Decision(options[0], Cause(CONFIGURED if configured else OPTIMAL), tuple(options[1:]))
