"""Basic propagation: spread along each factor the axes that all tensors of the operator can take.

Also the pieces that the aggressive strategy is made of: which axes the tensors of a column agree on, and what of an
axis a tensor has room for. The algorithm is that of Shardy's BasicFactorPropagation (basic_factor_propagation.cc).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from autoshard.layout.layout import Refs
from autoshard.layout.mesh import AxisRef, Mesh
from autoshard.propagate.projection import FactorMap, TensorFactorShardings

# Called with (factor, axes that were cut off, tensor that has no room for them).
Note = Callable[[int, Refs, int], None]
FactorAxes = list[Refs | None]


class ShardingProjection:
    """The rows of one operator while a step fills them in: `factor_axes[tensor][factor]` starts as the rows' axes."""

    __slots__ = ("factor_map", "rows", "factor_axes", "mesh", "conservative", "note")

    def __init__(
        self,
        factor_map: FactorMap,
        rows: list[TensorFactorShardings],
        mesh: Mesh,
        conservative: bool = False,
        note: Note | None = None,
    ) -> None:
        self.factor_map = factor_map
        self.rows = rows
        self.factor_axes: list[FactorAxes] = [list(row.axes) for row in rows]
        self.mesh = mesh
        # Whether only whole axes may spread.
        self.conservative = conservative
        self.note = note

    def expand(self, tensor: int, factor: int, axes: Refs) -> bool:
        """Split the factor by `axes` if they continue what splits it there; whether that changed anything."""
        own = self.factor_axes[tensor][factor]
        if own is None or not is_strict_prefix(own, axes):
            return False
        self.factor_axes[tensor][factor] = axes
        return True

    def is_piece(self, axis: AxisRef) -> bool:
        return axis.size != self.mesh.sizes[axis.name]


def compatible_major_axes(first: Iterable[Refs | None], second: Iterable[Refs | None], both: bool) -> Refs:
    """The longest compatible major axes of a factor, whatever other factors do with them.

    Each list of axes may continue what the ones before it have; from the first disagreement on, none can.

    Args:
        first, second: the axes in each tensor, None where it lacks the factor: operands and results, or the other
            way round when spreading backward.
        both: whether those of `second` may add axes too, or only shorten.
    """
    result: Refs = ()
    grow = True
    # Written twice: one loop over both lists takes half as long again, and this runs for each factor of each visit.
    for axes in first:
        if axes and axes != result:
            if result:
                result, grow = _merge(result, axes, grow)
            elif grow:
                result = axes
    grow &= both
    for axes in second:
        if axes and axes != result:
            if result:
                result, grow = _merge(result, axes, grow)
            elif grow:
                result = axes
    return result


def _merge(old: Refs, new: Refs, grow: bool) -> tuple[Refs, bool]:
    """What two lists of axes agree on, and whether further lists may add to it."""
    common = min(len(old), len(new))
    for i in range(common):
        mine, other = old[i], new[i]
        if mine == other:
            continue
        if is_prefix(other, mine):
            if len(new) > i + 1:
                return (*old[:i], other), False
            return old, grow
        if is_prefix(mine, other):
            if not grow or len(old) > i + 1:
                return old[: i + 1], False
            return new, grow
        return old[:i], False
    return (new if grow and len(new) > common else old), grow


def is_prefix(axis: AxisRef, other: AxisRef) -> bool:
    """Whether one begins where the other does, on the same axis, and is not longer.

    Shardy does not ask that the longer one is a multiple: "a":(1)2 gives way to "a":(1)3.
    """
    return axis[0] == other[0] and axis[1] == other[1] and axis[2] <= other[2]


def is_strict_prefix(axes: Refs, other: Refs) -> bool:
    """Whether `other` continues `axes`: with more axes, or with a longer piece of the last one."""
    if not axes:
        return bool(other)
    last = len(axes) - 1
    if last >= len(other) or axes == other or axes[:last] != other[:last]:
        return False
    return is_prefix(axes[last], other[last])


