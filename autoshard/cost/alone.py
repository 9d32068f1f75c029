"""The program of one operator under a strategy: what its blocks compute and exchange, as it is lowered.

Operators that exchange with other ranks, run as their parts, or work on padded blocks run other instructions than one
call on their local blocks; what these cost is read off the instructions themselves.
"""

from __future__ import annotations

from autoshard.core.strategy import Strategy
from autoshard.cost.instructions import Costs, Price
from autoshard.ir.graph import DATA, Graph, Node, Value
from autoshard.partition.lower import lower
from autoshard.plan.plan import CONFIGURED, Cause, Decision, Option, Plan


def price_alone(node: Node, strategy: Strategy, costs: Costs) -> Price:
    """The price of what a rank runs for a node whose operands lie as its strategy wants them."""
    return costs.total(lower(plan_alone(node, strategy)).instructions)


def plan_alone(node: Node, strategy: Strategy) -> Plan:
    """The plan of a graph with one node and inputs of their own, which leaves results as the strategy does."""
    inputs = tuple(Value(of, f"x{i}") for i, of in enumerate(node.operand_types))
    results = tuple(Value(of, f"y{i}") for i, of in enumerate(node.result_types))
    one = Node(node.op, inputs, node.attrs, results, node.name, node.source, (), node.given_rule, traffic=node.traffic)
    graph = Graph(node.label, inputs, (one,), results, (DATA,) * len(inputs))
    layouts = dict(zip((*inputs, *results), (*strategy.operand_layouts, *strategy.result_layouts), strict=True))
    decision = Decision(Option(strategy, 0.0, 0.0, 0.0), Cause(CONFIGURED))
    return Plan(graph, strategy.mesh, {one: decision}, layouts, strategy.result_layouts)
