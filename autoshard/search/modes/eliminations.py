"""Eliminations on a graph of costs: a vector per vertex, a table per edge; the least sum of one entry of each.

These are the eliminations of MindSpore's dynamic programming search, each where it applies first:
- edge: parallel edges between two vertices become one, their tables added;
- merge, contract: a source with one edge out, or a sink with one edge in, is folded into its neighbour's vector;
- operator: a vertex between two others becomes an edge between them;
- triangle: the same where the two have an edge already, or the vertex has both edges in or both out;
- star: a vertex with more neighbours is decided by itself, as if each neighbour answered as is best for the two.
All are exact but the star (MindSpore lets neighbours forget what they answered, here they know what was decided). So
the sum is least where no star is needed: on chains, trees and all graphs that series and parallel steps reduce.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

MOST_CELLS = 4_000_000
"""The largest table that an elimination may make."""

Recovery = Callable[[dict[int, int]], int]


@dataclass
class CostGraph:
    """Vertices 0, 1, ... with costs [choices], and edges (from, to) with costs [choices of from, choices of to]."""

    costs: list[np.ndarray]
    counts: dict[str, int] = field(default_factory=dict)
    _edges: list[dict[int, np.ndarray]] = field(default_factory=list)
    _into: list[set[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.costs = [np.array(one, dtype=np.float64) for one in self.costs]
        self._edges = [{} for _ in self.costs]
        self._into = [set() for _ in self.costs]

    def add_edge(self, start: int, end: int, costs: np.ndarray) -> None:
        """Add an edge; one that is there already takes its costs."""
        if start == end:
            self.costs[start] += np.diagonal(costs)
            return
        if end in self._edges[start]:
            self._count("edge")
            costs = costs + self._edges[start][end]
        elif start not in self._into[end] and end not in self._into[start]:
            self._into[end].add(start)
        self._edges[start][end], self._edges[end][start] = costs, costs.T

    def _count(self, kind: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def solve(self) -> list[int]:
        """A choice per vertex; of equal ones the first. `counts` tells how many eliminations of each kind it took."""
        recoveries: list[tuple[int, Recovery]] = []
        alive = set(range(len(self.costs)))
        queue = [(len(self._edges[vertex]), vertex) for vertex in alive]
        heapq.heapify(queue)
        while alive:
            vertex = self._next(queue, alive)
            if vertex is None:
                vertex = self._centre(alive)
            near = list(self._edges[vertex])
            recoveries.append((vertex, self._eliminate(vertex, near)))
            alive.discard(vertex)
            for other in near:
                heapq.heappush(queue, (len(self._edges[other]), other))
        choice: dict[int, int] = {}
        for vertex, recovery in reversed(recoveries):
            choice[vertex] = recovery(choice)
        return [choice[vertex] for vertex in range(len(self.costs))]

    def _next(self, queue: list[tuple[int, int]], alive: set[int]) -> int | None:
        """The first vertex that an exact elimination can take; None if there is none."""
        while queue:
            degree, vertex = heapq.heappop(queue)
            if vertex not in alive or degree != len(self._edges[vertex]) or degree > 2:
                continue
            if degree < 2 or self._cells(vertex) <= MOST_CELLS:
                return vertex
        return None

    def _cells(self, vertex: int) -> int:
        one, other = self._edges[vertex]
        return len(self.costs[one]) * len(self.costs[other])

    def _centre(self, alive: set[int]) -> int:
        """The vertex for a star: a source if there is one, with most edges, the first of equal ones."""
        return min(alive, key=lambda vertex: (bool(self._into[vertex]), -len(self._edges[vertex]), vertex))

    def _eliminate(self, vertex: int, near: Sequence[int]) -> Recovery:
        into = len(self._into[vertex])
        if len(near) > 2 or len(near) == 2 and self._cells(vertex) > MOST_CELLS:
            self._count("star")
            return self._star(vertex, near)
        if len(near) == 2:
            self._count("operator" if into == 1 and near[1] not in self._edges[near[0]] else "triangle")
            return self._between(vertex, *near)
        if near:
            self._count("contract" if into else "merge")
            return self._fold(vertex, near[0])
        best = int(np.argmin(self.costs[vertex]))
        return lambda choice: best

    def _remove(self, vertex: int) -> dict[int, np.ndarray]:
        """Take a vertex out; its edges, with its own choices first."""
        edges, self._edges[vertex] = self._edges[vertex], {}
        for other in edges:
            del self._edges[other][vertex]
            self._into[other].discard(vertex)
        return edges

    def _fold(self, vertex: int, other: int) -> Recovery:
        total = self._remove(vertex)[other] + self.costs[vertex][:, None]
        self.costs[other] = self.costs[other] + total.min(axis=0)
        best = total.argmin(axis=0)
        return lambda choice: int(best[choice[other]])

    def _between(self, vertex: int, one: int, other: int) -> Recovery:
        forwards = vertex not in self._into[one]
        edges = self._remove(vertex)
        first, second = edges[one].T + self.costs[vertex], edges[other]
        table = np.stack([(row[:, None] + second).min(axis=0) for row in first])
        self.add_edge(*((one, other, table) if forwards else (other, one, table.T)))

        def recovery(choice: dict[int, int]) -> int:
            return int(np.argmin(first[choice[one]] + second[:, choice[other]]))

        return recovery

    def _star(self, vertex: int, near: Sequence[int]) -> Recovery:
        edges, total = self._remove(vertex), self.costs[vertex].copy()
        for other in near:
            total += (edges[other] + self.costs[other]).min(axis=1)
        best = int(np.argmin(total))
        for other in near:
            self.costs[other] = self.costs[other] + edges[other][best]
        return lambda choice: best
