"""What a byte of memory costs, where it is given a price: seconds for each byte that lies on a device at some moments.

Lagrangian relaxation (Everett 1963, "Generalized Lagrange multiplier method for solving problems of optimum allocation
of resources"): a plan that is best for prices of the moments at which memory is short is the fastest of those that need
no more then. Prices of moments make prices of values: for as long as a value lies there as it is made, for as long as
copies of it in other layouts may, and for what an operator takes while it runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from autoshard.core.strategy import Strategy
from autoshard.cost.schedule import GraphMoments
from autoshard.ir.graph import Node, Value
from autoshard.partition.composites import call_scratch

FREE = (0.0, ())


@dataclass(frozen=True, eq=False)
class BytePrices:
    """Seconds per byte.

    Attributes:
        of_value: value -> (as it is made; for each of its uses by a node, as a copy that is kept for it since the use
            before).
        of_scratch: node -> what it takes besides while it runs.
    """

    of_value: Mapping[Value, tuple[float, tuple[float, ...]]]
    of_scratch: Mapping[Node, float]

    def scratch(self, node: Node, strategy: Strategy) -> float:
        """Seconds for what a node takes while it runs."""
        price = self.of_scratch.get(node)
        return price * call_scratch(node, strategy) if price else 0.0


NOTHING = BytePrices({}, {})


def byte_prices(schedule: GraphMoments, moments: Mapping[int, float]) -> BytePrices:
    """The prices of values and scratch that follow from prices of moments (seconds per byte).

    Sums over moments are rounded to powers of two, so that values of equal layers mostly cost alike.
    """
    until = np.zeros(schedule.moments + 1)
    for moment, price in moments.items():
        until[moment + 1] += price
    until, least = np.cumsum(until), 1e-6 * min(moments.values(), default=0.0)

    def within(first: int, last: int) -> float:
        price = float(until[last + 1] - until[first]) if first <= last else 0.0
        return 2.0 ** round(math.log2(price)) if price > least else 0.0

    of_value = {value: _of_value(value, schedule, within) for value in schedule.graph.values}
    of_scratch = {node: price for node, runs in schedule.runs.items() if (price := moments.get(runs))}
    return BytePrices({value: one for value, one in of_value.items() if one != FREE}, of_scratch)


def _of_value(
    value: Value, schedule: GraphMoments, within: Callable[[int, int], float]
) -> tuple[float, tuple[float, ...]]:
    uses, source = schedule.uses[value], schedule.graph.producers.get(value)
    end = max((use.end for use in uses), default=-1)
    keeps: dict[tuple[Node, int], float] = {}
    for before, use in zip((None, *uses), uses, strict=False):
        if use.node is not None:
            keeps[use.node, use.place] = within(use.begin if before is None else before.end + 1, use.end)
    asked = tuple([keeps.get(use, 0.0) for use in schedule.graph.users[value]]) if any(keeps.values()) else ()
    if source is None:
        return within(0, schedule.end), asked  # an input stays, or what replaces it does
    if schedule.is_view(source[0]):
        return 0.0, asked
    first = schedule.runs[source[0]]
    return within(first, max(first, end)), asked
