"""What any redistribution must move at least: elements received by the rank that receives most.

Of final values each rank receives what it wants and lacks. Of terms that end, each element takes as many transfers as
there are terms to join and further ranks that want it; shared out evenly over all ranks. Of terms that begin, the
ranks along them share what they want. All is computed from the layouts' digits, symbolic in the mesh size; sizes that
do not divide and pieces that do not fit each other are counted rank by rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import size_of
from autoshard.redistribute.digits import apart, cutter, digits_of

# Ranks that are counted one by one at most.
COUNTED = 1 << 18


def fewest_elements(before: Layout, after: Layout, shape: Sequence[int], counted: bool = True) -> float:
    """Elements that some rank must receive from others at least, for a tensor of global `shape`.

    Exact for final values, and for sums that are combined or scattered everywhere; for other sums and for terms that
    begin it is a bound that not every case reaches. Without `counted` no ranks are counted: the bound of sums is lower
    then, and its time does not depend on the mesh. Pieces of the mesh that neither layout uses are left out: the ranks
    along them do the same work, each for itself.
    """
    same = before.reduction == after.reduction
    ending = apart(before.partial, after.partial if same else ())
    starting = apart(after.partial, before.partial if same else ())
    if ending:
        return _combined(before, after, shape, ending, starting, counted)
    if starting:
        shared = Layout(before.mesh, [apart(refs, starting) for refs in before.dims])
        if any(not _prefix(new, old) for new, old in zip(shared.dims, before.dims, strict=True)):
            return 0.0
        return _lacking(shared, after.final(), shape) / size_of(starting)
    return _lacking(before, after, shape)


def _prefix(refs: Refs, whole: Refs) -> bool:
    """Whether the refs make the major part of the whole."""
    if not refs:
        return True
    last = len(refs) - 1
    return last < len(whole) and refs[:-1] == whole[:last] and refs[-1].prefix_of(whole[last])


def _combined(
    before: Layout, after: Layout, shape: Sequence[int], ending: Refs, starting: Refs, counted: bool
) -> float:
    """Terms that end: each element joins n terms and goes to k ranks, which takes n + k - 2 transfers at least.

    That is if one of the k holds a term of it; where none does it takes one transfer more.


    The ranks along terms that stay are so many problems side by side; those along terms that begin share the result.
    """
    wanted = math.prod(after.local_shape(shape))
    if starting:
        return wanted / size_of(starting)
    elements = math.prod(shape)
    if not elements:
        return 0.0
    idle = size_of(apart(before.free(), after.used))
    ranks = before.mesh.devices // (size_of(after.partial) * idle)
    wanting = ranks * wanted / elements
    transfers = size_of(ending) + wanting - 1 - (_held(before, after, shape) if counted else 1.0)
    return max(elements * transfers / ranks, float(wanted))


def _held(before: Layout, after: Layout, shape: Sequence[int]) -> float:
    """The share of the elements of which some rank that wants them holds a term, or more than that."""
    mesh = before.mesh
    if mesh.devices > COUNTED or cutter(before, after) is None:
        return 1.0
    alike = size_of(apart(_free(before), tuple(ref for refs in after.dims for ref in refs)))
    held = _overlaps(before, after, shape)[0].sum() / alike
    return min(1.0, float(held) / math.prod(shape))


def _free(layout: Layout) -> Refs:
    """The pieces of the mesh that split no dim."""
    return layout.final().free()


def _lacking(before: Layout, after: Layout, shape: Sequence[int]) -> float:
    """Final values: the elements of its wanted block that some rank lacks."""
    wanted = math.prod(after.local_shape(shape))
    if before.divides(shape) and after.divides(shape) and cutter(before, after) is not None:
        digits = digits_of(before, after)
        if digits is not None:
            return digits.missing * wanted
    if before.mesh.devices > COUNTED:
        return max(0.0, wanted - math.prod(before.local_shape(shape)))
    return float(_counted(before, after, shape))


def _counted(before: Layout, after: Layout, shape: Sequence[int]) -> int:
    """The same by intersecting what each rank holds with what it wants."""
    held, wanted = _overlaps(before, after, shape)
    return int((wanted - held).max())


def _overlaps(before: Layout, after: Layout, shape: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """By rank: how much of its wanted block it holds, and the block's size."""
    places = np.array([before.mesh.position(rank) for rank in range(before.mesh.devices)])
    wanted, held = np.ones_like(places), np.ones_like(places)
    for dim, size in enumerate(shape):
        start, stop = _interval(before, dim, size, places)
        begin, end = _interval(after, dim, size, places)
        wanted *= end - begin
        held *= np.maximum(0, np.minimum(stop, end) - np.maximum(start, begin))
    return held, wanted


def _interval(layout: Layout, dim: int, size: int, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    index = np.zeros_like(places)
    for ref in layout.dims[dim]:
        index = index * ref.size + places // layout.mesh.stride(ref) % ref.size
    local = -(-size // layout.parts[dim])
    start = np.minimum(size, index * local)
    return start, np.minimum(size, start + local)
