"""Sharding groups: values that always have one and the same sharding (Shardy's sharding_group_map.cc)."""

from __future__ import annotations

from collections.abc import Iterable

from autoshard.layout.sdy_text import show_sharding
from autoshard.layout.sharding import Sharding
from autoshard.ops.control import sharding_constraint, sharding_group
from autoshard.propagate.edges import insert_after
from autoshard.propagate.mutable_ir import MutableModule, MutableValue, Operation, find
from autoshard.propagate.values import get_sharding, set_sharding
from autoshard.util.errors import GraphError


class ShardingGroups:
    """The groups of a mutable module.

    Attributes:
        members: group -> its values.
        of: value -> all values of its group.
        warnings: what was strange.

    Raises:
        GraphError: a value is in two groups.
    """

    def __init__(self, module: MutableModule) -> None:
        self.members: dict[int, list[MutableValue]] = {}
        self.of: dict[MutableValue, list[MutableValue]] = {}
        self.warnings: list[str] = []
        self._group: dict[MutableValue, int] = {}
        for op in find(module.op, lambda operator: operator is sharding_group):
            self._add(op.operands[0], op.attrs["group"])

    def _add(self, value: MutableValue, group: int) -> None:
        known = self._group.setdefault(value, group)
        if known != group:
            raise GraphError(f"{value.type} is in the sharding groups {known} and {group}; a value can be in one only")
        # A value that is named twice stands here twice: it gets two constraints if the group has to part.
        values = self.members.setdefault(group, [])
        values.append(value)
        self.of[value] = values

    def sync(self) -> None:
        """Give all members of a group the sharding that one of them has.

        If members disagree, each gets an open constraint behind it that takes its place in the group and for its
        users, and a warning is kept.
        """
        for group, values in sorted(self.members.items()):
            known = _known(values)
            if len(known) > 1:
                self.warnings.append(_warning(group, known))
                self._part(values, known[0])
            elif known:
                for value in values:
                    set_sharding(value, known[0])

    def _part(self, values: list[MutableValue], sharding: Sharding) -> None:
        for i, value in enumerate(values):
            plain = Sharding.open(sharding.mesh, len(value.type.shape), sharding.mesh_name)
            made = insert_after(value, Operation(sharding_constraint, [value], [value.type], {"sharding": plain}))
            values[i] = made.results[0]
            values[i].sharding = plain
            value.replace_by(values[i], keep=[made])
            self.of.pop(value, None)
            self.of[values[i]] = values


def _known(values: list[MutableValue]) -> list[Sharding]:
    """The different shardings of the members, those that ask nothing left out; a single member's in any case."""
    shardings: Iterable[Sharding | None] = map(get_sharding, values)
    if len(values) == 1:
        return [sharding for sharding in shardings if sharding is not None]
    return list(
        dict.fromkeys(sharding for sharding in shardings if sharding is not None and not _asks_nothing(sharding))
    )


def _asks_nothing(sharding: Sharding) -> bool:
    """No dim is split or closed; unreduced axes do not count, and are not handed on to others."""
    return not any(dim.axes or dim.closed for dim in sharding.dims)


def _warning(group: int, known: list[Sharding]) -> str:
    return (
        f"the values of sharding group {group} are asked to lie in different ways: "
        f"{' and '.join(map(show_sharding, known))}; they keep these, and the group starts with an open sharding"
    )
