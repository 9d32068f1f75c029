"""Mode "recursive_programming": MindSpore's double recursive search, with this project's prices.

The devices are halved again and again (in general: divided by a prime piece of a mesh axis, the outermost first), and
with them the operators: in each round every operator, heaviest first, is cut along that one dim which takes least for
itself (its work, and what completes its partial results) and for what does not fit its neighbours that were cut in this
round already; among equal ones that which leaves fewest bytes on a rank, as the costs of MindSpore's families of
operators say. An operator that nothing is gained for stays as it is. That takes rounds x operators x dims.

Configured operators are kept as they are, as in all modes (MindSpore's ignores most of them). Where all that costs more
than nothing propagated at all (`unpropagated`), nothing is. Options are those of `algo_parameters.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from autoshard.core.strategy import Strategy, replicated_strategy
from autoshard.core.tensortype import TensorType
from autoshard.cost.blocks import local_bytes
from autoshard.ir.graph import Node, Value
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import AxisRef, size_of
from autoshard.plan.plan import PRICED, Cause, Plan
from autoshard.search.algo_parameters import NAMES, SearchParameters, is_elementwise
from autoshard.search.assignment import Assignment, Pricing
from autoshard.search.causes import plan_of
from autoshard.search.domains import primes
from autoshard.search.greedy.bfs import unpropagated
from autoshard.search.greedy.candidates import given
from autoshard.search.problem import Problem
from autoshard.search.program_price import cheapest
from autoshard.search.registry import search_mode

NAME = "recursive_programming"
OPTIONS = tuple(name for name in NAMES if "approxi" not in name)
Price = Callable[[Layout, Layout, TensorType, float], float]
Unit = tuple[Node, ...]
"""Operators that are cut alike: one, or elementwise ones that use each other's results."""


@search_mode(NAME, options=OPTIONS)
def recursive_programming(problem: Problem) -> Plan:
    """Cut every operator in as many rounds as the devices can be halved.

    Raises:
        PlanError: an option that has no such value.
        StrategyError: an annotation that does not fit.
    """
    return cheapest(problem, (cut_in_rounds(problem), unpropagated(problem, NAME)))


def cut_in_rounds(problem: Problem) -> Plan:
    """What all rounds lead to, whatever it costs."""
    cuts = _Cuts(problem, SearchParameters.of(problem.options))
    assignment = Assignment(Pricing(problem, cuts.prices), cuts.strategies())
    told = f"{len(cuts.pieces)} rounds over {len(cuts.units)} operators, heaviest first"
    return plan_of(problem, assignment, cuts.cause, told, NAME)


