"""Conflicts: axes that did not spread, what stood against them, and what was decided.

Each is told by a step of the log, or by one more step of each operator on the shardings that spreading ended with: a
conflict that is `left` still keeps axes from some value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from autoshard.layout.layout import Refs
from autoshard.layout.sharding import Sharding
from autoshard.ops.registry import Operator
from autoshard.propagate.causes import AxisHistory, dim_of, rule_of
from autoshard.propagate.mutable_ir import Operation
from autoshard.propagate.op_classes import identity
from autoshard.propagate.projection import FactorMap, factor_map, to_factors
from autoshard.propagate.record import Holder
from autoshard.propagate.step import PropagationStep, Shardings, StepConflict, flags_of, step_of

# Why axes did not spread.
DISAGREE = "disagree"  # the other side has other axes on the very same dim
TAKEN = "taken"  # they split another dim there already
LARGER, PARTS, ORDER = (
    "larger",
    "parts",
    "order",
)  # the other side came first: a larger tensor, more parts, its position
REPLICATED, UNREDUCED, WAITING = "replicated", "unreduced", "waiting"  # the axes are kept there for something else
CLOSED = "closed"  # the dim is closed there
LATER = "later"  # the dim waits for its priority
STRIDE = "stride"  # what splits the dim already does not divide it: more axes would pick every so-manieth element
UNEVEN = "uneven"  # they do not divide the part of the dim
PIECE = "piece"  # only whole axes may spread
HIDDEN = "hidden"  # they went to another factor first, whose dim cannot show them: a window's place, not its start
RESULT = "result"  # the result did not take them, so that operands of an elementwise operator gain nothing from it


@dataclass(frozen=True)
class Side:
    """Axes of a dim of a value. `dim` is None for axes that no dim has."""

    holder: Holder
    dim: int | None
    axes: Refs


@dataclass(frozen=True, eq=False)
class AxisConflict:
    """Axes that did not spread through an operator.

    Attributes:
        op: the operator.
        wanted: who has the axes.
        into: the dim that did not take them.
        against: what stands against it there: the axes that it has instead, or those of another dim.
        decided: the step itself gave the axes to the other side; otherwise they were there before it.
        why: one of the reasons above.
        number: the step of the log that says so; None if it is one more step at the end.
        left: whether it still is so at the end.
        priority: the user priority of the round.
    """

    op: Operation
    wanted: Side
    into: Side
    against: Side
    decided: bool
    why: str
    number: int | None
    left: bool
    priority: int


def conflicts(history: AxisHistory) -> list[AxisConflict]:
    """All conflicts, in the order in which they came up; of one that came up several times, the last."""
    at_end = {_key(one): one for one in _at_end(history)}
    found: dict[tuple, AxisConflict] = {}
    for conflict in (*_in_log(history, at_end), *at_end.values()):
        found.setdefault(_key(conflict), conflict)
    return list(found.values())


def _key(conflict: AxisConflict) -> tuple:
    return conflict.op, conflict.wanted.holder, conflict.wanted.dim, conflict.into.holder, conflict.into.dim


def _in_log(history: AxisHistory, at_end: dict[tuple, AxisConflict]) -> Iterator[AxisConflict]:
    """What steps decided, and what stood against them at that time only; what is left at the end is told then.

    Axes that waited for their priority are told here in any case: at the end they just are where they waited for.
    """
    for number, event in enumerate(history.log.events):
        if event.step.conflicts:
            scene = _StepLocation(history, event.op, history.holders_of(event), event.step, number)
            for found in event.step.conflicts:
                conflict = scene.conflict(found, left=False)
                left = _key(conflict) in at_end
                if not left or conflict.decided or conflict.why == WAITING:
                    yield scene.conflict(found, left=left)


def _at_end(history: AxisHistory) -> Iterator[AxisConflict]:
    for op, holders, done in _once_more(history):
        if done.conflicts:
            scene = _StepLocation(history, op, holders, done, None)
            for found in done.conflicts:
                yield scene.conflict(found, left=True)


def _once_more(history: AxisHistory) -> Iterator[tuple[Operation, list[Holder], PropagationStep]]:
    """One more step of each op, and of each output of main with the value returned there, on what all ended with."""
    record = history.record
    for op, op_class in record.ops:
        memo = op_class.memo_shared or op_class.memo
        if memo is not None and op_class.used is not None and op.holders:
            shardings: Shardings = tuple(record.end.get(value, value.sharding) for value in op.holders)
            last = shardings[-1]
            if op_class.view is not None and last is not None:
                shardings = (*shardings[:-1], op_class.view[0](last))
            yield op, list(op.holders), step_of(op_class.used, shardings, memo.flags)
    for output, value in record.returned.items():
        shardings = record.end.get(value), record.end.get(output)
        if value.is_tensor:
            yield output.function, [value, output], step_of(identity(value.type.shape), shardings, flags_of())


class _StepLocation:
    """A step and the places that it was on."""

    def __init__(
        self, history: AxisHistory, op: Operation, holders: list[Holder], step: PropagationStep, number: int | None
    ) -> None:
        self.history = history
        self.op = op
        self.holders = holders
        self.factor_map: FactorMap = factor_map(rule_of(step))
        self.shardings: Shardings = step._inputs[1]
        self.number = number

    def conflict(self, found: StepConflict, left: bool) -> AxisConflict:
        priority = 0 if self.number is None else self.history.log.events[self.number].priority
        return AxisConflict(
            self.op,
            self.side(found.tensor, found.factor, found.axes),
            self.side(found.other_tensor, found.factor, ()),
            self.side(found.other_tensor, found.other_factor, found.other_axes),
            found.decided,
            self.why(found),
            self.number,
            left,
            priority,
        )

    def side(self, tensor: int, factor: int | None, axes: Refs) -> Side:
        dim = None if factor is None else dim_of(self.factor_map, tensor, factor)
        return Side(self.holders[tensor], dim, axes)

    def why(self, found: StepConflict) -> str:
        sharding = self.shardings[found.other_tensor]
        if found.other_factor is None:
            return self.reserved_for(found, sharding)
        if found.other_factor != found.factor:
            if not found.other_axes:
                return HIDDEN
            return self.preferred(found) if found.decided else TAKEN
        if found.other_axes and not _continues(found.axes, found.other_axes) and self.has(found):
            return DISAGREE
        return self.no_room(found, sharding)

    def has(self, found: StepConflict) -> bool:
        """Whether the other tensor had these axes on the factor before the step: then both sides ask for something."""
        row = to_factors(self.factor_map.tensors[found.other_tensor], self.shardings[found.other_tensor])
        return bool(row.axes[found.factor]) and found.tensor != found.other_tensor

    def reserved_for(self, found: StepConflict, sharding: Sharding | None) -> str:
        asked = self.history.record.start.get(self.holders[found.other_tensor])
        axis = found.axes[0]
        if sharding is not None and any(axis.overlaps(other) for other in sharding.unreduced):
            return UNREDUCED
        if asked is not None and any(axis.overlaps(other) for other in asked.replicated):
            return REPLICATED
        later = [ref for dim in asked.dims if dim.priority for ref in dim.axes] if asked is not None else []
        return WAITING if any(axis.overlaps(other) for other in later) else REPLICATED

    def preferred(self, found: StepConflict) -> str:
        """Why the other factor was served first."""
        mine, theirs = self.size(found.factor), self.size(found.other_factor or 0)
        if theirs > mine:
            return LARGER
        spread = self.op.operator.spread if isinstance(self.op.operator, Operator) else ""
        more = math.prod(axis.size for axis in found.other_axes) > math.prod(axis.size for axis in found.axes)
        return PARTS if spread == "pointwise" and more else ORDER

    def size(self, factor: int) -> int:
        """Elements of the largest tensor that asks for axes on a factor."""
        sizes = [0]
        for of_tensor, sharding in zip(self.factor_map.tensors, self.shardings, strict=True):
            if to_factors(of_tensor, sharding).axes[factor]:
                sizes.append(math.prod(self.factor_map.sizes[one] for dim in of_tensor.dims for one in dim))
        return max(sizes)

    def no_room(self, found: StepConflict, sharding: Sharding | None) -> str:
        of_tensor = self.factor_map.tensors[found.other_tensor]
        dim = dim_of(self.factor_map, found.other_tensor, found.factor)
        if sharding is not None and dim is not None and sharding.dims[dim].closed:
            asked = self.history.record.start.get(self.holders[found.other_tensor])
            waits = asked is not None and not asked.dims[dim].closed and bool(asked.dims[dim].priority)
            return LATER if waits and self.number is not None else CLOSED
        row = to_factors(of_tensor, sharding)
        if found.factor in row.overflow or row.closed[found.factor]:
            return STRIDE
        own = math.prod(axis.size for axis in row.axes[found.factor] or ())
        if found.factor not in of_tensor.minor and of_tensor.sizes[found.factor] // own % found.axes[0].size:
            return UNEVEN
        mesh = sharding.mesh if sharding is not None else None
        if mesh is not None and found.axes[0].size != mesh.sizes.get(found.axes[0].name):
            return PIECE
        return RESULT


def _continues(axes: Refs, other: Refs) -> bool:
    """Whether one list begins with the other."""
    common = min(len(axes), len(other))
    return axes[:common] == other[:common]
