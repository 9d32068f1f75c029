"""Joint moves: all operators around a value change at once to strategies by which it lies in another layout.

Sweeps and chains begin with one operator. Where several read one copy of a value, or make and read what a loop carries,
none gains by changing alone: the copy is paid for as long as one of them wants it. So for each value around which
something is redistributed, a layout that some operator there could use is given to all of them; then their neighbours
answer, and the move is kept up to its best moment, as in a chain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from autoshard.ir.graph import Node, Value
from autoshard.layout.layout import Layout
from autoshard.search.assignment import Choice
from autoshard.search.local.icm import LocalSearch
from autoshard.search.local.local_cost import LocalCost

MOST_LAYOUTS = 3
"""How many layouts that are not in use are tried for one value."""
MOST_TOUCHING = 24
"""Values with more operators around them are left as they are."""

Places = dict[Node, list[tuple[bool, int]]]
"""Nodes that touch a value, each with where: whether among its results, and which one."""


def joint_moves(local_search: LocalSearch, most: int) -> None:
    """Try joint moves around the values for which most is paid, and sweep where one was accepted.

    Args:
        most: how many changes may be tried.
    """
    _Joint(local_search).run(most)


class _Joint:
    def __init__(self, local_search: LocalSearch) -> None:
        self.local_search, self.assignment, self.pricing = local_search, local_search.assignment, local_search.pricing
        self.graph = local_search.pricing.graph
        self.linked = self._linked()

    def run(self, most: int) -> None:
        self.local_search.tries, worth = most, self.local_search.worth
        for places in sorted(self._groups(), key=lambda places: -self._paid(places)):
            if self.local_search.tries <= 0 or self._paid(places) <= worth:
                return
            for layout in self._layouts(places):
                changed = self._move(places, layout)
                if changed:
                    self.local_search.sweep(changed)
                    break

    # -- values that lie alike

    def _linked(self) -> dict[Value, Value]:
        """For each value one that stands for all that lie alike: what updates an input, and what gates pass on."""
        gates = [(node.results[0], node.operands[0]) for node in self.graph.nodes if self._is_gate(node)]
        pairs = [*self.graph.tied.items(), *gates]
        found = dict(pairs)
        if len(found) == len(pairs) and found.keys().isdisjoint(found.values()):
            return {value: found.get(value, value) for value in self.graph.values}
        from scipy.cluster.hierarchy import DisjointSet  # only here: the import takes long, and few graphs have chains

        alike = DisjointSet(self.graph.values)
        for value, into in pairs:
            alike.merge(value, into)
        return {value: alike[value] for value in self.graph.values}

    def _is_gate(self, node: Node) -> bool:
        """Whether a node only passes a value on, at no cost: into a loop, or out of it."""
        return self.pricing.problem.runs.get(node) == 0 and len(node.operands) == len(node.results) == 1

    def _groups(self) -> Iterator[Places]:
        """Per group of values that lie alike, what may change around it, if that is more than one operator."""
        found: dict[Value, Places] = {}
        for node in self.local_search.free:
            for is_result, values in ((False, node.operands), (True, node.results)):
                for i, value in enumerate(values):
                    found.setdefault(self.linked[value], {}).setdefault(node, []).append((is_result, i))
        return (places for places in found.values() if 1 < len(places) <= MOST_TOUCHING)

    def _paid(self, places: Places) -> float:
        """What is paid around a group."""
        terms = dict.fromkeys(term for node in places for term in self.pricing.of_node[node])
        return sum(self.assignment.costs[term] for term in terms)

    # -- moves

    def _layouts(self, places: Places) -> list[Layout]:
        """Layouts in which the value can be used or left by an operator around it: those in use, then those that make
        most parts of fewest pieces of axes, and whole."""
        used = {_at(self.assignment.chosen[node], place): None for node, where in places.items() for place in where}
        found: dict[Layout, None] = {}
        for node, where in places.items():
            if not self._is_gate(node):
                found.update((_at(one, place), None) for one in self.local_search.candidates(node) for place in where)
        fresh = sorted((one for one in found if one not in used), key=_preferred)
        whole = [one for one in fresh[MOST_LAYOUTS:] if not any(one.dims)]
        return [one for one in (*used, *fresh[:MOST_LAYOUTS], *whole) if not one.partial]

    def _move(self, places: Places, layout: Layout) -> list[Node]:
        """Give a layout to the value wherever an operator can take it so; the nodes that an accepted move changed."""
        before: dict[Node, Choice] = {}
        cost = 0.0
        for node, where in places.items():
            now = self.assignment.chosen[node]
            fitting = [one for one in self.local_search.candidates(node) if all(_at(one, at) is layout for at in where)]
            self.local_search.tries -= 1
            if not fitting or now in fitting:
                continue
            local_cost = LocalCost(self.assignment, node)
            ((price, best),) = local_cost.cheapest(fitting)
            cost += price - local_cost.price(now)
            before[node] = now
            self.assignment.change(node, best)
        return self.local_search.extend_chain(before, cost) if before else []


def _preferred(layout: Layout) -> tuple[int, int]:
    return -math.prod(layout.parts), sum(map(len, layout.dims))


def _at(choice: Choice, place: tuple[bool, int]) -> Layout:
    is_result, i = place
    return (choice.results if is_result else choice.operands)[i]
