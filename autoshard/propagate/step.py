"""One propagation step of one operator: from the shardings of its operands and results to better ones.

A step is a function of values: equal rules and equal shardings give the same Step, computed once. What a step did and
which wishes stayed unfulfilled is found out when asked for, by running it again with notes taken.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from autoshard.core.rule import Rule
from autoshard.layout.layout import Refs
from autoshard.layout.mesh import Mesh
from autoshard.layout.sharding import Sharding
from autoshard.propagate.aggressive import source_of, spread_aggressive
from autoshard.propagate.basic import (
    ShardingProjection,
    clear_of,
    compatible_major_axes,
    is_strict_prefix,
    remainder,
    spread_basic,
)
from autoshard.propagate.projection import FactorMap, TensorFactorShardings, factor_map, from_factors, to_factors

Shardings = tuple[Sharding | None, ...]


class Direction(enum.IntFlag):
    """Which way shardings may spread through an operator; from operand to operand goes with forward."""

    NONE = 0
    FORWARD = 1
    BACKWARD = 2
    BOTH = 3


NONE, FORWARD, BACKWARD, BOTH = Direction.NONE, Direction.FORWARD, Direction.BACKWARD, Direction.BOTH
# The other bits of a step's flags.
_PASS_ONLY, _BASIC, _CONSERVATIVE, _POINTWISE = 4, 8, 16, 32
# Operators of plain numbers are quicker than those of flags.
_BACKWARD, _BOTH = 2, 3


@dataclass(frozen=True)
class AddedAxes:
    """Axes that a step added to a factor of a tensor, and the tensor whose sharding they came from."""

    tensor: int
    factor: int
    axes: Refs
    source: int


@dataclass(frozen=True)
class StepConflict:
    """Axes that did not spread along a factor, and what stood against them.

    Attributes:
        factor, axes, tensor: the factor, the axes that were not taken, the tensor whose sharding asked for them.
        other_tensor: the tensor that took something else, or nothing.
        other_factor: the factor that has the axes there. The same factor: its dims disagree, or it is closed there or
            has no room. None: the axes are kept whole or unreduced there.
        other_axes: what `other_tensor` has, of that factor or of the axes that it keeps. Nothing: the other factor came
            first, and its dim cannot show these axes.
        decided: the step itself gave the axes to the other side; otherwise both sides stay as they were.
    """

    factor: int
    axes: Refs
    tensor: int
    other_factor: int | None
    other_tensor: int
    other_axes: Refs
    decided: bool


class PropagationStep:
    """What one step changes.

    Attributes:
        changes: (tensor index, new sharding), operands before results; empty if nothing changes.
    """

    __slots__ = ("changes", "_inputs", "__dict__")

    def __init__(self, changes: tuple[tuple[int, Sharding], ...], inputs: tuple[Rule, Shardings, int]) -> None:
        self.changes = changes
        self._inputs = inputs

    def __repr__(self) -> str:
        return f"Step({self.changes})"

    @property
    def added(self) -> tuple[AddedAxes, ...]:
        """The axes that were added, tensor by tensor."""
        return self._explained[0]

    @property
    def conflicts(self) -> tuple[StepConflict, ...]:
        """The conflicts that the step decided or left."""
        return self._explained[1]

    @cached_property
    def _explained(self) -> tuple[tuple[AddedAxes, ...], tuple[StepConflict, ...]]:
        return _explain(*self._inputs)


def step(
    rule: Rule,
    shardings: Shardings,
    direction: Direction = BOTH,
    *,
    pass_only: bool = False,
    aggressive: bool = True,
    conservative: bool = False,
    pointwise: bool = False,
) -> PropagationStep:
    """Propagate once through an operator.

    Args:
        rule: a completed rule (see `rule_sdy.completed`).
        shardings: per operand, then per result; None where there is none.
        pass_only: only factors that pass through the operator may spread.
        aggressive: decide conflicts between factors; otherwise only what suits all tensors spreads.
        conservative: only whole axes may spread, no pieces of them.
        pointwise: the operator is elementwise, see `spread_aggressive`.
    """
    return step_of(rule, shardings, flags_of(direction, pass_only, aggressive, conservative, pointwise))


def flags_of(
    direction: int = BOTH,
    pass_only: bool = False,
    aggressive: bool = True,
    conservative: bool = False,
    pointwise: bool = False,
) -> int:
    """The arguments of a step as one number, for callers that keep it: `step_of(rule, shardings, flags)`."""
    flags = direction + _PASS_ONLY * pass_only + _CONSERVATIVE * conservative
    return flags + (_POINTWISE * pointwise if aggressive else _BASIC)


@lru_cache(maxsize=1 << 12)
def step_of(rule: Rule, shardings: Shardings, flags: int) -> PropagationStep:
    """As `step`, with the flags from `flags_of`."""
    inputs = (rule, shardings, flags)
    mesh = common_mesh(shardings)
    if mesh is None or not flags & _BOTH:
        return PropagationStep((), inputs)
    of_rule = factor_map(rule)
    rows = _rows(of_rule, shardings)
    wanted = _wanted(of_rule, rows, flags)
    if not wanted:
        return PropagationStep((), inputs)
    projection = ShardingProjection(of_rule, rows, mesh[0], bool(flags & _CONSERVATIVE))
    return PropagationStep(_changes(projection, _spread(projection, wanted, flags), shardings, *mesh), inputs)


def common_mesh(shardings: Sequence[Sharding | None]) -> tuple[Mesh, str] | None:
    """The one mesh with axes that all shardings are on, and the first name it is given; None if there is no such.

    No sharding and the empty mesh go with every mesh. Meshes with another order of devices are other meshes.
    """
    found = name = None
    for sharding in shardings:
        if sharding is None or sharding.mesh is found or sharding.mesh.is_empty:
            continue
        if found is not None or sharding.mesh.is_maximal:
            return None
        found, name = sharding.mesh, sharding.mesh_name
    return None if found is None or name is None else (found, name)


def _rows(of_rule: FactorMap, shardings: Shardings) -> list[TensorFactorShardings]:
    """The projection by a rule. A sharding on the empty mesh holds no axes, so any of them fits in."""
    return [to_factors(tensor, sharding) for tensor, sharding in zip(of_rule.tensors, shardings, strict=True)]


def _wanted(of_rule: FactorMap, rows: list[TensorFactorShardings], flags: int) -> dict[int, Refs]:
    """The agreed axes of the factors along which a tensor could take more than it has."""
    backward, both = flags & _BOTH == _BACKWARD, flags & _BOTH == _BOTH
    wanted: dict[int, Refs] = {}
    for factor in of_rule.spreadable_pass if flags & _PASS_ONLY else of_rule.spreadable:
        operands, results = of_rule.columns[factor]
        first = [rows[tensor].axes[factor] for tensor in operands]
        second = [rows[tensor].axes[factor] for tensor in results]
        axes = compatible_major_axes(second, first, both) if backward else compatible_major_axes(first, second, both)
        if axes and any(own is not None and is_strict_prefix(own, axes) for own in first + second):
            wanted[factor] = axes
    return wanted


def _spread(projection: ShardingProjection, wanted: dict[int, Refs], flags: int) -> set[int]:
    if flags & _BASIC:
        return spread_basic(projection, wanted)
    return spread_aggressive(projection, wanted, bool(flags & _POINTWISE))


def _changes(
    projection: ShardingProjection, grown: set[int], shardings: Shardings, mesh: Mesh, mesh_name: str
) -> tuple[tuple[int, Sharding], ...]:
    """The new shardings of the tensors that have more axes, unless these cannot be said of their dims."""
    changes = []
    for tensor in sorted(grown):
        old = shardings[tensor]
        of_tensor = projection.factor_map.tensors[tensor]
        new = from_factors(of_tensor, projection.factor_axes[tensor], projection.rows[tensor], old, mesh, mesh_name)
        if new is not old and (old is not None or not new.is_replicated):
            changes.append((tensor, new))
    return tuple(changes)


def _explain(rule: Rule, shardings: Shardings, flags: int) -> tuple[tuple[AddedAxes, ...], tuple[StepConflict, ...]]:
    mesh = common_mesh(shardings)
    if mesh is None or not flags & _BOTH:
        return (), ()
    of_rule = factor_map(rule)
    rows = _rows(of_rule, shardings)
    wanted = _wanted(of_rule, rows, flags)
    clashes = _disagreements(of_rule, rows, flags)

    def note(factor: int, axes: Refs, tensor: int) -> None:
        clashes.append(_conflict(projection, wanted[factor], factor, axes, tensor))

    projection = ShardingProjection(of_rule, rows, mesh[0], bool(flags & _CONSERVATIVE), note)
    changes = _changes(projection, _spread(projection, wanted, flags), shardings, *mesh)
    told = [_as_representable(projection, dict(changes), shardings, conflict) for conflict in clashes]
    return _added(projection, wanted, changes), tuple(dict.fromkeys(told))


def _as_representable(
    projection: ShardingProjection, changes: dict[int, Sharding], shardings: Shardings, conflict: StepConflict
) -> StepConflict:
    """A conflict that was decided for a factor that no dim can show so: nothing got the axes."""
    tensor, other = conflict.other_tensor, conflict.other_factor
    if not conflict.decided or other is None:
        return conflict
    row = to_factors(projection.factor_map.tensors[tensor], changes.get(tensor, shardings[tensor]))
    if clear_of(conflict.axes[0], row.axes[other] or ()) != conflict.axes[0]:
        return conflict
    return StepConflict(conflict.factor, conflict.axes, conflict.tensor, other, tensor, (), False)


def _added(
    projection: ShardingProjection, wanted: dict[int, Refs], changes: tuple[tuple[int, Sharding], ...]
) -> tuple[AddedAxes, ...]:
    """What the new shardings have more than the old ones, factor by factor."""
    placed = []
    for tensor, sharding in changes:
        row = to_factors(projection.factor_map.tensors[tensor], sharding)
        for factor, axes in wanted.items():
            old = projection.rows[tensor].axes[factor]
            more = _more(old, row.axes[factor], parts=True)
            idle = _more(old, projection.factor_axes[tensor][factor], parts=False)
            more += tuple(axis for axis in idle if any(axis in dim.axes for dim in sharding.dims))
            if more:
                source, _ = source_of(projection, factor, axes)
                placed.append(AddedAxes(tensor, factor, more, source))
    return tuple(placed)


def _more(old: Refs | None, new: Refs | None, parts: bool) -> Refs:
    """What a factor has more than before.

    A sharding shows the axes that make `parts` of a factor. Axes of size 1 make none, and which of the factors of a dim
    they are of is known only while they spread.
    """
    if old is None or new is None or not is_strict_prefix(old, new):
        return ()
    return tuple(axis for axis in remainder(new, old) if (axis.size > 1) == parts)


def _disagreements(of_rule: FactorMap, rows: list[TensorFactorShardings], flags: int) -> list[StepConflict]:
    """The pairs of tensors whose axes on one factor go different ways, each way named by the first that goes it."""
    clashes = []
    for factor in of_rule.spreadable_pass if flags & _PASS_ONLY else of_rule.spreadable:
        operands, results = of_rule.columns[factor]
        ways: dict[Refs, int] = {}
        for tensor in operands + results:
            axes = rows[tensor].axes[factor]
            if not axes:
                continue
            for other, first in ways.items():
                common = compatible_major_axes((other, axes), (), True)
                if common != other and common != axes:
                    ours, against = remainder(other, common), remainder(axes, common)
                    clashes.append(StepConflict(factor, ours, first, factor, tensor, against, False))
            ways.setdefault(axes, tensor)
    return clashes


def _conflict(projection: ShardingProjection, wanted: Refs, factor: int, axes: Refs, tensor: int) -> StepConflict:
    """Who stands against `axes` of a factor in a tensor that did not take them."""
    source, _ = source_of(projection, factor, wanted)
    row, cells = projection.rows[tensor], projection.factor_axes[tensor]
    for other in range(len(cells)):
        against = (cells[other] or ()) + row.overflow.get(other, ())
        if other != factor and clear_of(axes[0], against) != axes[0]:
            decided = cells[other] != row.axes[other]
            return StepConflict(factor, axes, source, other, tensor, against, decided)
    kept = tuple(ref for ref in row.reserved if clear_of(axes[0], (ref,)) != axes[0])
    if kept:
        return StepConflict(factor, axes, source, None, tensor, kept, False)
    return StepConflict(factor, axes, source, factor, tensor, cells[factor] or (), False)
