"""Attention over a split sequence: all of one side gathered to each rank, or its blocks going round, by cost.

Both receive the same bytes where keys and values lie as the queries do; a ring holds two blocks of what moves in place
of all, but sends each block as a message of its own. So it is with the gradient: of queries, for which keys and values
move; and of keys and values, for which queries and their slopes move, where else every rank would make terms of all.
`with_rings` looks at every attention of a plan of which one side is split, together with its gradient, for which keys
and values need not be gathered a second time. It takes the rings where they are no slower, or by SLACK of the time at
most: less memory is then worth more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from autoshard.core.strategy import Strategy
from autoshard.cost.blocks import local_nbytes
from autoshard.cost.prices import Prices, prices_for
from autoshard.ir.graph import Node, Value, walk
from autoshard.layout.layout import Layout, Refs
from autoshard.ops.attention_blocks import AUTO, RING
from autoshard.ops.attributes import OperatorPlacement
from autoshard.plan.plan import Cause, Decision, Option, Plan
from autoshard.redistribute.planner import evened, plan_steps
from costmodel import Hardware, format_bytes, format_seconds

SLACK = 0.05


class RingWay(NamedTuple):
    """One way to run an attention: its node and strategy, seconds of the steps before it by what they make, of its own
    and of those after it, and bytes that a rank holds meanwhile."""

    node: Node
    strategy: Strategy
    edges: Mapping[tuple[Value, Layout], float]
    work_seconds: float
    leaving_seconds: float
    held: int

    @property
    def seconds(self) -> float:
        return _together([self])

    def __str__(self) -> str:
        return f"takes {format_seconds(self.seconds)} and holds {format_bytes(self.held)}"


def _together(ways: Sequence[RingWay]) -> float:
    """Seconds of several, in which what two of them read in the same layout is brought there once."""
    edges = {what: seconds for way in ways for what, seconds in way.edges.items()}
    return sum(edges.values()) + sum(way.work_seconds + way.leaving_seconds for way in ways)


def with_rings(plan: Plan, hardware: Hardware) -> Plan:
    """The plan with its attentions as rings where that pays; each one's cause tells what the other way costs."""
    found = [node for node in plan.graph.nodes if node.attrs.get("sequence") == AUTO]
    told = {node: chosen for group in _groups(found, plan, hardware) for node, chosen in _chosen(group, plan)}
    if not told:
        return plan
    nodes = tuple(told[node][0] if node in told else node for node in plan.graph.nodes)
    decisions = dict(told.get(node, (node, decision)) for node, decision in plan.decisions.items())
    layouts = dict(plan.layouts)
    for node, (_, decision) in told.items():
        made = zip(node.results, decision.strategy.result_layouts, strict=True)
        layouts.update((value, layout) for value, layout in made if not _is_pinned(plan, node, value))
    return replace(plan, graph=replace(plan.graph, nodes=nodes), decisions=decisions, layouts=layouts)


Choice = tuple[RingWay, RingWay]
"""An attention as a ring, and as it stands in the plan."""


def _groups(nodes: Sequence[Node], plan: Plan, hardware: Hardware) -> list[list[Choice]]:
    """Those that can be rings, each with the others of the same keys and values."""
    ways, groups = _Ways(plan, prices_for(hardware)), {}
    for node in nodes:
        ring = ways.ring(node, plan.strategy(node))
        if ring is not None:
            choice = ring, ways.way(node, node, plan.strategy(node))
            groups.setdefault(node.operands[-2:], []).append(choice)
    return list(groups.values())


def _chosen(group: Sequence[Choice], plan: Plan) -> Iterator[tuple[Node, tuple[Node, Decision]]]:
    """For each node of a group the node as it is to run, and its decision."""
    rings, gathers = zip(*group, strict=True)
    pays = _together(rings) <= (1 + SLACK) * _together(gathers)
    for ring, gather in group:
        best, other, name = (ring, gather, "gathering keys and values") if pays else (gather, ring, "a ring")
        decision = plan.decisions[gather.node]
        cause = decision.cause
        instead = f"{name}, which {other}; this {best}" + (f"; {cause.instead}" if cause.instead else "")
        option = Option(best.strategy, sum(best.edges.values()), 0.0, best.work_seconds)
        cause = Cause(cause.kind, cause.neighbours, () if pays else cause.lost, instead)
        yield gather.node, (best.node, Decision(option, cause, decision.alternatives))


