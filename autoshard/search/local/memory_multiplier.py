"""Local search under a memory limit, with a Lagrange multiplier per byte.

Local search minimizes seconds plus the price of the bytes that lie on a device at the moments where memory was short so
far (`byte_prices.py`). The multiplier rises until an assignment fits, by the exact model of memory, then is bisected:
the lower it is, the faster the assignment. The fastest that fits is taken; if none does, the one that needs least.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoshard.core.strategy import Strategy
from autoshard.cost.live_terms import LiveTerms
from autoshard.cost.memory import MemoryModel, note_peak
from autoshard.ir.graph import Node, Value
from autoshard.layout.layout import Layout
from autoshard.plan.plan import Plan
from autoshard.search.assignment import Assignment, Choice, Pricing
from autoshard.search.constraints import permits
from autoshard.search.greedy.candidates import suggested
from autoshard.search.local.byte_prices import byte_prices
from autoshard.search.local.icm import LocalSearch
from autoshard.search.memory_limit import memory_model
from autoshard.search.problem import Problem

Strategies = Mapping[Node, Strategy]

FIRST = 0.05
"""The price that is tried first: as if so large a share of a step's time were for the memory that is needed."""
STEP = 6.0
MOST_PRICES, BISECTIONS = 9, 3
LARGE, MOST_SWEPT = 12_000, 60_000
"""Operators over which was swept: past the first only the best start is gone on with, past the second what fits is
taken."""
MOST_MOMENTS = 128
"""How many moments of one assignment get a price."""
SPARE = 1e-3
"""What is left free of the limit, as a share, for what the plan's own model of memory counts otherwise."""


@dataclass(frozen=True, eq=False)
class EvaluatedAssignment:
    """Strategies, how inputs lie with them, seconds without prices of bytes, and the peak in bytes, by the model."""

    strategies: Strategies
    inputs: Mapping[Value, Layout]
    seconds: float
    peak: int


