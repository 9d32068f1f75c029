"""Aggressive propagation: each tensor takes what it can, and factors that want the same axes are served in an order.

The axes that come from the largest tensor go first. Tensors are filled in one by one, so that an operator may be left
with shardings that do not fit together; a redistribution then repairs that. The algorithm is that of Shardy's
AggressiveFactorPropagation (aggressive_factor_propagation.cc).
"""

from __future__ import annotations

import math

from autoshard.layout.layout import Refs
from autoshard.layout.mesh import AxisRef, size_of
from autoshard.propagate.basic import (
    ShardingProjection,
    available_prefix,
    clear_of_factors,
    is_prefix,
    is_strict_prefix,
    remainder,
    trim,
)


def source_of(projection: ShardingProjection, factor: int, axes: Refs) -> tuple[int, int]:
    """The tensor that the agreed axes of a factor come from, and its size in elements.

    Among the tensors that have them all it is the largest, and the first of equal ones. The size is the product of the
    factors that the projection has in its row.
    """
    best, size = -1, -1
    operands, results = projection.factor_map.columns[factor]
    for tensor in operands + results:
        own = projection.rows[tensor].axes[factor]
        if own is not None and _has(own, axes):
            elements = math.prod(
                of_factor
                for of_factor, other in zip(projection.factor_map.sizes, projection.rows[tensor].axes, strict=True)
                if other is not None
            )
            if elements > size:
                best, size = tensor, elements
    return best, size


def _has(own: Refs, axes: Refs) -> bool:
    """Whether `axes` is a prefix of `own`, or all of it; there is at least one axis."""
    last = len(axes) - 1
    return len(own) > last and own[:last] == axes[:last] and is_prefix(axes[last], own[last])


def spread_aggressive(projection: ShardingProjection, wanted: dict[int, Refs], pointwise: bool = False) -> set[int]:
    """Let each tensor take, factor by factor in order of preference, what it has room for: results, then operands.

    Args:
        wanted: the agreed axes of the factors.
        pointwise: the operator is elementwise. Then of two factors from tensors of one size the one split more goes
            first, and an operand takes nothing that a result did not: a result that is asked to be whole would gain
            nothing from a sharding that spreads sideways from one operand to another.

    Returns:
        The tensors with more axes than before.
    """
    order = list(wanted)
    if len(order) > 1:
        order.sort(key=lambda factor: _preference(projection, factor, wanted[factor], pointwise))
    grown: set[int] = set()
    operands, tensors = projection.factor_map.operands, len(projection.rows)
    for tensor in (*range(operands, tensors), *range(operands)):
        for factor in order:
            axes = _compatible_major_axes_of_tensor(projection, tensor, factor, wanted[factor])
            if axes and pointwise and tensor < operands:
                axes = _within_results(projection, factor, axes)
            if axes and projection.expand(tensor, factor, axes):
                grown.add(tensor)
    return grown


def _preference(projection: ShardingProjection, factor: int, axes: Refs, pointwise: bool) -> tuple[int, int, int, int]:
    source, size = source_of(projection, factor, axes)
    return -size, -size_of(axes) if pointwise else 0, source, factor


def _compatible_major_axes_of_tensor(projection: ShardingProjection, tensor: int, factor: int, wanted: Refs) -> Refs:
    """What one tensor can take of the agreed axes of a factor; nothing if that is no more than it has."""
    cells = projection.factor_axes[tensor]
    own = cells[factor]
    if own is None or not is_strict_prefix(own, wanted):
        return ()

    def within(axis: AxisRef, done: int) -> AxisRef | None:
        return available_prefix(projection, tensor, factor, axis, done)

    def across(axis: AxisRef, done: int) -> AxisRef | None:
        return clear_of_factors(axis, cells, projection.rows[tensor], factor)

    fitting = trim(projection, wanted, within)
    axes = trim(projection, fitting, across) if is_strict_prefix(own, fitting) else ()
    if projection.note is not None and (axes or own) != wanted:
        projection.note(factor, remainder(wanted, axes or own), tensor)
    return axes


def _within_results(projection: ShardingProjection, factor: int, axes: Refs) -> Refs:
    for tensor in projection.factor_map.columns[factor][1]:
        taken = projection.factor_axes[tensor][factor]
        if taken is not None and is_strict_prefix(taken, axes):
            axes = taken
    return axes
