"""Breadth-first propagation from the configured operators (mode "bfs"): MindSpore's sharding_propagation.

Configured operators are decided first. From a decided operator the search spreads forwards to the users of its results
and backwards to the producers of its operands, in order of arrival, in three classes:
1. operators all of whose operands are decided, so that they are judged on all of them together, as in MindSpore 2.x;
2. when there are none: producers of what a decided operator uses;
3. when there are none either: the first operator that still waits for an operand is released with what is known.
Each decision is `choose`'s.

What free axes of the mesh should split is seen only by later users, so this is done in three ways, of which that with
least redistribution is taken, unless another costs less by more than MARGIN:
- computed values are kept as they are left, and free axes go to what is new to an operator (MatMul ((2, 1), (1, 1))
  leads to ((2, 1), (1, 4)) of the next one, as in MindSpore);
- free axes are used at once, for what takes fewest bytes of parameters;
- free axes are used at once, for leading dims (the batch).
Where following the configured operators does not pay at all, nothing is propagated (`unpropagated`).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator

from autoshard.core.strategy import Strategy, replicated_strategy
from autoshard.cost.evaluate import plan_seconds, redistribution_seconds
from autoshard.ir.graph import Node, Value
from autoshard.layout.layout import Layout
from autoshard.plan.plan import (
    ADOPTED,
    CONFIGURED,
    GIVEN,
    PRICED,
    PROPAGATED,
    RELEASED,
    STARTED,
    Cause,
    Conflict,
    Decision,
    Option,
    Plan,
)
from autoshard.redistribute.planner import plan_steps
from autoshard.search.assignment import Assignment, Pricing
from autoshard.search.causes import plan_of
from autoshard.search.flat import CARRIED
from autoshard.search.greedy.choose import chooser
from autoshard.search.problem import Problem
from autoshard.search.program_price import cheapest
from autoshard.search.registry import search_mode
from autoshard.util.errors import StrategyError
from autoshard.util.text import first_of

MOST_NAMES = 8
"""Operators or inputs that a plan says it started from."""


def unpropagated(problem: Problem, search: str) -> Plan:
    """The plan in which nothing follows from the configured operators: every rank runs all of every other one, and free
    inputs lie as is best for their users. It is what propagation is held against.

    Raises:
        StrategyError: an annotation that does not fit.
    """
    configured = problem.configured
    strategies = {
        node: configured.get(node) or problem.asked_strategy(node) or replicated_strategy(node.rule, problem.mesh)
        for node in problem.graph.nodes
    }
    assignment = Assignment(Pricing(problem, problem.prices), strategies)

    def cause(node: Node) -> Cause:
        return Cause(CONFIGURED if node in configured else PRICED)

    followed = (
        "to follow the configured operators" if configured else "no operator is configured, and to start from one"
    )
    return plan_of(problem, assignment, cause, f"nothing propagated: {followed} costs more", search)


MARGIN = 0.05
"""What less redistribution may cost in all, as a share: the default mode is as patient with what rules settle."""


@search_mode("bfs")
def propagate(problem: Problem) -> Plan:
    """Propagate the configured strategies over the graph, least redistribution first.

    Raises:
        StrategyError: an annotation that does not fit, or two that want one parameter in different layouts.
    """
    first, *others = sorted(_ways(problem, True), key=lambda plan: redistribution_seconds(plan, problem.prices))
    best = cheapest(problem, (first, *others), MARGIN)
    return cheapest(problem, (best, unpropagated(problem, "bfs")))


def propagations(problem: Problem, compared: bool = False) -> list[Plan]:
    """All that `propagate` chooses from, the cheapest by the sums that searches go by first.

    Args:
        compared: every decision comes with runners-up.
    """
    found = (*_ways(problem, compared), unpropagated(problem, "bfs"))
    return sorted(found, key=lambda plan: plan_seconds(plan, problem.prices))


def _ways(problem: Problem, compared: bool) -> Iterator[Plan]:
    for keeps, leading in ((True, False), (False, False), (False, True)):
        yield _Propagation(problem, compared, keeps, leading).run()


class _Propagation:
    def __init__(self, problem: Problem, compared: bool, keeps: bool, leading: bool) -> None:
        self.problem, self.graph, self.compared = problem, problem.graph, compared
        self.keeps, self.leading = keeps, leading
        self.chooser = chooser(problem.mesh, problem.hardware)
        self.layouts: dict[Value, Layout] = dict(problem.input_layouts)
        self.input_causes: dict[Value, Cause] = {value: Cause(GIVEN) for value in self.layouts}
        self.decisions: dict[Node, Decision] = {}
        self.copies: dict[Value, dict[Layout, None]] = {}
        self.place = {node: i for i, node in enumerate(self.graph.nodes)}
        self.constant = self._constants()
        self.open_operands = {node: self._count_open(node) for node in self.graph.nodes}
        self.becomes: dict[Value, Value] = self.graph.tied
        self.ready: deque[Node] = deque()
        self.behind: deque[Node] = deque()
        self.waiting: list[tuple[int, Node]] = []
        self.reached: set[Node] = set()

    def _constants(self) -> set[Value]:
        """Values that depend on no input: they lie as their users want, so nothing waits for them."""
        constant: set[Value] = set()
        for node in self.graph.nodes:
            if constant.issuperset(node.operands):
                constant.update(node.results)
        return constant

    def _count_open(self, node: Node) -> int:
        """Operands whose producer must be decided before the node is judged."""
        return sum(self._is_awaited(value) for value in set(node.operands))

    def _is_awaited(self, value: Value) -> bool:
        return value in self.graph.producers and value not in self.constant

    def run(self) -> Plan:
        started = self._seed()
        while True:
            while self.ready or self.behind:
                self._decide((self.ready or self.behind).popleft())
            if not self._release():
                break
        for value in self.graph.inputs:
            self.layouts.setdefault(value, Layout.replicated(self.problem.mesh, value.type.rank))
            self.input_causes.setdefault(value, Cause(GIVEN))
        return Plan(
            self.graph,
            self.problem.mesh,
            {node: self.decisions[node] for node in self.graph.nodes},
            {value: self.layouts[value] for value in self.graph.values},
            self.problem.outputs(self.layouts),
            self.input_causes,
            self._conflicts(),
            started,
            "bfs",
        )

    # -- where it begins

    def _seed(self) -> str:
        configured = self.problem.configured
        for node, strategy in configured.items():
            self._check_shared(node, strategy)
            self._settle(node, Decision(self._priced(node, strategy), Cause(CONFIGURED)))
        for node in configured:
            self._spread(node)
        if configured:
            return f"configured {first_of([node.label for node in configured], MOST_NAMES)}"
        data = [value for value in self.graph.inputs if value in self.layouts]
        for value in data:
            self._reach_users(value)
        shown = first_of([f"{value.name} [{self.layouts[value]}]" for value in data], MOST_NAMES)
        return f"no operator is configured; started from {shown or 'its first operator'}"

    def _check_shared(self, node: Node, strategy: Strategy) -> None:
        """Two configured users of one graph input must want it alike: a parameter lies in one way."""
        for value, layout in zip(node.operands, strategy.operand_layouts, strict=True):
            settled = self.layouts.get(value)
            computed = self.graph.role_of.get(value, CARRIED) == CARRIED
            if settled in (None, layout) or computed or value in self.problem.input_layouts:
                continue
            other = next(user for user, _ in self.graph.users[value] if user in self.decisions)
            raise StrategyError(
                f"conflicting strategies for the shared parameter {value.name} {value.type}: "
                f"{self.problem.describe(other)} wants [{settled}], {self.problem.describe(node)} wants [{layout}]; "
                f"give both operators the same split of it"
            )

    # -- one decision

    def _decide(self, node: Node, cause: str = PROPAGATED) -> None:
        if node in self.decisions:
            return
        operands = tuple(map(self._held, node.operands))
        wanted = tuple(tuple(self._wanted(value)) for value in node.results)
        best, others = self.chooser.choose(node, operands, wanted, self.compared, self._kept(node), self.leading)
        self._settle(node, Decision(best, Cause(cause, tuple(self._neighbours(node))), others))
        self._spread(node)

    def _kept(self, node: Node) -> tuple[int, ...]:
        """The operands that are computed, if they are to lie as they are left."""
        return tuple(i for i, value in enumerate(node.operands) if self.keeps and self._is_awaited(value))

    def _held(self, value: Value) -> tuple[Layout, ...]:
        """The layout a value is left in, and those that decided users have it redistributed to; () while it is open."""
        if value not in self.layouts:
            return ()
        return tuple(dict.fromkeys((self.layouts[value], *self.copies.get(value, ()))))

    def _wanted(self, value: Value) -> Iterable[Layout]:
        """The layouts that decided users want, each once; so do the input that the value replaces, and the computed
        value that it is the gradient of: backward passes mirror forward ones. (Gradients of parameters do not: terms of
        their sum may well stay where they are until the update.)"""
        layouts = [
            self.decisions[user].strategy.operand_layouts[i]
            for user, i in self.graph.users[value]
            if user in self.decisions
        ]
        if value in self.becomes and self.becomes[value] in self.layouts:
            layouts.append(self.layouts[self.becomes[value]])
        mirrored = self.graph.cotangents.get(value)
        if mirrored in self.graph.producers and mirrored in self.layouts:
            layouts.append(self.layouts[mirrored].final())
        return dict.fromkeys(layouts)

    def _neighbours(self, node: Node) -> Iterable[str]:
        names = [self._name_of(value) for value in node.operands if value in self.layouts]
        names += [user.label for value in node.results for user, _ in self.graph.users[value] if user in self.decisions]
        return dict.fromkeys(names)

    def _name_of(self, value: Value) -> str:
        made = self.graph.producers.get(value)
        return made[0].label if made else value.name

    def _priced(self, node: Node, strategy: Strategy) -> Option:
        return self.chooser.option(node, strategy, ((),) * len(node.operands), ((),) * len(node.results))

    def _settle(self, node: Node, decision: Decision) -> None:
        self.decisions[node] = decision
        strategy = decision.strategy
        self.layouts.update(zip(node.results, self.problem.left(node, strategy), strict=True))
        for value in node.results:
            self._keep(node, value)
        for value, layout in zip(node.operands, strategy.operand_layouts, strict=True):
            self.copies.setdefault(value, {})[layout] = None
            if value not in self.layouts and value in self.graph.role_of:
                self.layouts[value] = layout
                self.input_causes[value] = Cause(ADOPTED, (node.label,))

    def _keep(self, node: Node, value: Value) -> None:
        """Values that must lie alike take the layout of the first of them that is decided."""
        keeper = self.becomes.get(value)
        if keeper is not None and self.graph.role_of[keeper] == CARRIED and keeper not in self.layouts:
            self.layouts[keeper] = self.layouts[value].final()
            self.input_causes[keeper] = Cause(ADOPTED, (node.label,))

    # -- how it spreads

    def _spread(self, node: Node) -> None:
        for value in node.results:
            if value in self.becomes:
                self._reach_users(self.becomes[value])
        for value in node.operands:
            made = self.graph.producers.get(value)
            if made is not None and made[0] not in self.decisions:
                self.behind.append(made[0])
        for value in node.results:
            if self._is_awaited(value):
                for user in dict.fromkeys(user for user, _ in self.graph.users[value]):
                    self.open_operands[user] -= 1
                self._reach_users(value)

    def _reach_users(self, value: Value) -> None:
        for user in dict.fromkeys(user for user, _ in self.graph.users[value]):
            if user in self.decisions:
                continue
            if self.open_operands[user] == 0:
                self.ready.append(user)
            elif user not in self.reached:
                self.reached.add(user)
                heapq.heappush(self.waiting, (self.place[user], user))

    def _release(self) -> bool:
        """Decide the first waiting operator, or the first that nothing has reached; False when all are decided."""
        while self.waiting:
            _, node = heapq.heappop(self.waiting)
            if node not in self.decisions:
                self._decide(node, RELEASED)
                return True
        if len(self.decisions) == len(self.graph.nodes):
            return False
        self._decide(next(node for node in self.graph.nodes if node not in self.decisions), STARTED)
        return True

    # -- the end

    def _conflicts(self) -> tuple[Conflict, ...]:
        """Edges between configured operators that need a redistribution, with their price."""
        found = []
        for node in self.problem.configured:
            for value, after in zip(node.operands, self.decisions[node].strategy.operand_layouts, strict=True):
                made = self.graph.producers.get(value)
                if made is None or made[0] not in self.problem.configured:
                    continue
                before = self.layouts[value]
                steps = [step for step in plan_steps(before, after, value.type.shape) if step.communicates]
                if steps:
                    moved = sum(step.elements_moved(value.type.shape) for step in steps) * value.type.dtype.itemsize
                    paid = self.problem.prices.redistribution(before, after, value.type)
                    found.append(Conflict(value.name, made[0].label, node.label, before, after, moved, paid))
        return tuple(found)
