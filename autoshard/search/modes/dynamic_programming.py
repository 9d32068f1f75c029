"""Mode "dynamic_programming": MindSpore's eliminations on a graph of costs, with this project's prices.

Vertices are operators with all their strategies, and inputs that nobody fixed with the layouts that they can have (in
MindSpore: identity operators of shared parameters). An edge has what it takes to bring a value from how it is left to
how one user wants it: as in MindSpore each edge pays for itself, so a copy that several users share counts once for
each of them while strategies are chosen (the plan pays for it once). Least under these costs wherever the eliminations
are exact, see `eliminate`; how many were not is told. Where a mesh has too many axes for all strategies, or a flat one
too many devices, neighbouring axes are used as one (`mesh_cuts.py`); the plan says in which ways.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from autoshard.core.strategy import Strategy
from autoshard.cost.prices import Prices
from autoshard.ir.graph import Node
from autoshard.plan.plan import PRICED, Cause, Plan
from autoshard.search.algo_parameters import NAMES, SearchParameters, is_elementwise
from autoshard.search.assignment import Assignment, Pricing
from autoshard.search.causes import plan_of
from autoshard.search.constraints import is_constraint, permits
from autoshard.search.domains import Domain
from autoshard.search.exact.min_marginals import min_plus
from autoshard.search.exact.over_mesh_cuts import factor_graph_of
from autoshard.search.factor_graph import FactorGraph
from autoshard.search.mesh_cuts import MeshCuts
from autoshard.search.problem import Problem
from autoshard.search.redistribution_tables import PARTS
from autoshard.search.registry import search_mode
from autoshard.util.errors import PlanError
from autoshard.util.errors import at as where

NAME = "dynamic_programming"
PLAIN = SearchParameters()
UNLIKE = 1e6
"""Seconds that stand for what is not to be, where nothing else may be left."""


@search_mode(NAME, options=NAMES)
def dynamic_programming(problem: Problem) -> Plan:
    """The plan of least cost by eliminations.

    Raises:
        PlanError: an operator with regions; an option (`algo_parameters.py`) that has no such value.
        StrategyError: an annotation that does not fit.
    """
    for node in problem.graph.nodes:
        if node.regions:
            raise PlanError(
                f"search mode {NAME} cannot plan {node.op.name}: {node.label}{where(node.source)} holds operators of "
                "its own; choose another mode, such as 'sharding_propagation'"
            )
    algorithm, mesh_cuts = SearchParameters.of(problem.options), MeshCuts(problem, short=True)
    pricing = Pricing(problem, problem.prices)
    best: tuple[Assignment, CostGraph] | None = None
    for units in mesh_cuts:
        candidates = None if algorithm == PLAIN else Candidates(algorithm, problem.prices)
        factor_graph = factor_graph_of(problem, units, candidates, PARTS)
        costs = cost_graph(factor_graph, algorithm)
        choice = costs.solve()
        assignment = Assignment(pricing, {node: factor_graph.strategy(node, choice) for node in problem.graph.nodes})
        mesh_cuts.note(assignment.seconds)
        if best is None or assignment.seconds < best[0].seconds:
            best = assignment, costs
    assert best is not None

    def cause(node: Node) -> Cause:
        return problem.settled_cause(node) if node in problem.configured else Cause(PRICED)

    return plan_of(problem, best[0], cause, _description(best[1], mesh_cuts), NAME)


class Candidates:
    """The strategies that an algorithm looks at."""

    def __init__(self, algorithm: SearchParameters, prices: Prices) -> None:
        self.algorithm, self.prices = algorithm, prices

    def __call__(self, node: Node, menu: Domain) -> list[int]:
        rows = [row for row in range(len(menu)) if self.algorithm.admits(node, menu.strategy(row))]
        most = self.algorithm.most
        if most is None or len(rows) <= most:
            return rows
        rows.sort(key=lambda row: self._seconds(node, menu.strategy(row)))
        return [rows[i * len(rows) // most] for i in range(most)]

    def _seconds(self, node: Node, strategy: Strategy) -> float:
        return self.prices.work(node, strategy) + self.prices.completion(node, strategy)


def cost_graph(factor_graph: FactorGraph, algorithm: SearchParameters = PLAIN) -> CostGraph:
    """The graph of costs of a problem's tables, a vertex per variable."""
    own = [
        costs if len(costs) else np.zeros(size)
        for costs, size in zip(factor_graph.unary, factor_graph.sizes, strict=True)
    ]
    graph = CostGraph(own)
    for node in factor_graph.graph.nodes:
        if is_constraint(node):
            graph.costs[factor_graph.position[node]] += _forbidden(node, factor_graph)
    for factor in factor_graph.factors:
        maker, *users = factor.scope
        multi_layout = factor.multi_layout
        graph.costs[maker] += multi_layout.base[multi_layout.maker]
        for user, wants, kinds in zip(users, multi_layout.users, multi_layout.kinds, strict=True):
            paid = sum(multi_layout.seconds[:, wants[:, use]] for use in range(wants.shape[1]))
            graph.add_edge(maker, user, np.asarray(paid)[np.ix_(multi_layout.maker, kinds)])
    if algorithm.elementwise_op_strategy_follow:
        _follow(factor_graph, graph)
    return graph


def _follow(factor_graph: FactorGraph, graph: CostGraph) -> None:
    """Elementwise operators take what others leave as it is left."""
    for value, (maker, _) in factor_graph.graph.producers.items():
        for user, operand in factor_graph.graph.users[value] if is_elementwise(maker) else ():
            if is_elementwise(user):
                same = factor_graph.agreement(value, user, operand)
                graph.add_edge(factor_graph.position[maker], factor_graph.position[user], np.where(same, 0.0, UNLIKE))


def _forbidden(node: Node, factor_graph: FactorGraph) -> np.ndarray:
    """[strategies], infinite where a strategy does not keep what a constraint asks."""
    menu = factor_graph.menus[node]
    return np.array([0.0 if permits(node, menu.strategy(row)) else np.inf for row in range(len(menu))])


def _description(costs: CostGraph, mesh_cuts: MeshCuts) -> str:
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(costs.counts.items()))
    stars = costs.counts.get("star", 0)
    exact = "each exact" if not stars else f"exact but for {stars} stars"
    on = f" on {mesh_cuts.description}" if mesh_cuts.description else ""
    return f"all strategies of all operators{on}; eliminations, {exact}: {counts or 'none'}"


# Eliminations on a graph of costs: a vector per vertex, a table per edge; the least sum of one entry of each.
#
# These are the eliminations of MindSpore's dynamic programming search, each where it applies first:
# - edge: parallel edges between two vertices become one, their tables added;
# - merge, contract: a source with one edge out, or a sink with one edge in, is folded into its neighbour's vector;
# - operator: a vertex between two others becomes an edge between them;
# - triangle: the same where the two have an edge already, or the vertex has both edges in or both out;
# - star: a vertex with more neighbours is decided by itself, as if each neighbour answered as is best for the two.
# All are exact but the star (MindSpore lets neighbours forget what they answered, here they know what was decided). So
# the sum is least where no star is needed: on chains, trees and all graphs that series and parallel steps reduce.


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
        sources = [vertex for vertex in alive if not self._into[vertex]]
        return min(sources or alive, key=lambda vertex: (-len(self._edges[vertex]), vertex))

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
        table = min_plus(first, second.T)
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