class _Cuts:
    def __init__(self, problem: Problem, algorithm: SearchParameters) -> None:
        self.problem, self.graph, self.mesh, self.algorithm = problem, problem.graph, problem.mesh, algorithm
        self.prices = problem.prices
        self.pieces = [piece for axis in self.mesh.all_axes for piece in primes(axis)]
        self.fixed = dict(problem.configured)
        for node in self.graph.nodes:
            if node not in self.fixed and (asked := problem.asked_strategy(node)) is not None:
                self.fixed[node] = asked
        self.units = sorted(self._units(), key=lambda unit: -sum(map(self._weight, unit)))
        self.cut: dict[Node, Strategy] = {node: replicated_strategy(node.rule, self.mesh) for node in self.graph.nodes}
        self.decided: dict[Node, Strategy] = {}
        self.lying: dict[Value, Layout] = {}
        self.known: dict[tuple, Sequence[Strategy]] = {}

    def cause(self, node: Node) -> Cause:
        return self.problem.settled_cause(node) if node in self.fixed else Cause(PRICED)

    def _weight(self, node: Node) -> float:
        return self._times(node) * self.prices.work(node, replicated_strategy(node.rule, self.mesh))

    def _times(self, node: Node) -> int:
        return self.problem.runs.get(node, 1)

    def _units(self) -> Iterator[Unit]:
        """The operators that are cut together, in graph order."""
        free = [node for node in self.graph.nodes if node not in self.fixed]
        groups: dict[Node, list[Node]] = {node: [node] for node in free}
        if self.algorithm.elementwise_op_strategy_follow:
            like = {node for node in free if is_elementwise(node)}
            for node in free:
                for before in self._makers(node) if node in like else ():
                    if before in like and before.result_types[0].shape == node.result_types[0].shape:
                        _join(groups, before, node)
        return (tuple(group) for group in {id(group): group for group in groups.values()}.values())

    def _makers(self, node: Node) -> Iterator[Node]:
        return (self.graph.producers[value][0] for value in node.operands if value in self.graph.producers)

    # -- rounds

    def strategies(self) -> dict[Node, Strategy]:
        for piece in self.pieces:
            self.decided, self.lying = {}, dict(self.problem.input_layouts)
            for node, strategy in self.fixed.items():
                self._decide(node, strategy)
            for unit in self.units:
                for node, strategy in zip(unit, self._best(unit, piece), strict=True):
                    self._decide(node, strategy)
            self.cut.update(self.decided)
        for node in self.graph.nodes:
            if node not in self.fixed and not self.algorithm.admits(node, self.cut[node]):
                self.cut[node] = replicated_strategy(node.rule, self.mesh)
        return self.cut

    def _decide(self, node: Node, strategy: Strategy) -> None:
        """Note it, and that free inputs lie as their first user has them."""
        self.decided[node] = strategy
        for value, layout in zip(node.operands, strategy.operand_layouts, strict=True):
            if value in self.graph.role_of:
                self.lying.setdefault(value, layout)
        for value, layout in zip(node.results, self.problem.left(node, strategy), strict=True):
            if value in self.graph.tied:
                self.lying.setdefault(self.graph.tied[value], layout.final())

    def _best(self, unit: Unit, piece: AxisRef) -> Sequence[Strategy]:
        """The way that takes least, of equal ones the first. Equal operators with the same around them, as layers have
        them, are judged once."""
        if len(unit) != 1:
            return self._judged(unit, piece)
        situation = self._situation(unit[0], piece)
        if situation not in self.known:
            self.known[situation] = self._judged(unit, piece)
        return self.known[situation]

    def _situation(self, node: Node, piece: AxisRef) -> tuple:
        """All that a way to cut an operator is judged by."""
        problem = self.problem
        before = [(self._left(value, {}), problem.times(value), problem.share(value)) for value in node.operands]
        behind = [(tuple(self._wanted(value)), problem.times(value), problem.share(value)) for value in node.results]
        return piece, node.key, self.cut[node], self._times(node), tuple(before), tuple(behind)

    def _judged(self, unit: Unit, piece: AxisRef) -> Sequence[Strategy]:
        """The way that takes least; those whose bound is above the best are not priced."""
        ways = self._ways(unit, piece)
        bounds = [self._rank(unit, way, self.prices.surely)[0] if len(ways) > 1 else 0.0 for way in ways]
        best: tuple = (math.inf,)
        for i in sorted(range(len(ways)), key=bounds.__getitem__):
            if bounds[i] > best[0]:
                break
            best = min(best, (*self._rank(unit, ways[i], self.prices.redistribution), i))
        return ways[best[-1]]

    def _ways(self, unit: Unit, piece: AxisRef) -> list[tuple[Strategy, ...]]:
        """The unit cut by a piece of the mesh along each dim that it fits; as it is, unless it has to be cut."""
        same = tuple(self.cut[node] for node in unit)
        cuts = [tuple(self._along(node, dim, piece) for node in unit) for dim in self._dims(unit)]
        found = [way for way in cuts if all(way)]
        kept = [] if found and self.algorithm.fully_use_devices else [same]
        return list(dict.fromkeys((*found, *kept)))  # type: ignore[arg-type]

    def _dims(self, unit: Unit) -> Iterable[int]:
        """Of one operator the factors of its rule; of several the dims of their results."""
        rank = unit[0].result_types[0].rank
        return range(len(unit[0].rule.factors)) if len(unit) == 1 else range(-rank, 0)

    def _along(self, node: Node, dim: int, piece: AxisRef) -> Strategy | None:
        """The node's strategy, with one factor cut by all of the piece; None where that does not go."""
        rule, before = node.rule, self.cut[node].axes
        factors = [dim] if dim >= 0 else [i for i in rule.results[0][dim] if rule.factors[i].size > 1]
        if not all(rule.factors[i].splittable for i in factors):
            return None
        axes = given(rule, factors, piece, before)
        if math.prod(map(size_of, axes)) != math.prod(map(size_of, before)) * piece.size:
            return None
        found = Strategy(rule, self.mesh, axes)
        return found if not self.algorithm.tensor_slice_align_enable or self.algorithm.is_aligned(node, found) else None

    # -- what a way takes

    def _rank(self, unit: Unit, way: Sequence[Strategy], price: Price) -> tuple[float, float]:
        """Seconds, where redistributions take what `price` says, and bytes of a rank's blocks."""
        pairs = list(zip(unit, way, strict=True))
        inside = dict(pairs)
        seconds = sum(self._seconds(node, strategy, inside, price) for node, strategy in pairs)
        return float(f"{seconds:.9e}"), sum(local_bytes(node, strategy) for node, strategy in pairs)

    def _seconds(self, node: Node, strategy: Strategy, inside: dict[Node, Strategy], price: Price) -> float:
        """Seconds of a node's work, and of the redistributions from and to all that is decided around it."""
        total = self._times(node) * self.prices.work(node, strategy)
        for value, need in zip(node.operands, strategy.operand_layouts, strict=True):
            have = self._left(value, inside)
            if have is not None:
                total += self._moved(value, have, need, price)
        for value, have in zip(node.results, self.problem.left(node, strategy), strict=True):
            wanted = self._wanted(value)
            total += sum(self._moved(value, have, need, price) for need in wanted)
            if not wanted and have.partial:
                total += self._times(node) * self.prices.completion(node, strategy)
        return total

    def _moved(self, value: Value, have: Layout, need: Layout, price: Price) -> float:
        return self.problem.times(value) * price(have, need, value.type, self.problem.share(value))

    def _left(self, value: Value, inside: dict[Node, Strategy]) -> Layout | None:
        """The layout that a value is left in, if that is known in this round."""
        if value in self.lying:
            return self.lying[value]
        node, i = self.graph.producers.get(value, (None, 0))
        strategy = self.decided.get(node) or inside.get(node) if node is not None else None
        return None if node is None or strategy is None else self.problem.left(node, strategy)[i]

    def _wanted(self, value: Value) -> list[Layout]:
        """The layouts that decided users want, and the input that the value replaces, each once."""
        users = ((user, i) for user, i in self.graph.users[value] if user in self.decided)
        wanted = [self.decided[user].operand_layouts[i] for user, i in users]
        if value in self.graph.tied and self.graph.tied[value] in self.lying:
            wanted.append(self.lying[self.graph.tied[value]])
        return list(dict.fromkeys(wanted))


def _join(groups: dict[Node, list[Node]], one: Node, other: Node) -> None:
    """Make one group of two, in which nodes stay in graph order."""
    first, second = groups[one], groups[other]
    if first is second:
        return
    first += second
    for node in second:
        groups[node] = first
