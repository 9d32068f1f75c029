"""Lowering of nodes with regions: loops, branches and manual computations become Nests.

A loop's body starts from blocks in the layouts of what it carries, and brings what it yields into them again. What it
captures from outside is brought into the layouts that are wanted inside once, before the loop. A branch brings what it
needs by itself: only then something moves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from autoshard.ir.flow import borders
from autoshard.ir.graph import Node, Region, Value
from autoshard.ir.trips import trips
from autoshard.layout.layout import Layout
from autoshard.partition.program import Nest, NestBody

if TYPE_CHECKING:
    from autoshard.partition.lower import _Lowering
    from autoshard.plan.plan import Plan

LOOPS = ("While",)


def lower_nest(lowering: _Lowering, node: Node) -> None:
    """Append the instruction of a node with regions, and what brings its operands there."""
    strategy = lowering.plan.strategy(node)
    if node.op.name in LOOPS:
        for region in node.regions:
            for value, layout, user in wanted_outside(lowering.plan, node, region):
                lowering.bring(value, layout, user)
    pairs = zip(node.operands, strategy.operand_layouts, strict=True)
    entering = tuple(lowering.bring(value, layout, node) for value, layout in pairs)
    lowering.manual += node.op.name == "ManualComputation"
    bodies = tuple(_body(lowering, node, i) for i in range(len(node.regions)))
    lowering.manual -= node.op.name == "ManualComputation"
    results = tuple(
        lowering.define(value, layout) for value, layout in zip(node.results, strategy.result_layouts, strict=True)
    )
    count = max(1, trips(node, lowering.makers)) if node.op.name in LOOPS else 1
    lowering.instructions.append(Nest(node, entering, results, bodies, lowering.manual > 0, count))
    for value in node.results:
        lowering.settle(value, node)


def _body(lowering: _Lowering, node: Node, place: int) -> NestBody:
    """One region, in a list of instructions and with copies of values of its own."""
    region, border = node.regions[place], borders(node, lowering.plan.strategy(node), place)
    outside, copies = lowering.instructions, lowering.copies
    lowering.instructions, lowering.copies = [], {value: dict(held) for value, held in copies.items()}
    args = tuple(lowering.define(value, layout) for value, layout in zip(region.args, border.args, strict=True))
    for value in region.args:
        lowering.settle(value, node)
    for one in region.nodes:
        lowering.compute(one)
    ends = zip(region.outputs, border.yields, strict=True)
    outputs = tuple(lowering.bring(value, layout, node) for value, layout in ends)
    body = NestBody(args, tuple(lowering.instructions), outputs)
    lowering.instructions, lowering.copies = outside, copies
    return body


def wanted_outside(plan: Plan, node: Node, region: Region) -> Iterator[tuple[Value, Layout, Node]]:
    """What a region uses from outside, at any depth: the value, the layout that it is wanted in, and who wants it."""
    captured = set(region.captured)
    place = node.regions.index(region)
    yield from _uses(plan, region, captured)
    ends = zip(region.outputs, borders(node, plan.strategy(node), place).yields, strict=True)
    yield from ((value, layout, node) for value, layout in ends if value in captured)


def _uses(plan: Plan, region: Region, captured: set[Value]) -> Iterator[tuple[Value, Layout, Node]]:
    for user in region.nodes:
        for value, layout in zip(user.operands, plan.strategy(user).operand_layouts, strict=True):
            if value in captured:
                yield value, layout, user
        for i, inner in enumerate(user.regions):
            yield from _uses(plan, inner, captured)
            ends = zip(inner.outputs, borders(user, plan.strategy(user), i).yields, strict=True)
            yield from ((value, layout, user) for value, layout in ends if value in captured)
