"""Mode "dynamic_programming": MindSpore's eliminations on a graph of costs, with this project's prices.

Vertices are operators with all their strategies, and inputs that nobody fixed with the layouts that they can have (in
MindSpore: identity operators of shared parameters). An edge has what it takes to bring a value from how it is left to
how one user wants it: as in MindSpore each edge pays for itself, so a copy that several users share counts once for
each of them while strategies are chosen (the plan pays for it once). Least under these costs wherever the eliminations
are exact, see `eliminate`; how many were not is told. Where a mesh has too many axes for all strategies, or a flat one
too many devices, neighbouring axes are used as one (`ways.py`); the plan says in which ways.
"""

from __future__ import annotations

import numpy as np

from autoshard.core.strategy import Strategy
from autoshard.cost.prices import Prices
from autoshard.ir.graph import Node
from autoshard.plan.plan import CONFIGURED, PRICED, Cause, Plan
from autoshard.search.algo_parameters import NAMES, SearchParameters, is_elementwise
from autoshard.search.assignment import Draft, Pricing
from autoshard.search.causes import plan_of
from autoshard.search.constraints import asks, permits
from autoshard.search.domains import Menu
from autoshard.search.exact.over_mesh_cuts import tables_of
from autoshard.search.factor_graph import Tables
from autoshard.search.greedy.choose import chooser
from autoshard.search.mesh_cuts import Ways
from autoshard.search.modes.eliminations import CostGraph
from autoshard.search.problem import Problem
from autoshard.search.redistribution_tables import PARTS
from autoshard.search.registry import search_mode
from autoshard.search.rules.spread_constraints import ASKED
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
        PlanError: an operator with regions; an option (`algorithm.py`) that has no such value.
        StrategyError: an annotation that does not fit.
    """
    for node in problem.graph.nodes:
        if node.regions:
            raise PlanError(
                f"search mode {NAME} cannot plan {node.op.name}: {node.label}{where(node.source)} holds operators of "
                "its own; choose another mode, such as 'sharding_propagation'"
            )
    prices, ways = chooser(problem.mesh, problem.hardware).prices, Ways(problem)
    algorithm = SearchParameters.of(problem.options)
    pricing = Pricing(problem, prices)
    best: tuple[Draft, CostGraph] | None = None
    for atoms in ways:
        candidates = None if algorithm == PLAIN else Candidates(algorithm, prices)
        tables = tables_of(problem, atoms, candidates, PARTS)
        costs = cost_graph(tables, algorithm)
        choice = costs.solve()
        draft = Draft(pricing, {node: tables.strategy(node, choice) for node in problem.graph.nodes})
        ways.note(draft.seconds)
        if best is None or draft.seconds < best[0].seconds:
            best = draft, costs
    assert best is not None
    return plan_of(problem, best[0], lambda node: _cause(node, problem), _told(best[1], ways), NAME)


class Candidates:
    """The strategies that an algorithm looks at."""

    def __init__(self, algorithm: SearchParameters, prices: Prices) -> None:
        self.algorithm, self.prices = algorithm, prices

    def __call__(self, node: Node, menu: Menu) -> list[int]:
        rows = [row for row in range(len(menu)) if self.algorithm.admits(node, menu.strategy(row))]
        most = self.algorithm.most
        if most is None or len(rows) <= most:
            return rows
        rows.sort(key=lambda row: self._seconds(node, menu.strategy(row)))
        return [rows[i * len(rows) // most] for i in range(most)]

    def _seconds(self, node: Node, strategy: Strategy) -> float:
        return self.prices.work(node, strategy) + self.prices.completion(node, strategy)


def cost_graph(tables: Tables, algorithm: SearchParameters = PLAIN) -> CostGraph:
    """The graph of costs of a problem's tables, a vertex per variable."""
    own = [costs if len(costs) else np.zeros(size) for costs, size in zip(tables.unary, tables.sizes, strict=True)]
    graph = CostGraph(own)
    for node in tables.graph.nodes:
        if asks(node):
            graph.costs[tables.position[node]] += _forbidden(node, tables)
    for price in tables.prices:
        maker, *users = price.scope
        shared = price.shared
        graph.costs[maker] += shared.base[shared.maker]
        for user, wants, kinds in zip(users, shared.users, shared.kinds, strict=True):
            paid = sum(shared.seconds[:, wants[:, use]] for use in range(wants.shape[1]))
            graph.add_edge(maker, user, np.asarray(paid)[np.ix_(shared.maker, kinds)])
    if algorithm.elementwise_op_strategy_follow:
        _follow(tables, graph)
    return graph


def _follow(tables: Tables, graph: CostGraph) -> None:
    """Elementwise operators take what others leave as it is left."""
    for value, (maker, _) in tables.graph.producers.items():
        for user, operand in tables.graph.users[value] if is_elementwise(maker) else ():
            if is_elementwise(user):
                same = tables.agreement(value, user, operand)
                graph.add_edge(tables.position[maker], tables.position[user], np.where(same, 0.0, UNLIKE))


def _forbidden(node: Node, tables: Tables) -> np.ndarray:
    """[strategies], infinite where a strategy does not keep what a constraint asks."""
    menu = tables.menus[node]
    return np.array([0.0 if permits(node, menu.strategy(row)) else np.inf for row in range(len(menu))])


def _cause(node: Node, problem: Problem) -> Cause:
    if node in problem.configured:
        return Cause(CONFIGURED if node in problem.annotated else ASKED)
    return Cause(PRICED)


def _told(costs: CostGraph, ways: Ways) -> str:
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(costs.counts.items()))
    stars = costs.counts.get("star", 0)
    exact = "each exact" if not stars else f"exact but for {stars} stars"
    on = f" on {ways.told}" if ways.told else ""
    return f"all strategies of all operators{on}; eliminations, {exact}: {counts or 'none'}"
