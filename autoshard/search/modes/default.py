"""The default mode "sharding_propagation": rules settle what follows without communication, prices decide the rest.

1. Rules: user priority > operator priority > aggressive > basic propagation spread what people configured and asked
   (mode "factor"). An operator is settled where its strategy follows from that without communication and leaves no part
   of the mesh idle that it could use.
2. Prices: where rules disagree or are silent, breadth-first propagation from all that is settled decides (mode "bfs"
   with the settled strategies fixed).
3. The plans of rules alone, of breadth-first propagation alone, of batch parallelism and of both steps together are
   assignments; the two cheapest are improved locally: single operators, chains (`icm.py`), all around a value at once
   (`joint_moves.py`). What rules settled is kept, unless that would cost more than CERTAINTY of a step, or more than
   "factor" or "bfs" alone: then prices decide it, too.
4. On small graphs the plan of the least sum, with the mesh in few parts, is another assignment (`over_mesh_cuts.py`);
   on large meshes those of several cuts are other plans to compare with.
   In the end the result is held against the plans of other modes and those known by name, and the one whose program
   takes least time is taken (`program_price.py`, of all that could take less by their sums). So it costs no more than
   "factor" and "bfs", nor, where nobody configured operators, than named plans. "dynamic_programming" is asked where no
   least sum is looked for.
5. Memory: a plan that needs more than a device has is improved once more with prices of bytes (`memory_multiplier.py`).

Of a deep model few layers go through all this (`few_layers.py`). Their best plan, and those of the others that are
near, are compared as programs of all layers; where the best needs more memory than there is, the few are searched again
under limits of their own, and if none of their plans fits as one of all layers, all are searched. What "bfs" and named
plans come to is what they are for the few, then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from autoshard.cost.evaluate import plan_seconds
from autoshard.cost.memory import peak_memory
from autoshard.ir.graph import Node
from autoshard.plan.plan import Decision, Plan
from autoshard.search.exact.over_mesh_cuts import (
    TooLargeError,
    is_short,
    near_optimum,
    promising,
)
from autoshard.search.exact.search import ExactSearch
from autoshard.search.few_layers import FewLayers
from autoshard.search.greedy.bfs import propagations
from autoshard.search.memory_limit import keeps_limit
from autoshard.search.modes.combination import CERTAINTY, HOPE, NAME, NEAR, RULES, Combination
from autoshard.search.modes.dynamic_programming import dynamic_programming
from autoshard.search.modes.factor import factor
from autoshard.search.named import named_plans
from autoshard.search.problem import Problem
from autoshard.search.program_price import by_sum, cheapest, price_of, retold
from autoshard.search.registry import find_mode, plans_flat, search_mode
from autoshard.search.unmet_constraints import unmet_constraints
from autoshard.util.doing import doing
from autoshard.util.errors import PlanError, StrategyError
from autoshard.util.gc_paused import gc_paused

PURE = ("factor", "bfs")
"""Modes whose plans are taken where their programs cost less; others where they do by more than CERTAINTY, if people
configured operators."""
WIDE = {"dynamic_programming", "optimal"}
"""Modes that choose among all strategies: where the plan of one is best, those of all are improved."""
LIMITS = 3
"""Under how many limits few layers are searched, until two plans are found that fit as plans of all layers."""


@search_mode(NAME, regions=True, keeps_limit=True)
@gc_paused()
def sharding_propagation(problem: Problem) -> Plan:
    """Rules first, prices where they leave a choice, then local improvement.

    Raises:
        PlanError: shardings on another mesh than the plan's.
        StrategyError: an annotation that does not fit, or two that want one parameter in different layouts.
    """
    few = None if problem.mesh.devices == 1 else FewLayers.of(problem)
    by_few = None if few is None else _by_few_layers(few)
    return _searched(problem)[0] if by_few is None else by_few


def _searched(problem: Problem) -> tuple[Plan, Combination]:
    """The plan of this mode, and what it was combined from."""
    began: list[Combination] = []

    def plans(flat: Problem) -> Iterator[Plan]:
        began.append(Combination(flat))
        yield from _plans(began[-1])

    def keeps(plan: Plan) -> bool:
        return _keeps(problem, plan)

    found, *others = plans_flat(plans, problem)
    if not keeps_limit(problem, found):
        found = next(filter(keeps, sorted(others, key=_seconds(problem))), found)
    pure = [plan for plan in others if plan.search in PURE]
    best = cheapest(problem, (found, *pure), keeps=keeps)
    # As everywhere in this mode what rules settle from the operators that people configured may cost a little.
    named = [plan for plan in others if plan.search not in PURE]
    best = cheapest(problem, (best, *named), CERTAINTY if problem.configured else 0.0, keeps)
    again = [best, *(plan for plan in others if {plan.search, best.search} <= WIDE)]
    best = cheapest(problem, (best, *began[-1].improved(again)), keeps=keeps)
    return _told(best, _with_runners_up(problem, best)), began[-1]


def _told(best: Plan, decisions: Mapping[Node, Decision]) -> Plan:
    """The best plan as one of this mode."""
    if best.search == NAME:
        return best
    started = f"as mode {best.search} has it, which costs least; {best.started_from}"
    return retold(best, search=NAME, started_from=started, decisions=decisions)


def _by_few_layers(few: FewLayers) -> Plan | None:
    """What this mode has for few of the layers, for all of them; None where that needs more memory than there is."""
    problem, limit = few.problem, few.problem.limit
    if problem.work is not None:
        few.short.remembered[RULES] = few.restricted(factor(problem))
    searched = [_searched_few(few)]
    if limit is not None and not keeps_limit(problem, searched[0].all_layers):
        return _by_few_within(few, searched[0], limit)
    return _best_by_few(searched)


def _by_few_within(few: FewLayers, above: _SearchedFew, limit: int) -> Plan | None:
    """The same under a limit that the plan without one is above. Where programs of all layers take far more than their
    sums, as memory is so short that collectives hardly share buffers, few layers know little: all are searched, too."""
    problem, seconds = few.problem, _seconds(few.problem)
    searched = sorted(_fitting(few, above, limit), key=lambda one: seconds(one.all_layers))
    if not searched:
        return None
    found = _best_by_few(searched)
    if price_of(problem, found) <= NEAR * seconds(searched[0].all_layers):
        return found
    return cheapest(problem, (found, _searched(problem)[0]), keeps=partial(_keeps, problem))


def _best_by_few(searched: Sequence[_SearchedFew]) -> Plan:
    """The cheapest program of all layers by searches of few."""
    first, *others = searched
    problem = first.few.problem
    plans = first.all_layers, *_near(first), *(one.all_layers for one in others)
    found = cheapest(problem, plans, CERTAINTY if problem.configured else 0.0, partial(_keeps, problem))
    return _told(found, found.decisions)


class _SearchedFew(NamedTuple):
    """Few layers that were searched: what their plan was combined from, and it for these and for all layers."""

    few: FewLayers
    own: Combination
    plan: Plan
    all_layers: Plan

    @property
    def peaks(self) -> tuple[int, int]:
        """Bytes that the few layers need, and all of them, by the model that searches go by."""
        return peak_memory(self.plan), peak_memory(self.all_layers)


def _searched_few(few: FewLayers) -> _SearchedFew:
    """What this mode has for few layers. Rings, and parameters that are gathered again, are of another graph."""
    best, own = _searched(few.short)
    plan = best if best.graph is few.short.graph else own.found
    return _SearchedFew(few, own, plan, few.lifted(plan))


def _fitting(few: FewLayers, above: _SearchedFew, limit: int) -> Iterator[_SearchedFew]:
    """Searches of few layers whose plans keep a limit as plans of all layers: under that share of the limit which few
    layers have in a plan above it, then between a plan that fits and one that does not."""
    below: _SearchedFew | None = None
    for _ in range(LIMITS):
        room = _room(above.peaks, below.peaks if below else (0, 0), limit)
        found = _searched_few(few.within(room))
        kept = keeps_limit(few.problem, found.all_layers)
        if kept:
            yield found
        if found.peaks[1] > limit:
            if not kept and found.peaks[0] > room:
                return  # the few have no smaller plan
            above = found
        elif below is not None:
            return
        else:
            below = found


def _room(above: tuple[int, int], below: tuple[int, int], limit: int) -> int:
    """Bytes for the few layers with which all need the limit, if what all need grows evenly between two plans."""
    share = (limit - below[1]) / (above[1] - below[1])
    return int(below[0] + share * (above[0] - below[0]))


def _near(searched: _SearchedFew) -> Iterator[Plan]:
    """The plans of all layers that may be better than what was searched, by what few layers say of their sums. Programs
    that take less than their sums are far from the best."""
    few, own = searched.few, searched.own
    problem, seconds = few.problem, _seconds(few.problem)
    most = HOPE * price_of(problem, searched.all_layers)
    named = {name: plan for name in named_plans() if (plan := _made(partial(own.named, name))) is not None}
    for plan in (own.found, *(start.plan for start in own.starts if start.is_mode), *named.values()):
        known = plan is searched.plan or plan.graph is not few.short.graph
        if not known and seconds(lifted := few.lifted(plan)) <= most:
            yield lifted
    # One of another graph cannot be told of all layers: it is made anew where it is near among the few; where these had
    # a limit, which is a guess, the nearest one is from further away. What sums tell to be far is not priced.
    most = price_of(few.short, own.found)
    others = {
        name: price_of(few.short, plan)
        for name, plan in named.items()
        if plan.graph is not few.short.graph and by_sum(plan, problem.prices)[1] <= NEAR * most
    }
    for i, name in enumerate(sorted(others, key=others.__getitem__)):
        hope = NEAR if i == 0 and few.short.limit is not None else HOPE
        if others[name] <= hope * most:
            yield from filter(None, (_made(partial(find_mode(name), problem)),))


def _with_runners_up(problem: Problem, plan: Plan) -> Mapping[Node, Decision]:
    """The decisions of a plan; of propagation's with what else was weighed, which assignments do without."""
    if plan.search == "bfs":
        for same in plans_flat(lambda flat: iter(propagations(flat, compared=True)), problem):
            known = {node: one.strategy for node, one in same.decisions.items()}
            if same.outputs == plan.outputs and known == {node: one.strategy for node, one in plan.decisions.items()}:
                return same.decisions
    return plan.decisions


