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

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from autoshard.core.strategy import Strategy
from autoshard.cost.evaluate import plan_seconds
from autoshard.cost.memory import peak_memory
from autoshard.cost.prices import prices_for
from autoshard.ir.graph import Node, Value
from autoshard.layout.layout import Layout
from autoshard.plan.plan import Decision, Plan
from autoshard.redistribute.planner import is_cut
from autoshard.search.assignment import Assignment, Choice, Pricing
from autoshard.search.causes import SearchStart, plan_with_causes
from autoshard.search.constraints import permits
from autoshard.search.exact.over_mesh_cuts import (
    SMALL_NODES,
    TooLargeError,
    is_short,
    near_optimum,
    promising,
    small_optimum,
)
from autoshard.search.exact.search import ExactSearch
from autoshard.search.factor_graph import FactorGraph
from autoshard.search.few_layers import FewLayers
from autoshard.search.greedy.bfs import propagated, propagations
from autoshard.search.greedy.choose import chooser
from autoshard.search.greedy.refine import splits_further
from autoshard.search.local.icm import LocalSearch
from autoshard.search.local.joint_moves import joint_moves
from autoshard.search.local.memory_multiplier import SPARE, MemoryEvaluator, search_within_limit, with_input_layouts
from autoshard.search.memory_limit import MEMORY
from autoshard.search.modes.batch import batch_parallel
from autoshard.search.modes.dynamic_programming import dynamic_programming
from autoshard.search.modes.factor import factor
from autoshard.search.named import named_plans
from autoshard.search.problem import Problem
from autoshard.search.program_price import cheapest, price_of, retold
from autoshard.search.registry import find_mode, plans_flat, search_mode
from autoshard.search.unmet_constraints import unmet_constraints
from autoshard.util.doing import doing
from autoshard.util.errors import PlanError, StrategyError
from autoshard.util.gc_paused import gc_paused

NAME = "sharding_propagation"
NEAR, MOST_DRAFTS = 1.3, 2
"""Assignments that cost up to this many times the cheapest are improved, and how many at most."""
CHAIN_TRIES = 2
"""Changes that chains may try, per operator that is free."""
JOINT_TRIES = 4
"""The same for joint moves."""
MOST_TRIES = 12_000
"""The most of either: on graphs of thousands of operators improvement takes no longer than all else."""
CERTAINTY = 0.05
"""What a plan may cost more, as a share, so that everything which rules settle stays as rules have it."""
HOPE = 1.05
"""Above this many times what it may cost an assignment is not improved further."""
PURE = ("factor", "bfs")
"""Modes whose plans are taken where their programs cost less; others where they do by more than CERTAINTY, if people
configured operators."""
WIDE = {"dynamic_programming", "optimal"}
"""Modes that choose among all strategies: where the plan of one is best, those of all are improved."""
RULES = "plan by rules"
"""What a problem remembers this mode's plan by rules as."""
LIMITS = 3
"""Under how many limits few layers are searched, until two plans are found that fit as plans of all layers."""
BY_HAND = ("zero3_keep", "megatron", "megatron_sp_keep", "zero1_ep")
"""Named plans that are looked at, too, where memory is short."""


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
    if by_few is None:
        return _searched(problem)[0]
    if problem.options.get(MEMORY) is None or price_of(problem, by_few) <= NEAR * _seconds(problem)(by_few):
        return by_few
    # Memory is so short that the program hardly shares buffers: of that few layers know little.
    return cheapest(problem, (by_few, _searched(problem)[0]), keeps=lambda plan: _keeps(problem, plan))


def _searched(problem: Problem) -> tuple[Plan, _Combination]:
    """The plan of this mode, and what it was combined from."""
    began: list[_Combination] = []

    def plans(flat: Problem) -> Iterator[Plan]:
        began.append(_Combination(flat))
        yield from _plans(began[-1])

    def keeps(plan: Plan) -> bool:
        return _keeps(problem, plan)

    found, *others = plans_flat(plans, problem)
    if (limit := problem.options.get(MEMORY)) is not None and peak_memory(found) > limit:
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
    problem, limit = few.problem, few.problem.options.get(MEMORY)
    if problem.work is not None:
        few.short.remembered[RULES] = few.restricted(factor(problem))
    searched = [_searched_few(few)]
    if limit is not None and peak_memory(searched[0].all_layers) > limit:
        searched = sorted(_fitting(few, searched[0], limit), key=lambda one: _seconds(problem)(one.all_layers))
    if not searched:
        return None
    first, *others = searched
    plans = first.all_layers, *_near(first), *(one.all_layers for one in others)
    by = CERTAINTY if problem.configured else 0.0
    found = cheapest(problem, plans, by, lambda plan: _keeps(problem, plan))
    return _told(found, found.decisions)


