"""The price of a plan: that of the program which ranks run, passes included. It is the one that is told to people.

`program_of(plan, hardware, passes)` makes that program; `price_of(problem, plan)` prices it; `cheapest(problem, plans)`
is what modes end with: searches go by `plan_seconds`, which lowers nothing, and the best few are priced as programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from autoshard.cost.evaluate import operator_seconds, program_seconds, redistribution_seconds, sending_seconds
from autoshard.cost.prices import Prices
from autoshard.ir.graph import Node
from autoshard.optimize import Saving, optimize, optimize_freely
from autoshard.optimize.pipeline import BUCKET
from autoshard.partition.lower import lower
from autoshard.partition.program import Program
from autoshard.plan.plan import CONFIGURED, Plan
from autoshard.search.problem import Problem
from autoshard.search.ring_attention import with_rings
from autoshard.transform.recompute import saves_memory
from autoshard.util.doing import so_far
from costmodel import Hardware

Made = tuple[Program, tuple[Saving, ...]]
_MADE: WeakKeyDictionary[Plan, dict[tuple, Made]] = WeakKeyDictionary()
"""Programs of plans, as long as somebody holds the plan: who searches, prices and then runs lowers once. Under () it is
the program before all passes."""


def program_of(plan: Plan, hardware: Hardware, passes: Sequence[str], limit: int | None = None) -> Made:
    """The program of a plan after the passes, and what each of them saved; without large common buffers where the step
    is to take little memory.

    Args:
        hardware: whose times the passes go by, made for the plan's number of ranks.
        passes: names of `autoshard.optimize.PASSES`, in the order in which they run.
        limit: bytes of memory that a device has.
    """
    made, key = _MADE.setdefault(plan, {}), (hardware, tuple(passes), limit)
    if key not in made:
        bucket = 0 if saves_memory(plan.graph) else BUCKET
        made[key] = optimize(lowered(plan), hardware, passes, bucket=bucket, limit=limit, fixed=_asked(plan))
    return made[key]


def lowered(plan: Plan) -> Program:
    """The program of a plan before all passes."""
    known = _MADE.setdefault(plan, {})
    if () not in known:
        known[()] = lower(plan), ()
    return known[()][0]


def _asked(plan: Plan) -> set[Node]:
    return {node for node, decision in plan.decisions.items() if decision.cause.kind == CONFIGURED}


def price_of(problem: Problem, plan: Plan) -> float:
    """Seconds of a step of the program that the plan leads to."""
    return program_seconds(limited_program(problem, plan), problem.hardware)


def limited_program(problem: Problem, plan: Plan) -> Program:
    """The program that the plan leads to, within the problem's limit of memory as far as passes keep to it."""
    return program_of(plan, problem.hardware, problem.passes, problem.limit)[0]


def _unlimited_price(problem: Problem, plan: Plan) -> float:
    """The same where passes may take all memory that they like: which of their places fit takes longest to find."""
    program = optimize_freely(lowered(plan), problem.hardware, problem.passes, fixed=_asked(plan))
    return program_seconds(program, problem.hardware)


def retold(plan: Plan, **words: Any) -> Plan:
    """The plan with other words of itself (`search`, `started_from` and the like); what is known of its program stays
    known."""
    told = replace(plan, **words)
    _MADE[told] = _MADE.setdefault(plan, {})
    return told


def cheapest(
    problem: Problem,
    plans: Iterable[Plan],
    by: float = 0.0,
    keeps: Callable[[Plan], bool] | None = None,
) -> Plan:
    """The plan whose program takes least time; of equal ones the first.

    The first is priced, and of the others those whose program could take less (`by_sum`); of plans that lead to the
    same program one. Attentions run as rings where that pays (`ring_attention.py`).

    Args:
        by: how much less, relatively, another has to cost to be taken instead of the first.
        keeps: whether one of the others may be taken at all; asked of those alone that could cost less.
    """
    first, *others = plans
    first = with_rings(first, problem.hardware)
    best, least = first, price_of(problem, first) * (1 - by)
    so_far(best=price_of(problem, best))
    known = {_what(first)}
    for _, bound, i in sorted((*by_sum(plan, problem.prices), i) for i, plan in enumerate(others)):
        if bound >= least:
            continue
        plan = with_rings(others[i], problem.hardware)
        what = _what(plan)
        if what in known:
            continue
        known.add(what)
        if _unlimited_price(problem, plan) >= least or (keeps is not None and not keeps(plan)):
            continue
        price = price_of(problem, plan)
        if price < least * (1 - EQUAL):
            best, least = plan, price
            so_far(best=price)
    return best


def by_sum(plan: Plan, prices: Prices) -> tuple[float, float]:
    """A plan's seconds by the sum, and what its program takes at least by it."""
    operators = operator_seconds(plan, prices)
    least = operators + (1 - MOST_SAVED) * sending_seconds(plan, prices)
    return operators + redistribution_seconds(plan, prices), least


MOST_SAVED = 0.6
"""The share of what redistributions send that passes save at most, beside all latency: copies that begin at nearer
ones, sums of which each rank keeps a part. 0.54 is the most seen (GPT-2 on 64 of a100 in mode "bfs")."""


def _what(plan: Plan) -> tuple:
    """What a plan's program follows from."""
    nodes = tuple((one.strategy, one.cause.kind == CONFIGURED) for one in plan.decisions.values())
    return plan.graph, tuple(plan.decisions), nodes, tuple(plan.layouts.items()), plan.outputs


EQUAL = 1e-9
"""Prices that differ by less, relatively, are the same."""
