"""Mode "dynamic_programming": MindSpore's eliminations on a graph of costs, with this project's prices.

Vertices are operators with all their strategies, and inputs that nobody fixed with the layouts that they can have (in
MindSpore: identity operators of shared parameters). An edge has what it takes to bring a value from how it is left to
how one user wants it: as in MindSpore each edge pays for itself, so a copy that several users share counts once for
each of them while strategies are chosen (the plan pays for it once). Least under these costs wherever the eliminations
are exact, see `eliminate`; how many were not is told. Where a mesh has too many axes for all strategies, or a flat one
too many devices, neighbouring axes are used as one (`mesh_cuts.py`); the plan says in which ways.
"""

from __future__ import annotations

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
from autoshard.search.exact.over_mesh_cuts import factor_graph_of
from autoshard.search.factor_graph import FactorGraph
from autoshard.search.mesh_cuts import MeshCuts
from autoshard.search.modes.eliminations import CostGraph
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
