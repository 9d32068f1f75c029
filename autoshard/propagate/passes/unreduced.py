"""Collectives where a partial sum has to begin or to end: between a value and a use that ask different unreduced axes.

A part of Shardy's InsertExplicitReshardsPass (explicit_reshards_util.cc).
"""

from __future__ import annotations

from collections.abc import Iterable

from autoshard.core.rule import REDUCTION, Rule
from autoshard.layout.layout import Refs
from autoshard.layout.mesh import AxisRef, Mesh, merge_refs
from autoshard.layout.sharding import Sharding
from autoshard.ops.control import ARG, OPERAND, ValueLocation
from autoshard.ops.registry import lookup
from autoshard.propagate.mutable_ir import MutableModule, MutableValue, Operation
from autoshard.propagate.passes.edit import insert_after, named, replace_op, wrapped
from autoshard.propagate.projection import factor_map, to_factors
from autoshard.propagate.values import get_sharding, outer_shardings
from autoshard.propagate.views import inside
from autoshard.util.errors import ShardingError


def has_unreduced(ops: Iterable[Operation]) -> bool:
    """Whether a result, an argument of a block or an output of these operations is unreduced."""
    asked: set[Sharding | None] = set()
    for op in ops:
        for value in op.results:
            asked.add(value.sharding)
        for block in op.blocks:
            asked.update([arg.sharding for arg in block.args])
            asked.update(op.attrs.get("outputs", ()))
    return any(sharding is not None and sharding.unreduced for sharding in asked)


def set_unreduced(user: Operation, index: int, target: Sharding | None, behind: bool = True) -> None:
    """Let an operand be unreduced along the axes that `target` says, by collectives behind where it comes from.

    Args:
        behind: False puts them before the user.

    Raises:
        ShardingError: another mesh, or axes along which a sum would have to end and another to begin.
    """
    use = _OperandUse(user, index, behind)
    source = get_sharding(user.operands[index])
    if source is not None and source.unreduced:
        source = _end_sums(use, source, target)
    if source is not None and target is not None:
        _begin_sums(use, source, target)


class _OperandUse:
    """An operand of an operation, and where what changes it goes."""

    def __init__(self, user: Operation, index: int, behind: bool) -> None:
        self.user, self.index, self.behind = user, index, behind

    def put(self, op: Operation) -> None:
        """Let the user use the result of `op`, which uses what the user does."""
        if self.behind:
            insert_after(self.user.operands[self.index], op)
        else:
            assert self.user.parent is not None
            self.user.parent.insert(op, self.user)
        self.user.set_operand(self.index, op.results[0])

    def collective(self, name: str, axes: object, sharding: Sharding) -> None:
        self.put(_collective(name, self.user.operands[self.index], axes, sharding))


def _collective(name: str, value: MutableValue, axes: object, sharding: Sharding) -> Operation:
    op = Operation(lookup(name), (value,), (value.type,), {"axes": axes, "sharding": sharding})
    op.results[0].sharding = sharding
    return op


def _end_sums(use: _OperandUse, source: Sharding, target: Sharding | None) -> Sharding:
    """All-reduce along the unreduced axes that the target does not have; the sharding that the operand has then."""
    kept = target.unreduced if target is not None else ()
    axes = _without(source.unreduced, kept)
    if not axes:
        return source
    if target is not None and target.mesh is not source.mesh:
        raise ShardingError(
            f"cannot sum up a tensor that is unreduced along {_names(source.unreduced)} of mesh {source.mesh_name}: "
            f"what uses it is on mesh {target.mesh_name}"
        )
    if _without(kept, source.unreduced):
        raise ShardingError(
            f"cannot sum up a tensor along {_names(axes)} and make it unreduced along "
            f"{_names(_without(kept, source.unreduced))} in one step; put a reshard between"
        )
    reduced = source.replace(unreduced=kept)
    use.collective("SdyAllReduce", axes, reduced)
    return reduced


def _begin_sums(use: _OperandUse, source: Sharding, target: Sharding) -> None:
    """Make the operand unreduced along the axes that the target has more."""
    more = _without(target.unreduced, source.unreduced)
    if not more:
        return
    parts = [_given_up(dim.axes, kept.axes, more) for dim, kept in zip(source.dims, target.dims, strict=True)]
    split = [axis for part in parts for axis in part]
    # A dim that changes in another way is first as the target has it; then the sum begins.
    dims = [dim if part else kept for dim, kept, part in zip(source.dims, target.dims, parts, strict=True)]
    if any(dim.axes != before.axes for dim, before in zip(dims, source.dims, strict=True)):
        source = target.replace(dims=tuple(dims), unreduced=source.unreduced)
        use.put(wrapped("Reshard", use.user.operands[use.index], source))
    whole = _without(more, tuple(split))
    if whole:
        unreduced = _sorted((*source.unreduced, *whole), source.mesh)
        source = source.replace(unreduced=unreduced, replicated=target.replicated)
        use.collective("ReplicatedToUnreduced", whole, source)
    if split:
        use.collective("ShardedToUnreduced", tuple(parts), target)


