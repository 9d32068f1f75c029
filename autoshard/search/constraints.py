"""What constraints and asked shardings leave open to a search: which layouts and strategies satisfy them.

A closed dim is split by the asked axes and no others; an open one by these first and then by any. Where the asked axes
do not divide a tensor, the part of them that does counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from autoshard.core.strategy import Strategy
from autoshard.ir.graph import Node
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh, merge_refs
from autoshard.layout.sharding import Sharding
from autoshard.layout.spec import Spec
from autoshard.search.rules.strategy_from_shardings import ANY, fitting, strategy_from_shardings

# Operators whose one purpose is that their result lies as asked.
ASKING = ("ShardingConstraint",)


def is_constraint(node: Node) -> bool:
    """Whether the node is a constraint."""
    return node.op.name in ASKING and node.attrs.get("sharding") is not None


def constraint_sharding(node: Node, mesh: Mesh) -> Sharding | None:
    """What a constraint asks of its result on that mesh; None if it is for another one, or on a value that has no dims,
    and of all other nodes.

    Raises:
        ShardingError: a Spec that the mesh cannot express.
    """
    if not is_constraint(node):
        return None
    sharding = node.attrs["sharding"]
    if not isinstance(sharding, Sharding):
        spec = Spec.of(sharding, f"the constraint {node.label}")
        sharding = spec.on(mesh, node.result_types[0].rank, "mesh", what=f"the constraint {node.label}")
    return sharding if sharding.mesh is mesh and sharding.dims else None


def dividing_layout(asked: Sharding, shape: Sequence[int]) -> Layout:
    """The layout that is asked, as far as it divides the shape, with nothing unreduced."""
    return Layout(asked.mesh, [fitting(size, dim.axes) for dim, size in zip(asked.dims, shape, strict=True)])


@lru_cache(maxsize=1 << 12)
def satisfies(layout: Layout, asked: Sharding) -> bool:
    """Whether a tensor in that layout lies as asked."""
    for refs, dim in zip(layout.dims, asked.dims, strict=True):
        wanted = merge_refs(dim.axes)
        if dim.closed and refs != wanted or refs[: len(wanted)] != wanted:
            return False
    return not layout.partial


def constraint_strategy(node: Node, asked: Sharding) -> Strategy:
    """The strategy by which a constraint's result lies as asked, and no further split."""
    sizes = (node.operand_types[0].elements, node.result_types[0].elements)
    return strategy_from_shardings(node.rule, asked.mesh, (ANY, asked), sizes)[0]


def permits(node: Node, strategy: Strategy) -> bool:
    """Whether a strategy keeps what the node itself asks: only constraints ask, and those that do not divide yield."""
    asked = constraint_sharding(node, strategy.mesh)
    least = None if asked is None else dividing_layout(asked, node.result_types[0].shape)
    if asked is None or least is None or not satisfies(least, asked):
        return True
    return satisfies(strategy.result_layouts[0].final(), asked)