class _SearchedFew(NamedTuple):
    """Few layers that were searched: what their plan was combined from, and it for these and for all layers."""

    few: FewLayers
    own: _Combination
    plan: Plan
    all_layers: Plan

    @property
    def peaks(self) -> tuple[int, int]:
        """Bytes that the few layers need, and all of them."""
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
        if found.peaks[1] > limit:
            if found.peaks[0] > room:
                return  # the few have no smaller plan
            above = found
        else:
            yield found
            if below is not None:
                return
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
        if plan.graph is few.short.graph and seconds(lifted := few.lifted(plan)) <= most:
            yield lifted
    # One of another graph cannot be told of all layers: it is made anew where it is near among the few; near from far
    # where few layers had a limit that is a guess.
    most = (HOPE if problem.options.get(MEMORY) is None else NEAR) * price_of(few.short, own.found)
    for name, plan in named.items():
        if plan.graph is not few.short.graph and price_of(few.short, plan) <= most:
            yield from filter(None, (_made(partial(find_mode(name), problem)),))


def _with_runners_up(problem: Problem, plan: Plan) -> Mapping[Node, Decision]:
    """The decisions of a plan; of propagation's with what else was weighed, which assignments do without."""
    if plan.search == "bfs":
        for same in plans_flat(lambda flat: iter(propagations(flat, compared=True)), problem):
            known = {node: one.strategy for node, one in same.decisions.items()}
            if same.outputs == plan.outputs and known == {node: one.strategy for node, one in plan.decisions.items()}:
                return same.decisions
    return plan.decisions


def _plans(own: _Combination) -> Iterator[Plan]:
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


def _made(other: Callable[[], Plan]) -> Plan | None:
    """Another mode's plan; None where it has none of the problem."""
    with suppress(PlanError, StrategyError), doing("trying another mode's plan"):
        return other()


def _of_all_strategies(own: _Combination) -> Iterator[Callable[[], Plan]]:
    """Plans of searches among all strategies, where there is time for them and they may be taken: they keep no limit.
    On small meshes assignments begin with the least sum, on large ones plans near it are others to compare with; where
    none is looked for, of large graphs and of loops on large meshes, dynamic programming has one."""
    problem, short = own.problem, is_short(own.problem)
    if problem.options.get(MEMORY) is not None or problem.thrifty and not short:
        return
    searches: list[tuple[FactorGraph, ExactSearch]] = []
    if not short and not problem.runs:
        with suppress(TooLargeError):
            searches = promising(problem)
    if not searches and not own.has_least:
        yield partial(dynamic_programming, problem)
    yield from (partial(near_optimum, *search) for search in searches)


def _seconds(problem: Problem) -> Callable[[Plan], float]:
    prices = prices_for(problem.hardware)
    return lambda plan: plan_seconds(plan, prices)


def _keeps(problem: Problem, plan: Plan) -> bool:
    """Whether another mode's plan keeps to what people fixed and to the memory limit."""
    limit = problem.options.get(MEMORY)
    return not unmet_constraints(problem, plan) and (limit is None or peak_memory(plan) <= limit)