def _plans(own: Combination) -> Iterator[Plan]:
    """This mode's own plan of a flat graph, then those of modes that it began with, and of others."""
    problem = own.problem
    yield own.run()
    if problem.mesh.devices == 1:
        return  # all plans are the same
    yield from own.second()
    if not problem.graph.nodes or not {*problem.graph.nodes}.difference(problem.inside).issuperset(problem.annotations):
        return  # what people configured inside of loops other modes may leave
    yield from (start.plan for start in own.starts if start.is_mode)
    for other in (*_of_all_strategies(own), *(partial(own.named, name) for name in named_plans())):
        plan = _made(other)
        if plan is not None and (plan.graph is problem.graph or not problem.inside):
            yield plan


def _made(other: Callable[[], Plan | None]) -> Plan | None:
    """Another mode's plan; None where it has none of the problem."""
    with suppress(PlanError, StrategyError), doing("trying another mode's plan"):
        return other()


def _of_all_strategies(own: Combination) -> Iterator[Callable[[], Plan | None]]:
    """Plans of searches among all strategies, where there is time for them and they may be taken: they keep no limit.
    On small meshes assignments begin with the least sum, on large ones plans near it are others to compare with.
    Dynamic programming has another, which costs little more where the least sum was looked for, and is the only one of
    large graphs and of loops on large meshes. No plan is looked for whose sum is above what the own one takes: programs
    that take less than their sums are far from the best."""
    problem, short = own.problem, is_short(own.problem)
    if problem.limit is not None or problem.thrifty and not short:
        return
    searches: list[ExactSearch] | None = None
    if not short and not problem.runs:
        with suppress(TooLargeError):
            searches = promising(problem, HOPE * price_of(problem, own.found))
    if short or searches is None and not own.has_least:
        yield partial(dynamic_programming, problem)
    yield from (partial(near_optimum, search) for search in searches or ())


def _seconds(problem: Problem) -> Callable[[Plan], float]:
    return lambda plan: plan_seconds(plan, problem.prices)


def _keeps(problem: Problem, plan: Plan) -> bool:
    """Whether another mode's plan keeps to what people fixed and to the memory limit."""
    return not unmet_constraints(problem, plan) and keeps_limit(problem, plan)
