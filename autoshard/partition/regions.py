"""What regions of loops, branches and manual computations use from outside; `lower` makes Nests of these.

A loop's body starts from blocks in the layouts of what it carries, and brings what it yields into them again. What it
captures from outside is brought into the layouts that are wanted inside once, before the loop. A branch brings what it
needs by itself: only then something moves.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.ir.flow import borders
from autoshard.ir.graph import Node, Region, Value
from autoshard.layout.layout import Layout
from autoshard.plan.plan import Plan

LOOPS = ("While",)


def wanted_outside(plan: Plan, node: Node, region: Region) -> Iterator[tuple[Value, Layout, Node]]:
    """What a region uses from outside, at any depth: the value, the layout that it is wanted in, and who wants it."""
    return _uses(plan, node, node.regions.index(region), set(region.captured))


def _uses(plan: Plan, node: Node, index: int, captured: set[Value]) -> Iterator[tuple[Value, Layout, Node]]:
    """Those of the captured values that the region of that index wants."""
    region = node.regions[index]
    for user in region.nodes:
        for value, layout in zip(user.operands, plan.strategy(user).operand_layouts, strict=True):
            if value in captured:
                yield value, layout, user
        for inner in range(len(user.regions)):
            yield from _uses(plan, user, inner, captured)
    ends = zip(region.outputs, borders(node, plan.strategy(node), index).yields, strict=True)
    yield from ((value, layout, node) for value, layout in ends if value in captured)