def before(axis: AxisRef, other: AxisRef) -> AxisRef | None:
    """The part of `axis` in front of `other`, a piece of the same mesh axis; all of it if they are disjoint.

    None if nothing is left, or if no splitting of the mesh axis has both pieces, disjoint or not.
    """
    if axis == other:
        return None
    pre, start = axis.pre, other.pre
    low, high = (pre, start) if pre < start else (start, pre)
    end, far = (axis.next, other.next) if axis.next < other.next else (other.next, axis.next)
    if end <= high:
        return None if high % end else axis
    if end % high or high % low or far % end or start <= pre:
        return None
    return AxisRef(axis.name, pre, start // pre)


def clear_of(axis: AxisRef, axes: Refs) -> AxisRef | None:
    """The largest prefix of `axis` that overlaps none of `axes`."""
    left: AxisRef | None = axis
    for other in axes:
        if other[0] == axis[0]:
            left = before(left, other)
            if left is None:
                return None
    return left


def clear_of_factors(axis: AxisRef, cells: FactorAxes, row: TensorFactorShardings, factor: int) -> AxisRef | None:
    """The largest prefix of `axis` that no other factor of a tensor uses."""
    left: AxisRef | None = axis
    for other, axes in enumerate(cells):
        if axes and other != factor:
            left = clear_of(left, axes)
            if left is None:
                return None
    for other, axes in row.overflow.items():
        if other != factor:
            left = clear_of(left, axes)
            if left is None:
                return None
    return left


def available_prefix(
    projection: ShardingProjection, tensor: int, factor: int, axis: AxisRef, done: int
) -> AxisRef | None:
    """The largest prefix of `axis` by which a factor of a tensor can be split, behind others of size `done`.

    Replicated and unreduced axes are not to be had. What the factor has already is fine; to have more it must be open
    and without overflow, and the axis must divide it unless it is minor-most in its dim.
    """
    row = projection.rows[tensor]
    if row.reserved:
        left = clear_of(axis, row.reserved)
        if left is None:
            return None
        axis = left
    own = projection.factor_axes[tensor][factor] or ()
    for mine in own:
        if mine[0] == axis[0] and mine.pre <= axis.pre and axis.next <= mine.next:
            return axis
    if not row.closed[factor] and factor not in row.overflow:
        of_tensor = projection.factor_map.tensors[tensor]
        if factor in of_tensor.minor:
            return axis
        size = of_tensor.sizes[factor]
        part = math.gcd(size // done, axis.size)
        if part == axis.size:
            return axis
        if part > 1:
            return AxisRef(axis.name, axis.pre, part)
    return own[-1] if own and is_prefix(own[-1], axis) else None


def trim(projection: ShardingProjection, axes: Refs, left_of: Callable[[AxisRef, int], AxisRef | None]) -> Refs:
    """Cut a list of axes at the first that is not whole in `left_of(axis, size of the axes before it)`."""
    done = 1
    for i, axis in enumerate(axes):
        left = left_of(axis, done)
        if left is None or (projection.conservative and projection.is_piece(left)):
            return axes[:i]
        if left != axis:
            return (*axes[:i], left)
        done *= axis.size
    return axes


def remainder(axes: Refs, taken: Refs) -> Refs:
    """What is left of a list of axes behind `taken`, a prefix of it; a last piece that does not divide is not cut."""
    if not taken or taken[-1] == axes[len(taken) - 1]:
        return axes[len(taken) :]
    whole = axes[len(taken) - 1]
    rest = whole if whole.size % taken[-1].size else whole.split(taken[-1].size)[1]
    return (rest, *axes[len(taken) :])


def spread_basic(projection: ShardingProjection, wanted: dict[int, Refs]) -> set[int]:
    """Spread along each factor what is left of its agreed axes when every tensor has had its say.

    Args:
        wanted: the agreed axes of the factors, in the order of the factors.

    Returns:
        The tensors with more axes than before.
    """
    grown: set[int] = set()
    for factor, axes in wanted.items():
        for tensor in _expanded(projection, factor, axes):
            grown.add(tensor)
    return grown


def _expanded(projection: ShardingProjection, factor: int, wanted: Refs) -> list[int]:
    tensors = range(len(projection.rows))
    vetoes: list[int] = []

    def left_of(axis: AxisRef, done: int) -> AxisRef | None:
        left: AxisRef | None = axis
        for tensor in tensors:
            cells = projection.factor_axes[tensor]
            shorter = clear_of_factors(left, cells, projection.rows[tensor], factor)
            if shorter is not None and cells[factor] is not None:
                shorter = available_prefix(projection, tensor, factor, shorter, done)
            if shorter != left:
                vetoes.append(tensor)
            left = shorter
            if left is None:
                return None
        return left

    axes = trim(projection, wanted, left_of)
    if projection.note is not None:
        for tensor in dict.fromkeys(vetoes):
            projection.note(factor, remainder(wanted, axes), tensor)
    return [tensor for tensor in tensors if projection.expand(tensor, factor, axes)]
