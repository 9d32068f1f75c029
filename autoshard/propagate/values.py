"""Where the sharding of a value is kept, reading and changing it there, and writing it into attributes.

Most values keep their own. The arguments and results that a data-flow edge leads to share one, kept by the
DataFlowEdge op of the edge, or without such an op by the edge's owner (Shardy's getShardableValue).
"""

from __future__ import annotations

from autoshard.layout.sharding import Sharding
from autoshard.ops.control import ARG, RESULT, Edge, Spot, data_flow_edge, function
from autoshard.ops.registry import Operator
from autoshard.propagate.views import outside
from autoshard.propagate.work import Op, Val, Work, fill_open, find


def edge_of_target(value: Val) -> tuple[Op, Edge] | None:
    """The data-flow edge that leads to the value, and the op that has it."""
    owner = value.owner
    if isinstance(owner, Op):
        op, spot = owner, Spot(RESULT, value.index)
    elif owner.owner.operator.edges is None:
        return None
    else:
        op, spot = owner.owner, Spot(ARG, value.index, owner.owner.blocks.index(owner))
    if op.operator.edges is None:
        return None
    edge = op.links.targets.get(spot)
    return None if edge is None else (op, edge)


def edge_op(owner: Val) -> Op | None:
    """The DataFlowEdge op on the owner of an edge; an owner has no other use."""
    if len(owner.uses) != 1:
        return None
    user = next(iter(owner.uses))[0]
    return user if user.operator is data_flow_edge else None


def holder(value: Val) -> Val | None:
    """The value that keeps the sharding of `value`; None for arguments of regions that nothing is known of."""
    owner = value.owner
    if isinstance(owner, Op) and owner.operator.edges is None:
        return value
    found = edge_of_target(value)
    if found is not None:
        owner = found[0].at(found[1].targets[0])
        edge = edge_op(owner)
        return owner if edge is None else edge.results[0]
    return value if isinstance(owner, Op) or owner.owner.operator is function else None


def get_sharding(value: Val) -> Sharding | None:
    held = holder(value)
    return None if held is None else held.sharding


def set_sharding(value: Val, sharding: Sharding) -> None:
    """Change the sharding of a value, wherever it is kept; values that cannot have any stay as they are."""
    held = holder(value)
    if held is not None:
        set_held(held, sharding)


def set_held(held: Val, sharding: Sharding) -> None:
    """Change the sharding of a value that keeps its own.

    An operation has shardings for all its results or for none, so the other results get an open one.
    """
    held.sharding = sharding
    owner = held.owner
    if isinstance(owner, Op):
        if len(owner.results) > 1:
            fill_open(owner.results)
    elif len(owner.args) > 1 and owner.owner.operator is not function:
        fill_open(owner.args)


def outer_shardings(op: Op) -> tuple[tuple[Sharding | None, ...], tuple[Sharding | None, ...]]:
    """What is asked of the operands and results of an op with a body, seen from outside it.

    Returns:
        in- and out-shardings, one per edge that enters and leaves.
    """
    entering, leaving = op.links.entering, op.links.leaving
    given = (*(op.attrs.get("in_shardings") or ()), *(None for _ in entering))
    inner = (op.at(edge.targets[0]).sharding for edge in entering)
    return (
        tuple(
            outside(view, before, op.attrs["manual_axes"]) if edge.crosses and view is not None else view
            for edge, before, view in zip(entering, given, inner, strict=False)
        ),
        tuple(op.at(edge.targets[0]).sharding for edge in leaving),
    )


def store(work: Work) -> None:
    """Bring the attributes that say how values are sharded up to date: `sharding`, `in_shardings`, `out_shardings`."""
    for op in find(work.module, _has_shardings):
        if "sharding" in op.operator.attributes and op.results and op.results[0].sharding is not None:
            op.attrs["sharding"] = op.results[0].sharding
        store_outer(op)


def _has_shardings(operator: Operator) -> bool:
    return "sharding" in operator.attributes or "in_shardings" in operator.attributes


def store_outer(op: Op) -> None:
    """The same for what an op with a body asks of its operands and results."""
    if "in_shardings" in op.operator.attributes:
        for name, shardings in zip(("in_shardings", "out_shardings"), outer_shardings(op), strict=True):
            if None not in shardings:
                op.attrs[name] = shardings
