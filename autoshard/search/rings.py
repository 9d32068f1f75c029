"""Attention over a split sequence: all keys and values gathered to each rank, or their blocks going round, by cost.

Both receive the same bytes where keys and values lie as the queries do; a ring holds two blocks of them in place of
all, but sends each block as a message of its own. `with_rings` looks at every attention of a plan whose queries are
split, and takes the ring where it is no slower, or by SLACK of the time at most: less memory is then worth more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from autoshard.ir.graph import Node, Value
from autoshard.layout.layout import Layout
from autoshard.ops.attention import AUTO, RING
from autoshard.plan import Cause, Decision, Option, Plan
from autoshard.redistribute.planner import evened, plan_steps
from autoshard.search.prices import Prices, local_nbytes
from autoshard.strategy import Strategy
from costmodel import Hardware, format_bytes, format_seconds

SLACK = 0.05


class Way(NamedTuple):
    """One way to run an attention: its node and strategy, seconds, and bytes of keys and values that a rank holds."""

    node: Node
    strategy: Strategy
    edge_seconds: float
    work_seconds: float
    held: int

    @property
    def seconds(self) -> float:
        return self.edge_seconds + self.work_seconds

    def __str__(self) -> str:
        return f"takes {format_seconds(self.seconds)} and holds {format_bytes(self.held)} of keys and values"


def with_rings(plan: Plan, hardware: Hardware) -> Plan:
    """The plan with its attentions as rings where that pays; each one's cause tells what the other way costs."""
    prices = Prices(hardware)
    told = {}
    for node in plan.graph.nodes:
        if node.op.name == "Attention" and node.attrs["sequence"] == AUTO:
            found = _chosen(node, plan, prices)
            if found is not None:
                told[node] = found
    if not told:
        return plan
    nodes = tuple(told[node][0] if node in told else node for node in plan.graph.nodes)
    decisions = dict(told.get(node, (node, decision)) for node, decision in plan.decisions.items())
    return replace(plan, graph=replace(plan.graph, nodes=nodes), decisions=decisions)


def _chosen(node: Node, plan: Plan, prices: Prices) -> tuple[Node, Decision] | None:
    """The node as it is to run, and its decision; None where there is no choice."""
    strategy, decision = plan.strategy(node), plan.decisions[node]
    queries = strategy.rule.operands[0][-2]
    if not all(strategy.axes[i] for i in queries) or not queries:
        return None
    ring = _ring(node, strategy, plan.layouts, prices)
    if ring is None:
        return None
    gather = _way(node, strategy, plan.layouts, prices, 1)
    best, other, name = (
        (ring, gather, "gathering keys and values")
        if ring.seconds <= (1 + SLACK) * gather.seconds
        else (gather, ring, "a ring")
    )
    cause = decision.cause
    instead = f"{name}, which {other}; this {best}" + (f"; {cause.instead}" if cause.instead else "")
    option = Option(best.strategy, best.edge_seconds, 0.0, best.work_seconds)
    cause = Cause(cause.kind, cause.neighbours, () if best is ring else cause.lost, instead)
    return best.node, Decision(option, cause, decision.alternatives)


def _ring(node: Node, strategy: Strategy, layouts: Mapping[Value, Layout], prices: Prices) -> Way | None:
    """The same split as a ring, if the queries' axes divide queries and keys and split nothing else."""
    other = replace(node, attrs={**node.attrs, "sequence": RING})
    names = {factor.name: refs for factor, refs in zip(strategy.rule.factors, strategy.axes, strict=True)}
    axes = tuple(() if factor.follows else names[factor.name] for factor in other.rule.factors)
    made = Strategy(other.rule, strategy.mesh, axes)
    factors = zip(made.rule.factors, made.parts, strict=True)
    if not made.exchanges or strategy.carried or any(factor.even % parts for factor, parts in factors if parts > 1):
        return None
    if made.result_layouts != strategy.result_layouts:
        return None
    return _way(other, made, layouts, prices, 2)


def _way(node: Node, strategy: Strategy, layouts: Mapping[Value, Layout], prices: Prices, copies: int) -> Way:
    """What it costs from the layouts in which its operands are left; `copies` of keys and values are held at once."""
    edges = 0.0
    for value, wanted in dict.fromkeys(zip(node.operands, strategy.operand_layouts, strict=True)):
        before = layouts[value]
        of = value.type.with_shape(evened(before, wanted, value.type.shape))
        edges += sum(prices.step(step, of) for step in plan_steps(before, wanted, of.shape))
    sides = zip(node.operand_types[1:], strategy.operand_layouts[1:], strict=True)
    held = copies * sum(local_nbytes(of, layout) for of, layout in sides)
    return Way(node, strategy, edges, prices.work(node, strategy), held)
