"""Local cost: a node and its Markov blanket, where the node's choices are priced while everything else stays."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from autoshard.ir.graph import Node
from autoshard.layout.layout import Layout
from autoshard.search.assignment import Assignment, Choice, Kept, Use, ValueCost, Wants

WIDER = 1 + 1e-12
"""What sums in another order may differ by."""


class LocalCost:
    """A node of an assignment and all that lies around it: prices the node's choices while everything else stays."""

    def __init__(self, assignment: Assignment, node: Node) -> None:
        self.node, self.pricing, chosen = node, assignment.pricing, assignment.chosen
        self.made: list[tuple] = []
        self.inputs: list[tuple] = []

        def split(users: tuple[Use, ...]) -> tuple[Wants, tuple[int, ...]]:
            """What others want, and as which of its operands the node itself uses the value."""
            others = frozenset([chosen[user].operands[i] for user, i in users if user is not node])
            return others, tuple([i for user, i in users if user is node])

        def made(source: Use | None) -> tuple[Layout | None, int]:
            """How another node leaves the value, or which result of this node it is; -1 where the input itself is."""
            if source is None:
                return None, -1
            if source[0] is node:
                return None, source[1]
            return chosen[source[0]].results[source[1]], -1

        def kept(term: ValueCost) -> tuple[Kept, tuple[tuple[int, float], ...]]:
            """For what others want copies are kept, and for which of the node's own operands."""
            pairs = [(*use, price) for use, price in zip(term.users, term.keeps, strict=True) if price]
            others = tuple([(chosen[user].operands[i], price) for user, i, price in pairs if user is not node])
            return others, tuple([(i, price) for user, i, price in pairs if user is node])

        for term in assignment.pricing.of_node[node]:
            copies = kept(term) if term.keeps else NO_COPIES
            if term.source is not None:
                self.made.append((term, *made(term.source), *split(term.users), copies))
            else:
                ends = tuple([(*made(source), *split(users)) for source, users in term.updates])
                self.inputs.append((term, *split(term.users), ends, copies))

    @cached_property
    def key(self) -> tuple:
        """Equal for equal nodes in equal surroundings."""
        made = [(term.kind, term.times, term.outs, term.kept, term.held, *rest) for term, *rest in self.made]
        inputs = [(term.kind, term.times, term.outs, term.fixed, term.held, *rest) for term, *rest in self.inputs]
        return (self.pricing.class_of[self.node], *made, *inputs)

    def price(self, choice: Choice, limit: float = math.inf) -> float:
        """Seconds of the node's work and its terms with that choice; infinite if that is at least `limit`, which is
        found out without planning any redistribution where a bound tells."""
        around = self._around(choice, limit)
        return math.inf if around is None else self._price(around, limit)

    def cheapest(
        self, choices: Iterable[Choice], count: int = 1, limit: float = math.inf
    ) -> list[tuple[float, Choice]]:
        """The `count` cheapest of the choices that take less than `limit`, with their seconds, cheapest first; those of
        the least bounds are priced first."""
        every = [self._around(choice, limit) for choice in choices]
        best: list[tuple[float, int, Choice]] = []
        for bound, i, around in sorted([(one.bound, i, one) for i, one in enumerate(every) if one is not None]):
            if bound >= limit:
                break
            seconds = self._price(around, limit)
            if seconds < limit:
                best = sorted([*best, (seconds, i, around.choice)], key=lambda one: one[:2])[:count]
                limit = best[-1][0] if len(best) == count else limit
        return [(seconds, choice) for seconds, _, choice in best]

    def _around(self, choice: Choice, limit: float) -> _Around | None:
        """The node's terms with that choice, and bounds of what they cost; None if they come to the limit."""
        pricing, nbytes, total = self.pricing, 0.0, choice.least
        made, inputs, bounds = [], [], []
        for term, left, place, wants, own, copies in self.made:
            if total >= limit:
                return None
            end = term, choice.results[place] if left is None else left, _with(wants, own, choice)
            paid, bound = pricing.byte_cost(term, end[1], _kept(copies, choice)), pricing.computed_cost_bound(*end)
            made.append(end)
            bounds.append(bound)
            nbytes, total = nbytes + paid, total + paid + bound
        for term, wants, own, updates, copies in self.inputs:
            if total >= limit:
                return None
            last = tuple(
                [
                    (choice.results[place] if place >= 0 else left, _with(again, mine, choice))
                    for left, place, again, mine in updates
                ]
            )
            one = term, _with(wants, own, choice), last, _kept(copies, choice)
            bound = pricing.input_cost_bound(*one)
            inputs.append(one)
            bounds.append(bound)
            total += bound
        return _Around(total, choice, nbytes, made, inputs, bounds)

    def _price(self, around: _Around, limit: float) -> float:
        pricing, seconds, missing = self.pricing, around.choice.work + around.nbytes, sum(around.bounds)
        made = (pricing.computed_cost(*one) for one in around.made)
        inputs = (pricing.input_cost(*one)[0] for one in around.inputs)
        for bound, price in zip(around.bounds, itertools.chain(made, inputs), strict=True):
            seconds, missing = seconds + price, missing - bound
            if seconds + missing >= limit * WIDER:
                return math.inf
        return seconds if seconds < limit else math.inf


@dataclass(eq=False, slots=True)
class _Around:
    """A choice, its terms, bounds of what these cost, what its bytes cost, and a bound of all together."""

    bound: float
    choice: Choice
    nbytes: float
    made: list[tuple]
    inputs: list[tuple]
    bounds: list[float]


def _with(wants: Wants, own: tuple[int, ...], choice: Choice) -> Wants:
    return wants.union([choice.operands[i] for i in own]) if own else wants


NO_COPIES: tuple[Kept, tuple[tuple[int, float], ...]] = (), ()


def _kept(copies: tuple[Kept, tuple[tuple[int, float], ...]], choice: Choice) -> Kept:
    others, own = copies
    return (*others, *[(choice.operands[i], price) for i, price in own]) if own else others
