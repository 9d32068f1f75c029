"""Sharding groups: one number per set of values that have to lie alike, while propagation runs."""

from __future__ import annotations

from autoshard.propagate.mutable_ir import MutableModule, MutableValue, Operation
from autoshard.propagate.passes.edit import named
from autoshard.util.errors import ShardingError


def unify_groups(module: MutableModule) -> None:
    """Make groups that share a value one, number them 0, 1, ... and let each value be in its group once.

    This is sdy-sharding-group-import.

    Raises:
        ShardingError: a group of tensors of several shapes, or inside and outside of a manual computation.
    """
    members = list(named(module.op, "ShardingGroup"))
    _check(members)
    number = _numbers(members)
    seen: set[tuple[int, MutableValue]] = set()
    for op in members:
        op.attrs["group"] = number[op.attrs["group"]]
        member = op.attrs["group"], op.operands[0]
        if member in seen:
            op.erase()
        seen.add(member)


def _check(members: list[Operation]) -> None:
    first: dict[int, Operation] = {}
    for op in members:
        other = first.setdefault(op.attrs["group"], op)
        shapes = other.operands[0].type.shape, op.operands[0].type.shape
        if shapes[0] != shapes[1]:
            raise ShardingError(
                f"the members of sharding group {op.attrs['group']} have the shapes {shapes[0]} and {shapes[1]}; "
                "what should lie alike needs one shape"
            )
        if _manual(other) is not _manual(op):
            raise ShardingError(
                f"sharding group {op.attrs['group']} has members in different manual computations, or inside and "
                "outside of one; there, blocks are not alike"
            )


def _manual(op: Operation) -> Operation | None:
    """The manual computation that an operation is in."""
    parent = op.parent_op
    while parent is not None and parent.operator.name != "ManualComputation":
        parent = parent.parent_op
    return parent


def _numbers(members: list[Operation]) -> dict[int, int]:
    """The new number of each group: groups that are connected by common members get the same one.

    A connected set is led by the first group of the value that connected it last, and the sets are numbered in the
    order in which their leaders came up, value by value, as llvm::EquivalenceClasses has them.
    """
    of_value: dict[MutableValue, list[int]] = {}
    for op in members:
        of_value.setdefault(op.operands[0], []).append(op.attrs["group"])
    if all(len({*groups}) == 1 for groups in of_value.values()):
        return {group: number for number, group in enumerate(dict.fromkeys(group for group, *_ in of_value.values()))}
    from scipy.cluster.hierarchy import DisjointSet  # only here: the import takes long, and few modules join groups

    sets = DisjointSet()
    leaders: dict[int, int] = {}  # by the element that stands for a set in `sets`
    for groups in of_value.values():
        for group in groups:
            sets.add(group)
            first = leaders.setdefault(sets[groups[0]], groups[0])
            sets.merge(groups[0], group)
            leaders[sets[group]] = first
    leader = {group: leaders[sets[group]] for group in sets}
    order = {group: number for number, group in enumerate(group for group in leader if leader[group] == group)}
    return {group: order[leader[group]] for group in leader}


def drop_groups(module: MutableModule) -> None:
    """Erase the groups, which have done their work (sdy-remove-sharding-groups)."""
    for op in named(module.op, "ShardingGroup"):
        op.erase()
