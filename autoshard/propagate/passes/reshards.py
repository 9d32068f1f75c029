"""Explicit reshards where the shardings of an operation do not fit together.

As in Shardy's pipeline, only few operations get them: calls, concatenations, and products whose result would be split
along its contraction; all others are left to the partitioner (InsertExplicitReshardsPass, enable-full-version=false).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from autoshard.core.rule import REDUCTION
from autoshard.layout.layout import Refs
from autoshard.layout.mesh import Mesh
from autoshard.layout.sharding import Sharding, common_mesh, is_equivalent
from autoshard.ops.control import propagation_barrier
from autoshard.propagate.mutable_ir import MutableModule, MutableValue, Operation
from autoshard.propagate.op_classes import OpClasses
from autoshard.propagate.passes.calls_in import argument_shardings, first_on_mesh
from autoshard.propagate.passes.common_axes import find_common_axes
from autoshard.propagate.passes.edit import insert_after, inside_out, wrapped
from autoshard.propagate.passes.functions import Symbols
from autoshard.propagate.passes.unreduced import (
    has_unreduced,
    reshard_to_sums,
    set_unreduced,
    settle_edges,
    settle_operands,
    settle_reduction,
)
from autoshard.propagate.projection import FactorMap, TensorFactorShardings, factor_map, from_factors, to_factors
from autoshard.propagate.values import get_sharding, set_sharding


def insert_reshards(module: MutableModule) -> None:
    """Move operands and results of calls, concatenations and some products (sdy-insert-explicit-reshards).

    Where something is unreduced, sums begin and end as operations and results ask.

    Raises:
        ShardingError: what is unreduced cannot become what is asked in one step.
    """
    symbols = Symbols(module)
    classes = OpClasses()
    ops = inside_out(module.op)
    sums = has_unreduced(ops)
    fitting: set[Hashable] = set()
    for op in ops:
        if sums and not _insert_reductions(op):
            continue
        name = op.operator.name
        fitted = False
        if name == "Call":
            _fit_call(op, symbols.callee(op))
        elif name == "Concatenate":
            fitted = _fit_concatenation(op, classes)
        elif name == "DotGeneral":
            _fit_product(op, classes, fitting)
        if sums or fitted:
            _insert_result_reductions(op, classes, fitted)


def _insert_reductions(op: Operation) -> bool:
    """Begin and end sums before an operation; returns whether it is still there to be looked at."""
    name = op.operator.name
    if name in ("Return", "Yield", "Module", "Call"):
        return name == "Call"
    if name == "Function":
        end = op.blocks[0].terminator
        for i, asked in enumerate(op.attrs["outputs"]):
            set_unreduced(end, i, asked, behind=False)
    elif op.operator.edges is not None:
        settle_edges(op)
    elif name == "Reshard" and reshard_to_sums(op):
        return False
    else:
        settle_operands(op)
    return True


def _insert_result_reductions(op: Operation, classes: OpClasses, fitted: bool) -> None:
    """Sum up what an operation reduces, if its result is unreduced or all was moved to what its rule asks."""
    known = get_sharding(op.results[0]) if op.results else None
    if known is None or op.operator.name in ("Call", "Function") or op.operator.edges is not None:
        return
    if not known.unreduced and not fitted:
        return
    rule = None if _is_custom(op) else classes.find(op).rule
    if rule is not None:
        settle_reduction(op, rule, known.mesh)


def _is_custom(op: Operation) -> bool:
    """Whether the op has a rule of the user's, which only says how shardings spread."""
    return op.origin is not None and op.origin.given_rule is not None and op.origin.is_custom


# -- calls


def _fit_call(call: Operation, function: Operation) -> None:
    """Move the operands to what is asked of the function's arguments, directly behind where they come from."""
    asked: Sequence[Sharding] = argument_shardings(function)
    if not asked:
        known = first_on_mesh([get_sharding(value) for value in call.operands])
        if known is None:
            return
        asked = [Sharding.closed(known.mesh, value.type.rank, known.mesh_name) for value in call.operands]
    for i, sharding in enumerate(asked):
        set_unreduced(call, i, sharding)
        value = call.operands[i]
        if not is_equivalent(get_sharding(value), sharding, ignore_unreduced=True):
            call.set_operand(i, insert_after(value, wrapped("Reshard", value, sharding)).results[0])


# -- operations with a rule


class _OperationFactors:
    """An operation with a rule, and what splits each factor in its operands and results."""

    def __init__(self, op: Operation, wired: FactorMap, mesh: Mesh, mesh_name: str) -> None:
        self.op, self.factor_map, self.mesh, self.mesh_name = op, wired, mesh, mesh_name
        self.values: list[MutableValue] = [*op.operands, *op.results]
        self.shardings = [get_sharding(value) for value in self.values]
        self.rows = [
            to_factors(tensor, get_sharding(_before_barriers(value)) or self.whole(value))
            for tensor, value in zip(wired.tensors, self.values, strict=True)
        ]

    def whole(self, value: MutableValue) -> Sharding:
        return Sharding.closed(self.mesh, value.type.rank, self.mesh_name)

    def sharding(self, t: int, axes: Sequence[Refs | None]) -> Sharding:
        """The sharding of a tensor whose factors are split by `axes`."""
        before = self.shardings[t] or self.whole(self.values[t])
        moved = before.replace(mesh=self.mesh, mesh_name=self.mesh_name)
        return from_factors(self.factor_map.tensors[t], axes, self.rows[t], moved, self.mesh, self.mesh_name)