def _is_pinned(plan: Plan, node: Node, value: Value) -> bool:
    """Whether a result is brought at once into another layout than the one it is made in."""
    return plan.layouts[value] is not plan.strategy(node).result_layouts[node.results.index(value)]


class _Ways:
    """The ways to run the attentions of a plan."""

    def __init__(self, plan: Plan, prices: Prices) -> None:
        self.plan, self.prices = plan, prices
        self.held: dict[tuple[Hashable, Strategy], int] = {}  # by operators alike: layers have the same

    @cached_property
    def readers(self) -> Mapping[Value, Mapping[Layout, None]]:
        """The layouts in which each value is read, or leaves."""
        found: dict[Value, dict[Layout, None]] = defaultdict(dict)
        for user in walk(self.plan.graph.nodes):
            wanted = self.plan.strategy(user).operand_layouts if user.operands else ()
            for value, layout in zip(user.operands, wanted, strict=True):
                found[value][layout] = None
        for value, layout in zip(self.plan.graph.outputs, self.plan.outputs, strict=True):
            found[value][layout] = None
        return found

    def ring(self, node: Node, strategy: Strategy) -> RingWay | None:
        """The same split as a ring, if the queries' axes divide queries and keys and split nothing else."""
        other = replace(node, attrs={**node.attrs, "sequence": RING})
        axes = _ring_axes(other, strategy)
        if axes is None:
            return None
        made = Strategy(other.rule, strategy.mesh, axes)
        factors = zip(made.rule.factors, made.parts, strict=True)
        if not made.exchanges or strategy.carried or any(one.even % parts for one, parts in factors if parts > 1):
            return None
        return self.way(node, other, made)

    def way(self, node: Node, runs: Node, strategy: Strategy) -> RingWay:
        """What it costs to run `node` as the node `runs`, from the layouts in which its operands are left to those in
        which its results are wanted."""
        edges = {
            (value, wanted): self.moved(value, self.plan.layouts[value], wanted)
            for value, wanted in zip(node.operands, strategy.operand_layouts, strict=True)
        }
        leaving = sum(
            self.moved(value, made, wanted)
            for value, made in zip(node.results, strategy.result_layouts, strict=True)
            for wanted in self.wanted(node, value)
        )
        return RingWay(runs, strategy, edges, self.prices.work(runs, strategy), leaving, self.holds(runs, strategy))

    def moved(self, value: Value, before: Layout, after: Layout) -> float:
        of = value.type.with_shape(evened(before, after, value.type.shape))
        return sum(self.prices.step(step, of) for step in plan_steps(before, after, of.shape))

    def wanted(self, node: Node, value: Value) -> tuple[Layout, ...]:
        """The layouts into which a result is brought."""
        if _is_pinned(self.plan, node, value):
            return (self.plan.layouts[value],)
        return tuple(self.readers[value])

    def holds(self, node: Node, strategy: Strategy) -> int:
        key = node.key, strategy
        if key not in self.held:
            self.held[key] = _held(node, strategy)
        return self.held[key]


def _ring_axes(node: Node, strategy: Strategy) -> tuple[Refs, ...] | None:
    """The axes of each factor of the ring's rule: what goes round lies along those of the queries.

    None if the two sides are split along different axes already.
    """
    names = {factor.name: refs for factor, refs in zip(strategy.rule.factors, strategy.axes, strict=True)}
    axes = {factor.name: names[factor.name] for factor in node.rule.factors if not factor.follows}
    for factor in node.rule.factors:
        if factor.follows and names[factor.name]:
            if axes[factor.follows]:
                return None
            axes[factor.follows] = names[factor.name]
    return tuple(axes.get(factor.name, ()) for factor in node.rule.factors)


def _held(node: Node, strategy: Strategy) -> int:
    """Bytes of its operands and results that a rank holds, and of the blocks that are on their way."""
    types = (*node.operand_types, *node.result_types)
    layouts = (*strategy.operand_layouts, *strategy.result_layouts)
    blocks = [local_nbytes(of, layout) for of, layout in zip(types, layouts, strict=True)]
    if not strategy.exchanges:
        return sum(blocks)
    place = OperatorPlacement(node.operand_types, node.result_types, strategy.operand_layouts, strategy.result_layouts)
    ring = node.op.exchanged(node.attrs, place).ring
    return sum(blocks) + sum(blocks[i] for i in (() if ring is None else ring.moving))