class _Combination:
    def __init__(self, problem: Problem) -> None:
        self.problem, self.graph = problem, problem.graph
        self.prices = chooser(problem.mesh, problem.hardware).prices
        self.rules = problem.remembered.get(RULES) or (factor(problem) if problem.work is not None else None)
        self.settled = self._settled()
        self.has_least = False  # whether the least sum is known not to be below all starts
        self.starts: list[SearchStart] = []
        self.others: list[LocalSearch] = []  # what else came of improving assignments
        for start in self._starts():
            self.starts.append(start)

    def named(self, name: str) -> Plan:
        """The plan known by a name, made once."""
        known = self.problem.remembered
        if (name,) not in known:
            known[name,] = find_mode(name)(self.problem)
        return known[name,]

    def run(self) -> Plan:
        """This mode's own plan."""
        self.found = self._run()
        return self.found

    def _run(self) -> Plan:
        assignment, limit = self._improved(), self._limit()
        if limit is None:
            return self._best(assignment)
        memory = MemoryEvaluator(self.problem)
        if memory.peak(assignment) <= limit * (1 + SPARE):
            best = self._best(assignment)
            memory.note(best)
            if peak_memory(best) <= limit:
                return best
        return self._within(limit, assignment, memory)

    def second(self) -> Iterator[Plan]:
        """The plan of the assignment that came next to the best one by its sum: its program may cost less. To price the
        programs of large graphs takes long, and latency, of which sums know least, is little of theirs."""
        small = len(self.graph.nodes) <= SMALL_NODES
        tried = self.problem.options.get(MEMORY) is None and small
        for local_search in self.others if tried else ():
            yield self._best(self._polished(local_search).assignment)

    def improved(self, plans: Iterable[Plan]) -> Iterator[Plan]:
        """Plans of other modes for the same graph, each once, after sweeps over all nodes that are not configured."""
        for plan in dict.fromkeys(plans):
            if plan.search != NAME and plan.graph is self.graph:
                assignment = Assignment(
                    Pricing(self.problem, self.prices), {node: plan.strategy(node) for node in self.graph.nodes}
                )
                known = {node: (choice,) for node, choice in assignment.chosen.items()}
                improvement = _Improvement(self.problem, known)
                yield self._best(improvement.best([assignment], self.problem.configured).assignment)

    def _limit(self) -> int | None:
        """The memory limit, where plans can be looked for that keep it."""
        nested = self.problem.runs or any(node.regions for node in self.graph.nodes)
        return None if nested else self.problem.options.get(MEMORY)

    def _best(self, assignment: Assignment) -> Plan:
        """The plan of an assignment."""
        return plan_with_causes(self.problem, assignment, self.starts, self.settled, NAME)

    def _within(self, limit: int, assignment: Assignment, memory: MemoryEvaluator) -> Plan:
        """A plan that needs no more memory than the limit, if one is found."""
        problem, wide = self.problem, self.starts[-1].plan
        starts = [assignment.strategies, {node: wide.strategy(node) for node in self.graph.nodes}]
        hand = [plan for name in BY_HAND for plan in self._by_hand(name)]
        found = search_within_limit(problem, self.prices, starts, hand, limit, problem.configured, memory)
        kept = Assignment(Pricing(with_input_layouts(problem, found), self.prices), found.strategies)
        plan = plan_with_causes(problem, kept, self.starts, self.settled, NAME)
        memory.note(plan)
        return plan

    def _by_hand(self, name: str) -> Iterator[dict[Node, Strategy]]:
        """The strategies of a named plan, but for what is configured; nothing where it does not fit the graph, or is
        one of another: in which sums are added in another order, or weights gathered again."""
        try:
            plan = self.named(name)
        except PlanError:
            return
        if plan.graph is not self.graph:
            return
        fixed = self.problem.configured
        yield {node: fixed.get(node) or plan.strategy(node) for node in self.graph.nodes}

    # -- where it begins

    def _settled(self) -> dict[Node, Strategy]:
        """The strategies that rules alone leave no doubt about. Inputs that nobody fixed lie in one way: the first
        operator that settles one decides."""
        if self.rules is None:
            return {}
        lying: dict[Value, Layout] = {}
        for node, strategy in self.problem.configured.items():
            self._note(node, strategy, lying)
        found = {}
        for node in self.graph.nodes:
            if self._is_settled(node, self.rules, lying):
                found[node] = self.rules.strategy(node)
                self._note(node, found[node], lying)
        return found

    def _note(self, node: Node, strategy: Strategy, lying: dict[Value, Layout]) -> None:
        for value, layout in zip(node.operands, strategy.operand_layouts, strict=True):
            if value in self.graph.role_of and value not in self.problem.input_layouts:
                lying.setdefault(value, layout)

    def _is_settled(self, node: Node, rules: Plan, lying: dict[Value, Layout]) -> bool:
        strategy, cause = rules.strategy(node), rules.decisions[node].cause
        if node in self.problem.configured or node.regions or cause.lost or strategy.work_split == 1:
            return False
        for value, need in zip(node.operands, strategy.operand_layouts, strict=True):
            if lying.get(value, need) is not need:
                return False
            if not is_cut(self.problem.input_layouts.get(value, rules.layouts[value]), need):
                return False
        return not splits_further(strategy)

    def _starts(self) -> Iterator[SearchStart]:
        if self.rules is not None:
            yield SearchStart("rules alone", self.rules, True, True)
        for spread in propagations(self.problem, compared=False):
            yield SearchStart("breadth-first propagation", spread, True, True)
        spread = next(start.plan for start in self.starts if start.plan.search == "bfs")
        if any(spread.strategy(node) != strategy for node, strategy in self.settled.items()):
            fixed = {**self.problem.fixed, **self.settled}
            yield SearchStart("rules and prices", propagated(replace(self.problem, fixed=fixed), compared=False))
        yield SearchStart("batch parallelism", batch_parallel(self.problem), is_mode=True)
        if self.problem.options.get(MEMORY) is None and is_short(self.problem):
            yield from self._least_sum()

    def _least_sum(self) -> Iterator[SearchStart]:
        """The plan of the least sum, if that is less than those of all other starts."""
        try:
            plan = small_optimum(self.problem, self._known_seconds())
        except TooLargeError:
            return
        except PlanError:
            plan = None
        self.has_least = True
        if plan is not None:
            yield SearchStart("least sum", plan)

    def _known_seconds(self) -> float:
        """The seconds of the cheapest start so far; none are known of what runs in loops, which plans count once."""
        return math.inf if self.problem.runs else min(plan_seconds(one.plan, self.prices) for one in self.starts)

    # -- improvement

    def _improved(self) -> Assignment:
        """The cheapest assignment, improved; as rules have it where that costs little more."""
        pricing, fixed = Pricing(self.problem, self.prices), self.problem.configured
        assignments = [self._draft(pricing, start, fixed) for start in self.starts]
        known = {node: self._known(pricing, node, assignments) for node in self.graph.nodes}
        improve = _Improvement(self.problem, known)
        first, *self.others = improve.near(assignments, fixed)
        best = self._polished(first).assignment
        if any(best.chosen[node].strategy != strategy for node, strategy in self.settled.items()):
            pure = [
                assignment.seconds for start, assignment in zip(self.starts, assignments, strict=True) if start.is_pure
            ]
            most = min(*pure, best.seconds * (1 + CERTAINTY))
            kept = self._kept(pricing, best, improve, most)
            best = best if kept is None else kept
        return best

    def _known(self, pricing: Pricing, node: Node, assignments: list[Assignment]) -> tuple[Choice, ...]:
        """What assignments have for a node, and what the starts had beside it."""
        found = dict.fromkeys(assignment.chosen[node] for assignment in assignments)
        if node not in self.problem.configured:
            beside = (option.strategy for start in self.starts for option in start.plan.decisions[node].alternatives)
            found.update(dict.fromkeys(pricing.choice(node, one) for one in beside if permits(node, one)))
        return tuple(found)

    def _kept(self, pricing: Pricing, best: Assignment, improve: _Improvement, most: float) -> Assignment | None:
        """The best that is found with everything as rules settle it, if it costs no more than `most`."""
        fixed = {**self.problem.configured, **self.settled}
        near = Assignment(pricing, {node: fixed.get(node) or one for node, one in best.strategies.items()})
        kept = improve.best([near, self._draft(pricing, self.starts[0], fixed)], fixed)
        if kept.assignment.seconds > most * HOPE:
            return None
        assignment = self._polished(kept).assignment
        return assignment if assignment.seconds <= most else None

    def _polished(self, local_search: LocalSearch) -> LocalSearch:
        free = len(local_search.free)
        local_search.chains(min(CHAIN_TRIES * free, MOST_TRIES))
        joint_moves(local_search, min(JOINT_TRIES * free, MOST_TRIES))
        return local_search

    def _draft(self, pricing: Pricing, start: SearchStart, fixed: Mapping[Node, Strategy]) -> Assignment:
        """A start's plan, but as it is fixed where something is."""
        return Assignment(pricing, {node: fixed.get(node) or start.plan.strategy(node) for node in self.graph.nodes})