def _before_barriers(value: MutableValue) -> MutableValue:
    """What a PropagationBarrier was given: Shardy goes by how that is split, not by how the barrier's result is."""
    while value.defining is not None and value.defining.operator is propagation_barrier:
        value = value.defining.operands[0]
    return value


def _table(op: Operation, classes: OpClasses) -> _OperationFactors | None:
    """None for an operation without a rule of ours, without shardings, or with several meshes or a single device's."""
    if _is_custom(op):
        return None
    rule = classes.find(op).rule
    shardings = [get_sharding(value) for value in (*op.operands, *op.results)]
    found = common_mesh(shardings, ignore_order=True)
    if rule is None or found is None or found[0].is_maximal:
        return None
    return _OperationFactors(op, factor_map(rule), *_most_common(shardings, found))


def _most_common(shardings: Sequence[Sharding | None], default: tuple[Mesh, str]) -> tuple[Mesh, str]:
    """Of meshes that differ in device order alone, the one that most tensors are split on."""
    counts: dict[tuple[Mesh, str], int] = {}
    best, most = default, 0
    for sharding in shardings:
        if sharding is not None and not sharding.is_replicated:
            key = sharding.mesh, sharding.mesh_name
            counts[key] = counts.get(key, 0) + 1
            if counts[key] > most:
                best, most = key, counts[key]
    return best


def _fit_concatenation(op: Operation, classes: OpClasses) -> bool:
    """Let all operands and the result be split alike, and not along the joined dim.

    Returns:
        Whether they may have been split otherwise before.
    """
    result = get_sharding(op.results[0])
    if all(get_sharding(value) == result for value in op.operands):
        return False
    projection = _table(op, classes)
    if projection is None:
        return False
    sizes = [math.prod(value.type.shape) for value in projection.values]
    common = find_common_axes(projection.factor_map.rule, projection.rows, sizes)
    for t, row in enumerate(projection.rows):
        if _differs(row, common) or _on_other_devices(projection, t):
            _move(projection, t, common)
    return True


def _differs(row: TensorFactorShardings, common: Sequence[Refs]) -> bool:
    mine = zip(row.axes, common, strict=True)
    return bool(row.overflow) or any(axes is not None and axes != other for axes, other in mine)


def _on_other_devices(projection: _OperationFactors, t: int) -> bool:
    sharding = projection.shardings[t]
    return sharding is not None and not sharding.is_replicated and sharding.mesh.order != projection.mesh.order


def _move(projection: _OperationFactors, t: int, common: Sequence[Refs]) -> None:
    """An operand is moved before the operation; a result gets the new sharding and is moved back behind it."""
    op, value = projection.op, projection.values[t]
    axes = [None if mine is None else new for mine, new in zip(projection.rows[t].axes, common, strict=True)]
    target = projection.sharding(t, axes)
    assert op.parent is not None
    if t < len(op.operands):
        op.set_operand(t, op.parent.insert(wrapped("Reshard", value, target), op).results[0])
    else:
        _move_back(op, value, target, projection.shardings[t] or projection.whole(value))


def _move_back(op: Operation, value: MutableValue, target: Sharding, before: Sharding) -> None:
    assert op.parent is not None
    reshard = op.parent.insert(wrapped("Reshard", value, before), op.next)
    value.replace_by(reshard.results[0], keep=[reshard])
    set_sharding(value, target)


# -- products


def _fit_product(op: Operation, classes: OpClasses, fitting: set[Hashable]) -> None:
    """Keep the sharding of an operand in the result, where the result asks for the axes of the contraction instead.

    The result is moved afterwards, which is cheaper than moving the operand: it is no larger.

    Args:
        fitting: what products look like that need no move; this one is added if it is so.
    """
    asked = get_sharding(op.results[0])
    given = [get_sharding(_before_barriers(value)) for value in op.operands]
    if asked is None or not any(dim.axes for dim in asked.dims) or given[0] is None:
        return
    like = (
        classes.find(op),
        _is_custom(op),
        *[(value.type.shape, get_sharding(value)) for value in (*op.operands, *op.results)],
        *given,
    )
    if like in fitting:
        return
    projection = _table(op, classes)
    found = None if projection is None else _conflict(projection)
    if projection is None or found is None:
        fitting.add(like)
        return
    factor, kept = found
    axes = list(projection.rows[2].axes)
    axes[factor] = kept
    before = projection.shardings[2]
    assert before is not None
    _move_back(op, op.results[0], projection.sharding(2, axes), before)


def _conflict(projection: _OperationFactors) -> tuple[int, Refs] | None:
    """The only factor that the result splits otherwise than an operand, namely by what splits the contraction.

    Returns:
        The factor, and what splits it in the operand; None if things are not so.
    """
    left, right, result = (row.axes for row in projection.rows)
    elements = [math.prod(value.type.shape) for value in projection.values]
    reduced: Refs = ()
    seen: Refs = ()
    found: tuple[int, Refs] | None = None
    for f, factor in enumerate(projection.factor_map.rule.factors):
        mine, theirs = left[f], right[f]
        axes = (mine if mine is not None else theirs) or ()
        shared = mine is not None and theirs is not None
        if shared and mine != theirs:
            return None
        if factor.kind == REDUCTION:
            reduced += axes
            continue
        if not shared:
            if any(axis.overlaps(other) for axis in axes for other in seen):
                return None
            seen += axes
        if (result[f] or ()) != axes:
            largest = max(elements[:2]) if shared else elements[0 if mine is not None else 1]
            if not axes or found is not None or elements[2] > largest:
                return None
            found = f, axes
    if found is None or not result[found[0]] or result[found[0]] != reduced:
        return None
    return found
