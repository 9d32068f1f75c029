"""Where a node with regions meets them: layouts outside, and what its regions start from and yield.

A loop, a branch or a manual computation computes nothing itself, so its strategy is a `Boundary`: the layouts at its
border. Which places share one layout is told by the operator's data-flow edges, see `ops/control.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from autoshard.core.strategy import Strategy
from autoshard.ir.graph import Node, Value
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh
from autoshard.ops.control import (
    ARG,
    OPERAND,
    RESULT,
    YIELD,
    Edge,
    NodeEdges,
    Sizes,
    ValueLocation,
    links,
    unsplit_rule,
)


@dataclass(frozen=True)
class Boundary(Strategy):
    """The strategy of a node with regions: the layouts of its operands and results. No factor is split by it."""

    entering: tuple[Layout, ...] = ()
    leaving: tuple[Layout, ...] = ()

    @staticmethod
    def of(node: Node, mesh: Mesh, entering: Sequence[Layout], leaving: Sequence[Layout]) -> Boundary:
        """The boundary of a node.

        Args:
            entering: how its operands lie while it runs.
            leaving: how its results are left.
        """
        rule = unsplit_rule(node.operand_types, node.result_types)
        return Boundary(rule, mesh, ((),) * len(rule.factors), (), (), tuple(entering), tuple(leaving))

    @cached_property
    def operand_layouts(self) -> tuple[Layout, ...]:
        return self.entering

    @cached_property
    def result_layouts(self) -> tuple[Layout, ...]:
        return self.leaving


@dataclass(frozen=True)
class Borders:
    """The layouts in which a region gets its arguments, and in which it has to yield."""

    args: tuple[Layout, ...]
    yields: tuple[Layout, ...]


def is_nest(node: Node) -> bool:
    """Whether the node runs regions under a boundary: a loop, a branch or a manual computation."""
    return bool(node.regions) and node.op.edges is not None


def node_links(node: Node) -> NodeEdges:
    """The data-flow edges of a node."""
    return links(node.op, Sizes(len(node.operands), len(node.results), len(node.regions)))


def value_at(node: Node, location: ValueLocation) -> Value:
    """The value at a place of a node."""
    if location.kind == OPERAND:
        return node.operands[location.index]
    if location.kind == RESULT:
        return node.results[location.index]
    region = node.regions[location.region]
    return (region.args if location.kind == ARG else region.outputs)[location.index]


def manual_axes(node: Node) -> tuple[str, ...]:
    """The axes along which the node's body is local; () for all but manual computations."""
    return tuple(node.attrs.get("manual_axes", ())) if is_nest(node) else ()


def borders(node: Node, strategy: Strategy, region: int) -> Borders:
    """How one region of a node begins and ends; what no edge leads from, such as a loop's condition, ends whole."""
    found, manual = node_links(node), manual_axes(node)

    def seen(edge: Edge | None, value: Value) -> Layout:
        if edge is None:
            return Layout.replicated(strategy.mesh, value.type.rank)
        layout = _outer(edge, strategy)
        return inside(layout, manual) if edge.crosses else layout

    body = node.regions[region]
    args = tuple(seen(found.targets.get(ValueLocation(ARG, i, region)), one) for i, one in enumerate(body.args))
    yields = tuple(seen(found.sources.get(ValueLocation(YIELD, i, region)), one) for i, one in enumerate(body.outputs))
    return Borders(args, yields)


def _outer(edge: Edge, strategy: Strategy) -> Layout:
    """The layout that an edge has outside of the regions."""
    result = next((location for location in edge.targets if location.kind == RESULT), None)
    if result is not None:
        return strategy.result_layouts[result.index]
    operand = next(location for location in edge.sources if location.kind == OPERAND)
    return strategy.operand_layouts[operand.index]


def inside(layout: Layout, manual: Collection[str]) -> Layout:
    """The layout without manual axes: how a block along them lies over the other axes."""
    dims = [[ref for ref in refs if ref.name not in manual] for refs in layout.dims]
    return Layout(layout.mesh, dims, [ref for ref in layout.partial if ref.name not in manual], layout.reduction)