class _Improvement:
    """Improves assignments of one problem; what surroundings were answered is shared by all of them."""

    def __init__(self, problem: Problem, known: dict[Node, tuple[Choice, ...]]) -> None:
        self.problem, self.known = problem, known
        self.responses: dict[tuple, tuple[float, Choice]] = {}

    def best(self, assignments: list[Assignment], fixed: Mapping[Node, Strategy]) -> LocalSearch:
        """What improves the cheapest of the assignments, after sweeps over the nodes that are not fixed."""
        return self.near(assignments, fixed)[0]

    def near(self, assignments: list[Assignment], fixed: Mapping[Node, Strategy]) -> list[LocalSearch]:
        """The same of all assignments that are near the cheapest, the cheapest first."""
        free = [node for node in self.problem.graph.nodes if node not in fixed]
        first, *others = sorted(_apart(assignments), key=lambda assignment: assignment.seconds)
        near = [
            first,
            *(assignment for assignment in others[: MOST_DRAFTS - 1] if assignment.seconds <= NEAR * first.seconds),
        ]
        local_searches = [
            LocalSearch(assignment, self.problem.mesh, free, self.known, self.responses) for assignment in near
        ]
        for one in local_searches:
            one.sweep(free)
        return sorted(local_searches, key=lambda one: one.assignment.seconds)


def _apart(assignments: list[Assignment]) -> list[Assignment]:
    """The assignments without repetition."""
    return list({tuple(assignment.chosen.values()): assignment for assignment in reversed(assignments)}.values())[::-1]
