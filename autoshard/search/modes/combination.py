"""Assignments that the default mode begins with, and what comes of improving them: its own plan, before it is compared.

It begins with the plans of rules alone, of breadth-first propagation, of batch parallelism, of rules with prices, and
of the least sum. `default.py` compares what comes of them with other modes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from autoshard.core.strategy import Strategy
from autoshard.cost.evaluate import plan_seconds
from autoshard.ir.graph import Node, Value
from autoshard.layout.layout import Layout
from autoshard.plan.plan import Plan
from autoshard.redistribute.planner import is_cut
from autoshard.search.assignment import Assignment, Choice, Pricing
from autoshard.search.causes import SearchStart, plan_with_causes
from autoshard.search.constraints import permits
from autoshard.search.exact.over_mesh_cuts import (
    SMALL_NODES,
    TooLargeError,
    is_short,
    small_optimum,
)
from autoshard.search.greedy.bfs import propagations
from autoshard.search.greedy.candidates import splits_further
from autoshard.search.local.icm import LocalSearch
from autoshard.search.local.joint_moves import joint_moves
from autoshard.search.local.memory_multiplier import MemoryEvaluator, search_within_limit, with_input_layouts
from autoshard.search.memory_limit import keeps_limit
from autoshard.search.modes.batch import batch_parallel
from autoshard.search.modes.factor import factor
from autoshard.search.problem import Problem
from autoshard.search.registry import find_mode

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
RULES = "plan by rules"
"""What a problem remembers this mode's plan by rules as."""


class Combination:
    """The default mode's own plan of a flat graph, and what it was combined from.

    Attributes:
        starts: the plans that it began with.
        has_least: whether the least sum is known not to be below all starts.
        found: its plan, after `run`.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, self.graph = problem, problem.graph
        self.prices = problem.prices
        self.rules = problem.remembered.get(RULES) or (factor(problem) if problem.work is not None else None)
        self.settled = self._settled()
        self.has_least = False
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
        memory, best = MemoryEvaluator(self.problem), self._best(assignment)
        memory.note(best)
        if keeps_limit(self.problem, best):
            return best
        return self._within(limit, assignment, memory)

    def second(self) -> Iterator[Plan]:
        """The plan of the assignment that came next to the best one by its sum: its program may cost less. To price the
        programs of large graphs takes long, and latency, of which sums know least, is little of theirs."""
        small = len(self.graph.nodes) <= SMALL_NODES
        tried = self.problem.limit is None and small
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
                improvement = Improvement(self.problem, known)
                yield self._best(improvement.best([assignment], self.problem.configured).assignment)

    def _limit(self) -> int | None:
        """The memory limit, where plans can be looked for that keep it."""
        nested = self.problem.runs or any(node.regions for node in self.graph.nodes)
        return None if nested else self.problem.limit

    def _best(self, assignment: Assignment) -> Plan:
        """The plan of an assignment."""
        return plan_with_causes(self.problem, assignment, self.starts, self.settled, NAME)

    def _within(self, limit: int, assignment: Assignment, memory: MemoryEvaluator) -> Plan:
        """A plan that needs no more memory than the limit, if one is found."""
        problem, wide = self.problem, self.starts[-1].plan
        starts = [assignment.strategies, {node: wide.strategy(node) for node in self.graph.nodes}]
        found = search_within_limit(problem, starts, limit, memory)
        kept = Assignment(Pricing(with_input_layouts(problem, found), self.prices), found.strategies)
        plan = plan_with_causes(problem, kept, self.starts, self.settled, NAME)
        memory.note(plan)
        return plan

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
        for spread in propagations(self.problem):
            yield SearchStart("breadth-first propagation", spread, True, True)
        spread = next(start.plan for start in self.starts if start.plan.search == "bfs")
        if any(spread.strategy(node) != strategy for node, strategy in self.settled.items()):
            fixed = {**self.problem.fixed, **self.settled}
            yield SearchStart("rules and prices", propagations(replace(self.problem, fixed=fixed))[0])
        yield SearchStart("batch parallelism", batch_parallel(self.problem), is_mode=True)
        if self.problem.limit is None and is_short(self.problem):
            yield from self._least_sum()

    def _least_sum(self) -> Iterator[SearchStart]:
        """The plan of the least sum, if that is less than those of all other starts."""
        try:
            plan = small_optimum(self.problem, self._known_seconds())
        except TooLargeError:
            return
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
        improve = Improvement(self.problem, known)
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

    def _kept(self, pricing: Pricing, best: Assignment, improve: Improvement, most: float) -> Assignment | None:
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


class Improvement:
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
        local_searches = [LocalSearch(assignment, free, self.known, self.responses) for assignment in near]
        for one in local_searches:
            one.sweep(free)
        return sorted(local_searches, key=lambda one: one.assignment.seconds)


def _apart(assignments: list[Assignment]) -> list[Assignment]:
    """The assignments without repetition."""
    return list({tuple(assignment.chosen.values()): assignment for assignment in reversed(assignments)}.values())[::-1]
