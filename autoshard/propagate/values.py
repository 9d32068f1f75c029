"""Where the sharding of a value is kept, reading and changing it there, and writing it into attributes.

Most values keep their own. The arguments and results that a data-flow edge leads to share one, kept by the
DataFlowEdge op of the edge, or without such an op by the edge's owner (Shardy's getShardableValue).
"""

from __future__ import annotations

from autoshard.layout.sharding import Sharding
from autoshard.ops.control import ARG, RESULT, Edge, ValueLocation, data_flow_edge, function
from autoshard.ops.registry import Operator
from autoshard.propagate.mutable_ir import MutableModule, MutableValue, Operation, fill_open, find
from autoshard.propagate.views import outside


def edge_of_target(value: MutableValue) -> tuple[Operation, Edge] | None:
    """The data-flow edge that leads to the value, and the op that has it."""
    owner = value.owner
    if isinstance(owner, Operation):
        op, location = owner, ValueLocation(RESULT, value.index)
    elif owner.owner.operator.edges is None:
        return None
    else:
        op, location = owner.owner, ValueLocation(ARG, value.index, owner.owner.blocks.index(owner))
    if op.operator.edges is None:
        return None
    edge = op.links.targets.get(location)
    return None if edge is None else (op, edge)


def edge_op(owner: MutableValue) -> Operation | None:
    """The DataFlowEdge op on the owner of an edge; an owner has no other use."""
    if len(owner.uses) != 1:
        return None
    user = next(iter(owner.uses))[0]
    return user if user.operator is data_flow_edge else None


def holder(value: MutableValue) -> MutableValue | None:
    """The value that keeps the sharding of `value`; None for arguments of regions that nothing is known of."""
    owner = value.owner
    if isinstance(owner, Operation) and owner.operator.edges is None:
        return value
    found = edge_of_target(value)
    if found is not None:
        owner = found[0].at(found[1].targets[0])
        edge = edge_op(owner)
        return owner if edge is None else edge.results[0]
    return value if isinstance(owner, Operation) or owner.owner.operator is function else None


def get_sharding(value: MutableValue) -> Sharding | None:
    holders = holder(value)
    return None if holders is None else holders.sharding


def set_sharding(value: MutableValue, sharding: Sharding) -> None:
    """Change the sharding of a value, wherever it is kept; values that cannot have any stay as they are."""
    holders = holder(value)
    if holders is not None:
        set_holder(holders, sharding)


def set_holder(holders: MutableValue, sharding: Sharding) -> None:
    """Change the sharding of a value that keeps its own.

    An operation has shardings for all its results or for none, so the other results get an open one.
    """
    holders.sharding = sharding
    owner = holders.owner
    if isinstance(owner, Operation):
        if len(owner.results) > 1:
            fill_open(owner.results)
    elif len(owner.args) > 1 and owner.owner.operator is not function:
        fill_open(owner.args)


def outer_shardings(op: Operation) -> tuple[tuple[Sharding | None, ...], tuple[Sharding | None, ...]]:
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


def store(module: MutableModule) -> None:
    """Bring the attributes that say how values are sharded up to date: `sharding`, `in_shardings`, `out_shardings`."""
    for op in find(module.op, _has_shardings):
        if "sharding" in op.operator.attributes and op.results and op.results[0].sharding is not None:
            op.attrs["sharding"] = op.results[0].sharding
        store_outer(op)


def _has_shardings(operator: Operator) -> bool:
    return "sharding" in operator.attributes or "in_shardings" in operator.attributes


def store_outer(op: Operation) -> None:
    """The same for what an op with a body asks of its operands and results."""
    if "in_shardings" in op.operator.attributes:
        for name, shardings in zip(("in_shardings", "out_shardings"), outer_shardings(op), strict=True):
            if None not in shardings:
                op.attrs[name] = shardings
