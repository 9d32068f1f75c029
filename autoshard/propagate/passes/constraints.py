"""Sharding constraints: what they ask of their inputs, and the reshards that they end as."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from autoshard.layout.sharding import Sharding
from autoshard.ops.registry import lookup
from autoshard.propagate.mutable_ir import MutableModule, MutableValue, Operation, find
from autoshard.propagate.passes.block_positions import BlockPositions
from autoshard.propagate.passes.edit import insert_after, named, wrapped
from autoshard.propagate.values import edge_of_target, edge_op, get_sharding, holder, set_sharding

_CONSTRAINT, _MANUAL = "ShardingConstraint", "ManualComputation"


def apply_constraints(module: MutableModule) -> None:
    """Let the inputs of closed constraints and of manual computations have what these ask.

    An operation before a constraint could otherwise be split further than the constraint allows. And what follows a
    chain of constraints uses its end, not its start. This is sdy-apply-sharding-constraints.
    """
    positions = BlockPositions()
    for op in find(module.op, lambda operator: operator.name in (_CONSTRAINT, _MANUAL)):
        if op.operator.name == _CONSTRAINT:
            _follow_chain(op, positions)
            _apply_constraint(op, positions)
        elif op.operator.name == _MANUAL:
            for i, sharding in enumerate(op.attrs["in_shardings"]):
                _apply(op.operands[i], sharding, partial(_insert_constraint_behind, positions))


def _constraint_sharding(op: Operation) -> Sharding:
    return op.attrs["sharding"]


def _apply_constraint(op: Operation, positions: BlockPositions) -> None:
    def behind(value: MutableValue, _: Sharding) -> Operation:
        assert op.parent is not None
        positions.forget(op.parent)
        op.parent.remove(op)
        return _insert_behind(positions, value, op)

    _apply(op.operands[0], _constraint_sharding(op), behind)


def _insert_constraint_behind(positions: BlockPositions, value: MutableValue, wanted: Sharding) -> Operation:
    return _insert_behind(positions, value, wrapped(_CONSTRAINT, value, wanted))


def _insert_behind(positions: BlockPositions, value: MutableValue, op: Operation) -> Operation:
    insert_after(value, op)
    assert op.parent is not None
    positions.forget(op.parent)
    return op


def _apply(
    value: MutableValue, wanted: Sharding, constraint_behind: Callable[[MutableValue, Sharding], Operation]
) -> None:
    """Let a value have the sharding if it has none.

    Where a data-flow edge leads to the value, its sharding is that of others too: there, what uses it uses the
    constraint behind it instead. Unreduced axes do not spread, so the value has these in any case.
    """
    if not wanted.is_closed or holder(value) is None or get_sharding(value) is not None or _contested(value, wanted):
        return
    if _on_edge(value):
        constraint = constraint_behind(value, wanted)
        value.replace_by(constraint.results[0], keep=[constraint])
        if wanted.unreduced:
            plain = Sharding.open(wanted.mesh, value.type.rank, wanted.mesh_name)
            set_sharding(value, plain.replace(unreduced=wanted.unreduced))
    else:
        set_sharding(value, wanted)


def _on_edge(value: MutableValue) -> bool:
    defining, found = value.defining, edge_of_target(value)
    if defining is not None and defining.operator.name == "DataFlowEdge":
        return True
    return found is not None and edge_op(found[0].at(found[1].targets[0])) is not None


def _contested(value: MutableValue, wanted: Sharding) -> bool:
    """Whether another constraint or manual computation asks something else of the value."""
    for op, index in value.uses:
        if op.operator.name == _CONSTRAINT and _constraint_sharding(op) is not wanted:
            return True
        if op.operator.name == _MANUAL and op.attrs["in_shardings"][index] is not wanted:
            return True
    return False


def _is_constrained(value: MutableValue, but_for: Operation | None = None) -> bool:
    return any(op is not but_for and op.operator.name in (_CONSTRAINT, _MANUAL) for op, _ in value.uses)


def _follow_chain(head: Operation, positions: BlockPositions) -> None:
    """What stands behind the end of a chain of constraints, in the same block, uses the end instead of the start."""
    tail = _end_of_chain(head)
    if tail is None or tail.parent is None:
        return
    value, block = head.operands[0], tail.parent
    for op, index in list(value.users):
        behind = op is not head and op.operator.name != "Return" and op.parent is block and positions.before(tail, op)
        if behind:
            op.set_operand(index, tail.results[0])


def _end_of_chain(head: Operation) -> Operation | None:
    """The last of the constraints that follow each other from `head`; None if there is but one, or others interfere."""
    start = head.operands[0]
    defining = start.defining
    if defining is not None and defining.operator.name == _CONSTRAINT:
        return None
    if get_sharding(start) is not None or _is_constrained(start, but_for=head):
        return None
    tail = head
    while (following := _only_user(tail)) is not None and following.operator.name == _CONSTRAINT:
        tail = following
    return None if tail is head or _is_constrained(tail.results[0]) else tail


def _only_user(op: Operation) -> Operation | None:
    uses = op.results[0].uses
    return next(iter(uses))[0] if len(uses) == 1 else None


def constraints_to_reshards(module: MutableModule) -> None:
    """Turn constraints into reshards: from here on they are only moves of data (sdy-sharding-constraint-to-reshard)."""
    reshard = lookup("Reshard")
    for op in named(module.op, _CONSTRAINT):
        op.become(reshard)
        op.attrs["sharding"] = op.results[0].sharding
