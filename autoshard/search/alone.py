"""Nothing propagated: what people configured is split, and every rank runs all of every other operator.

It is what propagation is held against: where following the configured operators costs more, it does not pay.
"""

from __future__ import annotations

from autoshard.core.strategy import Strategy, whole
from autoshard.ir.graph import Node
from autoshard.plan.plan import CONFIGURED, PRICED, Cause, Plan
from autoshard.search.asking import asked_of, asks, strategy_of
from autoshard.search.choose import chooser
from autoshard.search.draft import Draft, Pricing
from autoshard.search.finish import plan_of
from autoshard.search.problem import Problem


def unpropagated(problem: Problem, search: str) -> Plan:
    """The plan in which nothing follows from the configured operators; free inputs lie as is best for their users.

    Raises:
        StrategyError: an annotation that does not fit.
    """
    configured = problem.configured
    strategies = {node: configured.get(node) or _alone(node, problem) for node in problem.graph.nodes}
    draft = Draft(Pricing(problem, chooser(problem.mesh, problem.hardware).prices), strategies)

    def cause(node: Node) -> Cause:
        return Cause(CONFIGURED if node in configured else PRICED)

    return plan_of(problem, draft, cause, "nothing propagated: to follow the configured operators costs more", search)


def _alone(node: Node, problem: Problem) -> Strategy:
    """What is asked of a node by a sharding; else all of it on every rank."""
    asked = asked_of(node, problem.mesh) if asks(node) else None
    return whole(node.rule, problem.mesh) if asked is None else strategy_of(node, asked)
