"""From an assignment to a plan: the layouts, and of each decision its cause and what else would cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoshard.core.strategy import Strategy
from autoshard.ir.graph import Node, Value
from autoshard.layout.layout import Layout
from autoshard.plan.plan import ADOPTED, ASKED, GIVEN, IMPROVED, PRICED, PROPAGATED, Cause, Decision, Option, Plan
from autoshard.search.assignment import Assignment, Choice
from autoshard.search.greedy.choose import ALTERNATIVES
from autoshard.search.local.local_cost import LocalCost
from autoshard.search.problem import Problem
from costmodel import format_seconds


@dataclass(frozen=True)
class SearchStart:
    """A plan that a search began from: what made it, in words; whether that is a mode of rules or of prices alone, by
    which the result is judged; and whether it is a mode at all."""

    word: str
    plan: Plan
    is_pure: bool = False
    is_mode: bool = False


def plan_with_causes(
    problem: Problem,
    assignment: Assignment,
    starts: Sequence[SearchStart],
    settled: Mapping[Node, Strategy],
    search: str,
) -> Plan:
    """The plan that an assignment stands for.

    Args:
        starts: the plans that the assignment was improved from; where it agrees with one, that one's cause holds.
        settled: the strategies that rules alone decided, by the first start.
        search: the mode's name.
    """
    return _Finish(problem, assignment, starts, settled, search).plan()


def plan_of(
    problem: Problem,
    assignment: Assignment,
    cause: Callable[[Node], Cause],
    started_from: str,
    search: str,
    **details: Any,
) -> Plan:
    """The plan with the strategies of an assignment, for modes that tell a cause per operator and no more.

    Args:
        details: further fields of the plan, such as its conflicts.
    """
    layouts = assignment.layouts()
    decisions = {}
    for node in problem.graph.nodes:
        chosen = assignment.chosen[node]
        decisions[node] = Decision(_option(chosen, LocalCost(assignment, node).price(chosen)), cause(node))
    inputs = {value: _input_cause(value, problem, assignment, layouts[value]) for value in problem.graph.inputs}
    outputs = problem.outputs(layouts)
    return Plan(
        problem.graph, problem.mesh, decisions, layouts, outputs, inputs,
        started_from=started_from, search=search, **details,
    )  # fmt: skip


class _Finish:
    def __init__(
        self,
        problem: Problem,
        assignment: Assignment,
        starts: Sequence[SearchStart],
        settled: Mapping[Node, Strategy],
        search: str,
    ) -> None:
        self.problem, self.graph, self.assignment = problem, problem.graph, assignment
        self.starts, self.settled, self.search = starts, settled, search
        self.layouts = assignment.layouts()
        self.counts = dict.fromkeys((PROPAGATED, PRICED, IMPROVED), 0)
        self.options: dict[tuple, tuple[Choice, ...]] = {}
        self.judged: dict[tuple, _Judged] = {}

    def plan(self) -> Plan:
        decisions = {node: self._decision(node) for node in self.graph.nodes}
        spread = next(start.plan for start in self.starts if start.plan.search == "bfs")
        return Plan(
            self.graph,
            self.problem.mesh,
            decisions,
            self.layouts,
            self.problem.outputs(self.layouts),
            {
                value: _input_cause(value, self.problem, self.assignment, self.layouts[value])
                for value in self.graph.inputs
            },
            spread.conflicts,
            f"{spread.started_from}; {self._told()}",
            self.search,
        )

    def _told(self) -> str:
        by_rule, priced, improved = (self.counts[kind] for kind in (PROPAGATED, PRICED, IMPROVED))
        return f"{by_rule} follow by rule, {priced} priced, {improved} improved"

    # -- operators

    def _decision(self, node: Node) -> Decision:
        chosen, local_cost, others = self.assignment.chosen[node], LocalCost(self.assignment, node), self._others(node)
        key = (chosen, local_cost.key, id(others))
        judged = self.judged.get(key)
        if judged is None:
            judged = self.judged[key] = _judged(chosen, local_cost, others)
        return Decision(judged.chosen, self._cause(node, chosen, judged.instead), judged.alternatives)

    def _others(self, node: Node) -> tuple[Choice, ...]:
        """What the starts chose or had beside, and what improvement tried; the same tuple for equal nodes of which
        starts say the same."""
        pricing, decisions = self.assignment.pricing, [start.plan.decisions[node] for start in self.starts]
        key = (pricing.class_of[node], *[(id(one.chosen), id(one.alternatives)) for one in decisions])
        known = self.options.get(key)
        if known is None:
            options = (option for one in decisions for option in (one.chosen, *one.alternatives))
            told = dict.fromkeys(pricing.choice(node, one.strategy) for one in options)
            known = self.options[key] = tuple(told | pricing.listed.get((pricing.class_of[node], True), {}))
        return known

    def _cause(self, node: Node, chosen: Choice, instead: str) -> Cause:
        if node in self.problem.configured:
            return self.problem.settled_cause(node)
        if self.settled.get(node) == chosen.strategy:
            self.counts[PROPAGATED] += 1
            return self._ruled(node)
        agreeing = next((one for one in self.starts if one.plan.strategy(node) == chosen.strategy), None)
        if agreeing is None:
            self.counts[IMPROVED] += 1
            return Cause(IMPROVED, tuple(self._decided_around(node)), instead=instead)
        self.counts[PRICED] += 1
        return Cause(PRICED, agreeing.plan.decisions[node].cause.neighbours, instead=instead)

    def _ruled(self, node: Node) -> Cause:
        """Why rules alone decide so: as rules tell, or by the configured operators beside it."""
        cause = self.starts[0].plan.decisions[node].cause
        beside = tuple(name for name in self._decided_around(node, self.problem.annotated))
        return Cause(PROPAGATED, beside) if beside and not cause.neighbours else cause

    def _decided_around(self, node: Node, among: Mapping[Node, Strategy] | None = None) -> Iterator[str]:
        """The labels of the operators beside a node, each once; only those `among`, if that is given."""
        found: dict[Node, None] = {}
        for value in node.operands:
            if value in self.graph.producers:
                found[self.graph.producers[value][0]] = None
        for value in node.results:
            found.update((user, None) for user, _ in self.graph.users[value])
        return (other.label for other in found if among is None or other in among)


@dataclass(frozen=True, eq=False)
class _Judged:
    """What is the same for equal nodes in equal surroundings: the options, and what the first was chosen over."""

    chosen: Option
    alternatives: tuple[Option, ...]
    instead: str


def _judged(chosen: Choice, local_cost: LocalCost, others: Sequence[Choice]) -> _Judged:
    now = local_cost.price(chosen)
    ranked = local_cost.cheapest([one for one in others if one is not chosen], ALTERNATIVES)
    alternatives = tuple([_option(one, seconds) for seconds, one in ranked])
    instead = f"{ranked[0][1].strategy.label}, which costs {_more(ranked[0][0] - now)}" if ranked else ""
    return _Judged(_option(chosen, now), alternatives, instead)


def _input_cause(value: Value, problem: Problem, assignment: Assignment, layout: Layout) -> Cause:
    """Why an input lies as it does: by the data strategy, as asked, or as an operator wants it (a configured one, if
    there is one)."""
    if value in problem.input_layouts:
        asked = value in problem.asked and value not in problem.given
        return Cause(ASKED if asked else GIVEN)
    users = [node for node, i in problem.graph.users[value] if assignment.chosen[node].operands[i] is layout]
    first = next((node for node in users if node in problem.configured), users[0] if users else None)
    return Cause(ADOPTED, (first.label,)) if first is not None else Cause(GIVEN)


def _option(choice: Choice, seconds: float) -> Option:
    return Option(choice.strategy, max(seconds - choice.work, 0.0), 0.0, choice.work)


def _more(seconds: float) -> str:
    if abs(seconds) < 1e-12:
        return "as much"
    return f"{format_seconds(abs(seconds))} {'more' if seconds > 0 else 'less'}"