def reshard_to_sums(op: Operation) -> bool:
    """Turn a Reshard to more unreduced axes into the collectives that do it; returns whether it was one."""
    source, target = get_sharding(op.operands[0]), op.results[0].sharding
    if source is None or target is None or not _without(target.unreduced, source.unreduced):
        return False
    if source.mesh is not target.mesh or _without(source.unreduced, target.unreduced):
        raise ShardingError(
            f"a reshard cannot end the sum along {_names(source.unreduced)} and begin one along "
            f"{_names(target.unreduced)}, nor change the mesh; put a reshard between"
        )
    _begin_sums(_OperandUse(op, 0, behind=False), source, target)
    replace_op(op, [op.operands[0]])
    return True


def settle_edges(op: Operation) -> None:
    """Do so for all that flows into the data-flow edges of an operation."""
    entering, leaving = outer_shardings(op)
    links = op.links
    for edges, shardings in ((links.leaving, leaving), (links.entering, entering)):
        for edge, sharding in zip(edges, shardings, strict=True):
            crosses_out = edge.crosses and edge.targets[0].kind != ARG
            target = inside(sharding, op.attrs["manual_axes"]) if crosses_out and sharding is not None else sharding
            for location in edge.sources:
                set_unreduced(*_use(op, location), target)


def _use(op: Operation, location: ValueLocation) -> tuple[Operation, int]:
    return (op, location.index) if location.kind == OPERAND else (op.blocks[location.region].terminator, location.index)


def settle_operands(op: Operation) -> None:
    """Sum up the operands along axes that the first result is not unreduced along."""
    if not op.results:
        return
    target = get_sharding(op.results[0])
    for i, value in enumerate(op.operands):
        source = get_sharding(value)
        if source is not None and source.unreduced:
            _end_sums(_OperandUse(op, i, behind=False), source, target)


def settle_reduction(op: Operation, rule: Rule, mesh: Mesh) -> None:
    """Sum up the results along the axes that split what is reduced away."""
    kept = get_sharding(op.results[0])
    unreduced = kept.unreduced if kept is not None else ()
    axes: list[AxisRef] = []
    wired = factor_map(rule)
    rows = [to_factors(tensor, get_sharding(value)) for tensor, value in zip(wired.tensors, op.operands, strict=False)]
    for f, factor in enumerate(rule.factors):
        if factor.kind == REDUCTION:
            found = {row.axes[f] for row in rows if row.axes[f] is not None}
            if len(found) != 1:
                raise ShardingError(
                    f"{op} is to stay unreduced along {_names(unreduced)}, but its operands do not agree on what "
                    f"splits the reduced factor {factor.name}"
                )
            axes += found.pop() or ()
    summed = _sorted(_without(tuple(axes), unreduced), mesh)
    for value in op.results if summed else ():
        assert op.parent is not None and value.sharding is not None
        made = op.parent.insert(_collective("SdyAllReduce", value, summed, value.sharding), op.next)
        value.replace_by(made.results[0], keep=[made])


def cancel_sums(module: MutableModule) -> None:
    """Where a sum ends that has just begun, leave out both: the value before it is used, or gathered."""
    for op in named(module.op, "SdyAllReduce"):
        begun, summed, sharding = op.operands[0].defining, op.attrs["axes"], op.attrs["sharding"]
        name = begun.operator.name if begun is not None else ""
        if begun is None or name not in ("ReplicatedToUnreduced", "ShardedToUnreduced"):
            continue
        axes, value = begun.attrs["axes"], begun.operands[0]
        if name == "ReplicatedToUnreduced" and axes == summed:
            replace_op(op, [value])
        if name == "ShardedToUnreduced" and _sorted((axis for part in axes for axis in part), sharding.mesh) == summed:
            assert op.parent is not None
            replace_op(op, op.parent.insert(_collective("SdyAllGather", value, axes, sharding), op).results)


# -- lists of axes


def _given_up(axes: Refs, kept: Refs, more: Refs) -> Refs:
    """What of the axes of a dim follows those that it keeps, if all of it is to be unreduced; else nothing."""
    rest = _rest(axes, kept)
    return () if rest is None or _without(rest, more) else rest


def _rest(axes: Refs, start: Refs) -> Refs | None:
    """What follows `start` in `axes`; None if they begin otherwise."""
    if len(start) > len(axes):
        return None
    for i, (axis, kept) in enumerate(zip(axes, start, strict=False)):
        if axis != kept:
            is_part = i == len(start) - 1 and kept.prefix_of(axis)
            rest = axis.suffix_without_overlap(kept) if is_part else None
            return None if rest is None else (rest, *axes[i + 1 :])
    return axes[len(start) :]


def _without(axes: Refs, others: Refs) -> Refs:
    """The axes, and parts of axes, that no other overlaps."""
    left = list(axes)
    for other in others:
        parts: list[AxisRef] = []
        for axis in left:
            if axis.overlaps(other):
                pieces = axis.prefix_without_overlap(other), axis.suffix_without_overlap(other)
                parts += [piece for piece in pieces if piece is not None]
            else:
                parts.append(axis)
        left = parts
    return tuple(left)


def _sorted(axes: Iterable[AxisRef], mesh: Mesh) -> Refs:
    return merge_refs(sorted(axes, key=mesh.sort_key))


def _names(axes: Refs) -> str:
    return ", ".join(dict.fromkeys(axis.name for axis in axes))
