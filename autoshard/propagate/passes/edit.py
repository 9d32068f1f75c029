"""What passes do to a mutable module: walk it inside out, copy operations, wrap values, erase what nobody needs.

Order counts (which use is older, where a new operation stands), so all is done in the order in which MLIR does it.
"""

from __future__ import annotations

from autoshard.layout.sharding import Sharding
from autoshard.ops.registry import lookup
from autoshard.propagate.mutable_ir import Block, MutableValue, Operation, find, is_rare


def inside_out(op: Operation) -> list[Operation]:
    """What `op` holds, then `op` itself (post-order), as it stands now."""
    found: list[Operation] = []
    _collect_inside_out(op, found)
    return found


def _collect_inside_out(op: Operation, found: list[Operation]) -> None:
    for block in op.blocks:
        inner = block.first
        while inner is not None:
            if inner.blocks:
                _collect_inside_out(inner, found)
            else:
                found.append(inner)
            inner = inner.next
    found.append(op)


def outside_in(block: Block) -> list[Operation]:
    """The operations of a block, each before what it holds (pre-order), as they stand now."""
    found: list[Operation] = []
    _collect_outside_in(block, found)
    return found


def _collect_outside_in(block: Block, found: list[Operation]) -> None:
    op = block.first
    while op is not None:
        found.append(op)
        for inner in op.blocks:
            _collect_outside_in(inner, found)
        op = op.next


def named(op: Operation, name: str) -> list[Operation]:
    """The operations of that operator inside `op`, inner ones first, as they stand now."""
    operator = lookup(name)
    if is_rare(operator):
        return find(op, lambda one: one is operator)
    return [inner for inner in inside_out(op) if inner.operator is operator]


def clone(op: Operation, values: dict[MutableValue, MutableValue]) -> Operation:
    """A copy of an operation with all it holds, standing nowhere yet.

    Args:
        values: what stands for which value in the copy, others stay; what the copy defines is added.
    """
    copy = _shell(op, values)
    _fill(op, copy, values)
    return copy


def clone_block(block: Block, owner: Operation, values: dict[MutableValue, MutableValue]) -> Block:
    """A copy of a block, inside `owner`."""
    copy = owner.add_block(arg.type for arg in block.args)
    for old, new in zip(block.args, copy.args, strict=True):
        _same(old, new, values)
    pairs = [(op, copy.append(_shell(op, values))) for op in block]
    for old, new in pairs:
        _fill(old, new, values)
    return copy


def _shell(op: Operation, values: dict[MutableValue, MutableValue]) -> Operation:
    copy = Operation(op.operator, (), [value.type for value in op.results], op.attrs)
    copy.origin, copy.devices = op.origin, op.devices
    for old, new in zip(op.results, copy.results, strict=True):
        _same(old, new, values)
    return copy


def _same(old: MutableValue, new: MutableValue, values: dict[MutableValue, MutableValue]) -> None:
    new.sharding, new.origin = old.sharding, old.origin
    values[old] = new


def _fill(op: Operation, copy: Operation, values: dict[MutableValue, MutableValue]) -> None:
    """Operands, and then blocks: the uses inside are newer than the operation's own."""
    for value in op.operands:
        copy.add_operand(values.get(value, value))
    for block in op.blocks:
        clone_block(block, copy, values)


def move_block(block: Block, owner: Operation, terminator: str) -> None:
    """Make a block the body of another operation, whose terminator is of that name."""
    assert block.owner is not owner
    block.owner.blocks.remove(block)
    owner.take_block(block)
    old = block.terminator
    new = Operation(lookup(terminator), old.operands, (), old.attrs)
    block.insert(new, old)
    old.erase()


def insert_after(value: MutableValue, op: Operation) -> Operation:
    """Put `op` directly behind where `value` is defined; for an argument, at the start of its block."""
    defining = value.defining
    if defining is None:
        assert isinstance(value.owner, Block)
        return value.owner.insert(op, value.owner.first)
    assert defining.parent is not None
    return defining.parent.insert(op, defining.next)


def wrapped(name: str, value: MutableValue, sharding: Sharding) -> Operation:
    """An operation of one operand and one result that asks for a sharding: a Reshard, a ShardingConstraint."""
    op = Operation(lookup(name), (value,), (value.type,), {"sharding": sharding})
    op.results[0].sharding = sharding
    return op


def replace_op(op: Operation, values: list[MutableValue]) -> None:
    """Let others use `values` instead of the results of `op`, and erase it."""
    for old, new in zip(op.results, values, strict=True):
        old.replace_by(new)
    op.erase()


def is_used(op: Operation) -> bool:
    results = op.results
    return bool(results[0].uses) if len(results) == 1 else any(value.uses for value in results)


def is_pure(op: Operation) -> bool:
    """Whether it can go when nobody uses its results: neither it nor what it holds has effects."""
    if op.operator.options.effects is False and not op.blocks:
        return True
    if op.operator.has_effects(op.attrs):
        return op.operator.name == "Yield"
    return all(is_pure(inner) for block in op.blocks for inner in block)
