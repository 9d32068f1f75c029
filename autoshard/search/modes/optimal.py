"""Search mode "optimal": the plan of least time among all strategies on whole mesh axes, with its proof.

The graph becomes a factor graph (`factor_graph.py`), of which `exact/` finds the least sum (`over_mesh_cuts.py`). The
sum is a bound below the seconds of every plan's program: works and redistributions as programs have them, collectives
that programs do together without the latency that they share (`partition/bundling.py`). The plan of the least sum, or a
rival's (the default mode, dynamic programming) if its program takes less time, is the answer: "seconds" is the price of
its program, "bound" the least sum, "gap" what is between them, and "proven" is 1 where that is nothing. Copies that
begin at nearer copies, and redistributions that are moved past operators, can bring the program of a plan below its
sum; where they do so for the answer, its price is given as the bound, and nothing is proven.

Where a mesh has so many axes that an operator would have more than `mesh_cuts.MOST` strategies, neighbouring axes are
used as one: then "restricted" is 1, and the proof is among the strategies of the "searched" ways to do so, which
`started_from` names, without redistributions of a dim between, say, 25 and 8 parts, or from terms of a sum along one
axis to terms along another.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace

from autoshard.plan.plan import Plan
from autoshard.search.domains import MeshUnits
from autoshard.search.exact.memory.within_limit import solve_within_limit
from autoshard.search.exact.over_mesh_cuts import (
    OPTIMAL,
    counted,
    factor_graph_of,
    plan_of_assignment,
    solve_over_mesh_cuts,
)
from autoshard.search.exact.search import EQUAL, solve
from autoshard.search.memory_limit import keeps_limit
from autoshard.search.mesh_cuts import MeshCuts
from autoshard.search.problem import Problem
from autoshard.search.program_price import cheapest, price_of, retold
from autoshard.search.recompute import RECOMPUTE, recomputing
from autoshard.search.registry import find_mode, plan_flat, search_mode
from autoshard.util.clock import now
from autoshard.util.doing import so_far
from autoshard.util.errors import MemoryLimitError, PlanError

NAME = OPTIMAL
RIVALS = ("sharding_propagation", "dynamic_programming")
"""Modes whose plans are taken where their programs cost less than that of the least sum."""
TIME_LIMIT = "time_limit"
"""The option that bounds the search, in seconds of processor time; at its end the best plan so far is returned, with
the bound so far."""


@search_mode(NAME, regions=True, options=(TIME_LIMIT, RECOMPUTE), keeps_limit=True)
def optimal(problem: Problem) -> Plan:
    """The plan of least time; with the option recompute="auto" also among graphs with activations made again.

    The plan of the default mode, or of dynamic programming, is taken where its program costs less than that of the plan
    with the least sum.

    Raises:
        PlanError: operators that hold others which no other part has settled, or a bad time limit.
        MemoryLimitError: no plan keeps the limit.
    """
    _time_limit(problem)
    try:
        found = plan_flat(_settled, problem)
    except MemoryLimitError as refused:
        # The default mode also uses parts of axes, which may take less memory.
        rivals = _rivals(problem)
        if not rivals:
            raise
        return _unproven(problem, cheapest(problem, rivals), str(refused))
    return _priced(problem, found)


def _settled(problem: Problem) -> Plan:
    return _optimal(problem) if problem.options.get(RECOMPUTE) is None else recomputing(_optimal, problem)


def _priced(problem: Problem, found: Plan) -> Plan:
    """The plan, or the default mode's if its program costs less, with what is known of the program's price."""
    best, stats = cheapest(problem, (found, *_rivals(problem))), found.search_stats
    seconds = price_of(problem, best)
    if problem.limit is not None and seconds < stats.get("bound", 0.0) * (1 - EQUAL):
        return _unproven(problem, best, "its program needs less memory than the bound knows of")
    known = {**stats, "sum": stats["seconds"], "seconds": seconds}
    if "bound" in stats:
        bound = min(stats["bound"], seconds)
        gap = (seconds - bound) / seconds if seconds else 0.0
        known |= {"bound": bound, "gap": gap, "proven": float(abs(seconds - stats["bound"]) <= EQUAL * seconds)}
    so_far(seconds, known.get("bound"))
    started = found.started_from if best.search == NAME else f"{found.started_from}; {best.started_from}"
    return retold(best, search=NAME, started_from=started, search_stats=known)


def _unproven(problem: Problem, plan: Plan, why: str) -> Plan:
    """The plan with the statement that nothing is proven of it, and why."""
    stats = {"seconds": price_of(problem, plan), "bound": 0.0, "gap": 1.0, "proven": 0.0}
    return retold(plan, search=NAME, started_from=f"{plan.started_from}; {why}", search_stats=stats)


def _rivals(problem: Problem) -> tuple[Plan, ...]:
    """Plans of the default mode, and of dynamic programming where there is no limit of memory, which it keeps none of;
    those that they find within the limit."""
    alone = replace(problem, options={}).within(problem.limit)
    found = []
    for name in RIVALS[: None if problem.limit is None else 1]:
        with suppress(PlanError):
            plan = find_mode(name)(alone)
            if keeps_limit(problem, plan):
                found.append(plan)
    return tuple(found)


def _optimal(problem: Problem) -> Plan:
    limit = _time_limit(problem)
    if problem.limit is None:
        mesh_cuts = MeshCuts(problem)
        return _described(plan_of_assignment(*solve_over_mesh_cuts(problem, limit, mesh_cuts=mesh_cuts)), mesh_cuts)
    return _within_memory(problem, limit)


def _within_memory(problem: Problem, time_limit: float) -> Plan:
    """The best plan over the ways within the memory limit."""
    mesh_cuts = MeshCuts(problem)
    plans, refused = [], []
    for units in mesh_cuts:
        try:
            plans.append(_planned(problem, units, time_limit / mesh_cuts.total))
            mesh_cuts.note(plans[-1].search_stats["seconds"])
        except MemoryLimitError as error:
            refused.append(error)
    if not plans:
        raise min(refused, key=lambda error: error.needed)
    best = min(plans, key=lambda plan: plan.search_stats["seconds"])
    known = {**best.search_stats, **counted(mesh_cuts, len(mesh_cuts.searched))}
    best = _described(replace(best, search_stats=known), mesh_cuts)
    return _bounded(best, min(plan.search_stats["bound"] for plan in plans))


def _described(plan: Plan, mesh_cuts: MeshCuts) -> Plan:
    """The plan, which says of which strategies it speaks."""
    return (
        replace(plan, started_from=f"{plan.started_from} on {mesh_cuts.description}") if mesh_cuts.description else plan
    )


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


def _planned(problem: Problem, units: MeshUnits, time_limit: float) -> Plan:
    """The best plan in one way that keeps the memory limit."""
    factor_graph, started = factor_graph_of(problem, units), now()
    solution = solve(factor_graph, time_limit / 2)
    plan = plan_of_assignment(factor_graph, solution)
    if problem.limit is None or keeps_limit(problem, plan):
        return plan
    left = time_limit - (now() - started)
    return plan_of_assignment(factor_graph, solve_within_limit(factor_graph, problem.limit, left, solution.bound))
