"""Recomputation as a choice: activations that are made again for the backward pass where memory is short.

`recomputing(mode, problem)` plans within the problem's memory limit as the mode does; where that is impossible, or
takes longer than without a limit, it also plans graphs in which some values are made again (Chen et al. 2016, "Training
Deep Nets with Sublinear Memory Cost"). Which ones is chosen by the time that a byte less costs: as many as the fastest
plan needs to fit. The fastest plan that keeps the limit is taken, with or without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from autoshard.cost.blocks import local_nbytes
from autoshard.cost.evaluate import plan_seconds
from autoshard.cost.memory import peak_memory
from autoshard.ir.graph import Graph, Node, Value
from autoshard.plan.plan import Plan
from autoshard.search.flat import Search
from autoshard.search.memory_limit import keeps_limit
from autoshard.search.problem import Problem
from autoshard.transform.recompute import backward_begins, kept, recomputed
from autoshard.util.errors import MemoryLimitError, PlanError
from costmodel import format_bytes

RECOMPUTE = "recompute"
"""The option that asks for it."""
AUTO = "auto"
WORTH = 1e-3
"""A plan that takes longer by less, relatively, than the fastest without a limit is not improved on."""
SHOWN = 4


def recomputing(mode: Search, problem: Problem) -> Plan:
    """The fastest plan that the mode finds within the memory limit, with some activations made again or none.

    Raises:
        PlanError: another value of the option.
        MemoryLimitError: no plan keeps the limit, even if everything that can be is made again.
    """
    check(problem)
    limit, refused, best = problem.limit, None, None
    free = mode(problem.within(None))
    if limit is None or keeps_limit(problem, free):
        return free
    try:
        best = mode(problem)
    except MemoryLimitError as error:
        refused = error
    chances = _ranked(problem, free)
    if not chances or best is not None and _seconds(problem, best) <= (1 + WORTH) * _seconds(problem, free):
        return _or(best, refused)
    found = [] if best is None else [best]
    for nodes in _enough(free, chances, limit):
        found += _planned(mode, problem, free, nodes, limit)
    return min(found, key=lambda plan: _seconds(problem, plan)) if found else _or(None, refused)


def check(problem: Problem) -> None:
    """PlanError if the option has a value that means nothing, or the graph is none that it can be used for."""
    given = problem.options.get(RECOMPUTE)
    if given != AUTO:
        raise PlanError(f"search option {RECOMPUTE} is {given!r}; it can be {AUTO!r}")
    if backward_begins(problem.graph) == len(problem.graph.nodes):
        raise PlanError(
            f"search option {RECOMPUTE}: {problem.graph.name!r} has no backward pass for which anything could be made "
            "again; leave the option out"
        )


def _or(best: Plan | None, refused: MemoryLimitError | None) -> Plan:
    if best is None:
        assert refused is not None, "a mode returns a plan or says why not"
        raise refused
    return best


def _seconds(problem: Problem, plan: Plan) -> float:
    return plan_seconds(plan, problem.prices)


# -- which ones


def _ranked(problem: Problem, plan: Plan) -> list[Node]:
    """Nodes that can be made again, those first that cost least time for a byte that need not be kept."""
    graph, prices = plan.graph, problem.prices
    stays = {*graph.inputs, *(value for node in kept(graph) for value in node.results)}
    found = []
    for place, node in enumerate(kept(graph)):
        if node.regions or node.op.has_effects(node.attrs) or not node.operands:
            continue
        saved = _nbytes(plan, node.results) - _nbytes(plan, [one for one in node.operands if one not in stays])
        if saved > 0:
            found.append((prices.work(node, plan.strategy(node)) / saved, place, node))
    return [node for *_, node in sorted(found, key=lambda one: one[:2])]


def _nbytes(plan: Plan, values: Sequence[Value]) -> int:
    return sum(local_nbytes(value.type, plan.layouts[value]) for value in dict.fromkeys(values))


def _enough(free: Plan, chances: Sequence[Node], limit: int) -> list[Sequence[Node]]:
    """The fewest of the first with which the fastest plan keeps the limit, and all of them; or only these."""

    def fits(count: int) -> bool:
        return peak_memory(carried(free, *recomputed(free.graph, chances[:count]))) <= limit

    low, high = 0, len(chances)
    if not fits(high):
        return [chances]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return [chances[:high]] if high == len(chances) else [chances[:high], chances]


# -- plans


def carried(plan: Plan, graph: Graph, origin: Mapping[Node, Node]) -> Plan:
    """The plan on a graph with nodes made again, which run as those that they repeat."""
    layouts = {value: plan.layouts[value] for value in graph.inputs}
    for node in graph.nodes:
        made = zip(node.results, origin[node].results, strict=True)
        layouts.update((value, plan.layouts[before]) for value, before in made)
    decisions = {node: plan.decisions[origin[node]] for node in graph.nodes}
    return replace(plan, graph=graph, decisions=decisions, layouts=layouts)


def _planned(mode: Search, problem: Problem, free: Plan, nodes: Sequence[Node], limit: int) -> list[Plan]:
    """Plans within the limit that make these nodes again: as the fastest one does all else, and what the mode finds."""
    graph, origin = recomputed(problem.graph, nodes)
    plans = [carried(free, graph, origin)]
    with suppress(PlanError):  # nothing, or nothing in time: others are known, or what was refused before is told
        plans.append(mode(_on(problem, graph, origin)))
    saved = format_bytes(_nbytes(free, [value for node in nodes for value in node.results]))
    names = ", ".join(node.label for node in nodes[:SHOWN]) + (f" and {len(nodes) - SHOWN} more" * (len(nodes) > SHOWN))
    told = f"made again for the backward pass instead of being kept ({saved}): {names}"
    return [
        replace(
            plan,
            started_from=f"{plan.started_from}; {told}",
            search_stats=_stats(plan, _seconds(problem, plan), len(nodes)),
        )
        for plan in plans
        if keeps_limit(problem, plan)
    ]


def _stats(plan: Plan, seconds: float, count: int) -> dict[str, float]:
    """What is known of the plan itself: bounds are for one graph only, not for all that could be made again."""
    stats = {name: value for name, value in plan.search_stats.items() if name not in ("proven", "gap", "bound")}
    return {**stats, "seconds": seconds, "made again": float(count)}


def _on(problem: Problem, graph: Graph, origin: Mapping[Node, Node]) -> Problem:
    """The same problem on a graph with nodes made again; what people said of a node holds for both of it."""

    def both(of: Mapping[Node, object]) -> dict:
        return {node: of[before] for node, before in origin.items() if before in of}

    said = {"annotations": both(problem.annotations), "fixed": both(problem.fixed), "runs": both(problem.runs)}
    return replace(problem, graph=graph, **said)