class MemoryEvaluator:
    """Evaluates peaks of assignments of one problem by the exact model; terms are remembered by the layouts in them."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.model: MemoryModel = memory_model(problem)
        self._terms = LiveTerms(self.model)

    def timeline(self, strategies: Strategies, inputs: Mapping[Value, Layout]) -> np.ndarray:
        """Bytes at each moment, int64."""
        return self._terms.timeline(lambda one: strategies[one] if isinstance(one, Node) else inputs[one])

    def peak(self, assignment: Assignment) -> int:
        """The most bytes that an assignment needs at once."""
        return int(self.timeline(assignment.strategies, assignment.layouts()).max())

    def note(self, plan: Plan) -> None:
        """Tell `peak_memory` the peak of a plan of the problem, where both models are the same: nothing is asked of how
        values are left, and outputs leave as they come."""
        problem = self.problem
        if problem.asked_outputs or any(one.out_strategy is not None for one in problem.annotations.values()):
            return
        strategies = {node: plan.strategy(node) for node in problem.graph.nodes}
        note_peak(plan, int(self.timeline(strategies, plan.layouts).max(initial=0)))


def search_within_limit(
    problem: Problem,
    starts: Sequence[Strategies],
    limit: int,
    memory: MemoryEvaluator | None = None,
) -> EvaluatedAssignment:
    """The fastest strategies that were found to need at most `limit` bytes on a device; else those that need least.

    Args:
        starts: what to improve, the most promising one first.
        memory: the problem's, if there is one already.
    """
    return _MultiplierSearch(problem, starts, limit, memory or MemoryEvaluator(problem)).run()


class _MultiplierSearch:
    def __init__(self, problem: Problem, starts: Sequence[Strategies], limit: int, memory: MemoryEvaluator) -> None:
        self.problem, self.memory = problem, memory
        self.limit = math.floor(limit * (1 - SPARE))
        self.starts = list(starts)
        self.free = [node for node in problem.graph.nodes if node not in problem.configured]
        self.short: dict[int, None] = {}
        self.found: list[EvaluatedAssignment] = []
        self.swept = 0
        self.known: dict[tuple, tuple[Choice, ...]] = {}
        self.further: dict[tuple, Sequence[Strategy]] = {}

    def run(self) -> EvaluatedAssignment:
        self.plain = plain = Pricing(self.problem, self.problem.prices)
        first, *_ = [self._note(Assignment(plain, one)) for one in self.starts]
        low, high, price = 0.0, math.inf, FIRST * first.seconds / max(first.peak, 1)
        fitted = 0
        for _ in range(MOST_PRICES):
            if self._at(price):
                high, fitted = price, fitted + 1
                if not self.short:
                    break  # nothing was ever over the limit: another price changes nothing
            else:
                low = price
            if fitted > BISECTIONS or (fitted and self.swept > MOST_SWEPT):
                break
            price = STEP * price if high == math.inf else math.sqrt(low * high) if low else high / STEP
        return self._best_of(self.found)

    def _best_of(self, found: Sequence[EvaluatedAssignment]) -> EvaluatedAssignment:
        fitting = [one for one in found if one.peak <= self.limit]
        if fitting:
            return min(fitting, key=lambda one: one.seconds)
        return min(found, key=lambda one: one.peak)

    def _at(self, price: float) -> bool:
        """Improve for one price of a byte; whether something fits. Where all fits no byte has a price."""
        each = price / math.sqrt(max(len(self.short), 1))
        nbytes = byte_prices(self.memory.model.schedule, dict.fromkeys(self.short, each))
        pricing, self.known = Pricing(self.problem, self.problem.prices, nbytes, self.plain), {}
        known = {node: self._known(pricing, node) for node in self.free}
        responses: dict[tuple, tuple[float, Choice]] = {}
        made: list[tuple[EvaluatedAssignment, Strategies]] = []
        for start in self.starts:
            local_search = LocalSearch(Assignment(pricing, start), self.free, known, responses)
            local_search.sweep(self.free)
            made.append((self._note(local_search.assignment), start))
        self.swept += len(self.free) * len(self.starts)
        best = self._best_of([found for found, _ in made])
        if self.swept > LARGE:
            self.starts = [start for found, start in made if found is best]
        return best.peak <= self.limit

    def _known(self, pricing: Pricing, node: Node) -> tuple[Choice, ...]:
        """The strategies of the starts, and what splits further than they do; the same tuple for equal nodes."""
        starts = tuple(dict.fromkeys(pricing.choice(node, one[node]) for one in self.starts))
        key = pricing.class_of[node], starts
        if key not in self.known:
            further = dict.fromkeys(starts)
            for start in starts:
                further.update((pricing.choice(node, one), None) for one in self._further(node, start.strategy))
            self.known[key] = tuple(further)
        return self.known[key]

    def _further(self, node: Node, strategy: Strategy) -> Sequence[Strategy]:
        key = node.key, strategy
        if key not in self.further:
            sides = [(one,) for one in strategy.operand_layouts], [(one,) for one in strategy.result_layouts]
            found = suggested(node, self.problem.mesh, *sides) if node.op.has_rule else []
            self.further[key] = [one for one in found if permits(node, one)]
        return self.further[key]

    def _note(self, assignment: Assignment) -> EvaluatedAssignment:
        layouts = assignment.layouts()
        inputs = {value: layouts[value] for value in self.problem.graph.inputs}
        strategies = assignment.strategies
        timeline = self.memory.timeline(strategies, inputs)
        peak = int(timeline.max())
        self.short.update(dict.fromkeys(worst_moments(timeline, self.limit)))
        found = EvaluatedAssignment(strategies, inputs, assignment.seconds - assignment.byte_seconds, peak)
        self.found.append(found)
        return found


def worst_moments(timeline: np.ndarray, limit: int) -> list[int]:
    """Of each stretch of moments over the limit the first worst one; of the worst stretches, if there are very many."""
    over = np.flatnonzero(timeline > limit)
    stretches = np.split(over, np.flatnonzero(np.diff(over) > 1) + 1) if len(over) else []
    worst = [int(one[timeline[one].argmax()]) for one in stretches]
    return sorted(worst, key=lambda moment: (-timeline[moment], moment))[:MOST_MOMENTS]


def with_input_layouts(problem: Problem, found: EvaluatedAssignment) -> Problem:
    """The problem with inputs as they lie in what was found, so that they are not laid anew where time is all."""
    return replace(problem, given={**problem.given, **found.inputs})
