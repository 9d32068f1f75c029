"""What any redistribution must move at least: elements received by the rank that receives most.

Take one element whose value is joined of m terms, and the groups of ranks that want it: single ranks, or along terms
that begin all that share it. A group lacks the terms that none of its ranks holds. Whichever incomplete group is the
first to have all of them, each term that it lacked has been sent once by then, and each other incomplete group still
receives something: d + g - 1 transfers, for g incomplete groups of which one lacks d terms and none fewer. And each of
the s terms that some group lacks leaves its holders once, to which all but two of the groups add one more: s + g - 2.
(Single ranks that all hold a term: the gossip bound 2m - 2.) The sum over all elements, shared out evenly, is one
bound; what the ranks of a group lack together, shared out among them, is the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autoshard.layout.layout import Layout, Refs, free_refs
from autoshard.layout.mesh import Mesh, size_of
from autoshard.redistribute.positions import cutter, digits_of, uncovered

# Ranks, and ranks times pieces of the tensor, that are counted one by one at most.
COUNTED = 1 << 18
CELLS = 1 << 23


def fewest_elements(
    before: Layout, after: Layout, shape: Sequence[int], counted: bool = True, size: Sequence[int] | None = None
) -> float:
    """Elements that some rank must receive from others at least, for a tensor of global `shape`.

    Exact for final values. Of terms it is what a schedule of single elements would need that is free to balance its
    transfers over all ranks, idle ones included; collectives do not always get there.

    Args:
        counted: False counts no ranks. The bound of terms is lower then, and its time does not depend on the mesh.
        size: what of the shape is there, if both layouts lie in equal blocks of a padded `shape`: padding is not moved.
    """
    even = size is None or tuple(size) == tuple(shape)
    true = tuple(shape if size is None else size)
    if before.partial == after.partial == ():
        return _lacking(before, after, shape, true, even)
    if counted and (geometry := Geometry.of(before, after, shape, true)) is not None:
        return geometry.bound()
    return symbolic_bound(before, after, true)


def symbolic_bound(before: Layout, after: Layout, size: Sequence[int], idle: int = 1) -> float:
    """The bound of terms without a look at who holds what: as if all that is wanted were held as far as can be.

    Args:
        idle: how many ranks do the same each, and take no share of each other's work.
    """
    elements, devices = math.prod(size), before.mesh.devices // idle
    terms, sharing = size_of(before.partial), size_of(after.partial)
    same = before.reduction == after.reduction
    if not elements or not uncovered(before.partial, after.partial if same else ()):
        return 0.0
    if not all(one.can_coexist(other) for one in before.partial for other in after.partial):
        return 0.0  # terms that are cut unlike: a group may hold more of those that it needs
    groups = devices // (sharing * after.split)
    held = terms // size_of(uncovered(before.partial, after.partial)) if sharing > 1 else 1
    wanted = elements / (after.split * sharing)
    return max(elements * max(terms - held + groups - 1, 0) / devices, wanted)


def _lacking(before: Layout, after: Layout, shape: Sequence[int], size: Sequence[int], even: bool) -> float:
    """Final values: the elements of its wanted block that some rank lacks."""
    wanted = math.prod(after.local_shape(shape))
    if even and before.divides(shape) and after.divides(shape) and cutter(before, after) is not None:
        digits = digits_of(before, after)
        if digits is not None:
            return digits.missing * wanted
    if before.mesh.devices > COUNTED:
        return max(0.0, wanted - math.prod(before.local_shape(shape)))
    needed, held = overlaps(before, after, shape, size, grid_positions(before.mesh))
    return float((needed - held).max())


def overlaps(
    before: Layout, after: Layout, shape: Sequence[int], size: Sequence[int], places: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Of the block after, per rank at these grid positions: its elements, and those that the block before has."""
    needed, held = np.ones_like(places), np.ones_like(places)
    for dim, (whole, true) in enumerate(zip(shape, size, strict=True)):
        start, stop = _interval(before, dim, whole, true, places)
        begin, end = _interval(after, dim, whole, true, places)
        needed *= end - begin
        held *= np.maximum(0, np.minimum(stop, end) - np.maximum(start, begin))
    return needed, held


def grid_positions(mesh: Mesh) -> np.ndarray:
    """The grid position of each rank."""
    return np.arange(mesh.devices) if mesh.order is None else np.argsort(np.asarray(mesh.order))


def index_along(mesh: Mesh, places: np.ndarray, refs: Refs) -> np.ndarray:
    """Where ranks at these grid positions stand along the refs together."""
    index = np.zeros_like(places)
    for ref in refs:
        index = index * ref.size + places // mesh.stride(ref) % ref.size
    return index


def _interval(layout: Layout, dim: int, whole: int, true: int, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    local = -(-whole // layout.parts[dim])
    start = np.minimum(true, index_along(layout.mesh, places, layout.dims[dim]) * local)
    return start, np.minimum(true, start + local)


class Geometry(NamedTuple):
    """Which ranks hold and want which cells: the boxes into which the blocks of both layouts cut the tensor.

    Attributes:
        holds: [ranks, cells]. wants: [groups, cells]. sizes: elements of each cell.
        group: the group of each rank, of those that agree on all but the terms after. term: which term it holds.
        sharing: ranks of a group.
    """

    holds: np.ndarray
    wants: np.ndarray
    sizes: np.ndarray
    group: np.ndarray
    term: np.ndarray
    terms: int
    sharing: int
    alike: bool

    @staticmethod
    def of(before: Layout, after: Layout, shape: Sequence[int], size: Sequence[int]) -> Geometry | None:
        """None where there are too many to count."""
        mesh = before.mesh
        marks = [cell_marks(before, after, dim, shape[dim], size[dim]) for dim in range(len(shape))]
        places, count = grid_positions(mesh), mesh.devices
        if count * math.prod(max(1, len(one) - 1) for one in marks) > CELLS:
            return None
        holds, wants = np.ones((count, 1), bool), np.ones((count, 1), bool)
        sizes = np.ones(1)
        for dim, found in enumerate(marks):
            starts, lengths = np.array(found[:-1], dtype=np.int64), np.diff(found)
            for layout, table in ((before, "holds"), (after, "wants")):
                local = max(1, -(-shape[dim] // layout.parts[dim]))
                inside = starts[None] // local == index_along(mesh, places, layout.dims[dim])[:, None]
                if table == "holds":
                    holds = (holds[:, :, None] & inside[:, None]).reshape(count, -1)
                else:
                    wants = (wants[:, :, None] & inside[:, None]).reshape(count, -1)
            sizes = (sizes[:, None] * lengths).reshape(-1)
        sharing = size_of(after.partial)
        group = index_along(mesh, places, free_refs(mesh, after.partial))
        wanted = np.zeros((count // sharing, wants.shape[1]), bool)
        wanted[group] = wants
        alike = not (before.partial and after.partial) or before.reduction == after.reduction
        term = index_along(mesh, places, before.partial)
        return Geometry(holds, wanted, sizes, group, term, size_of(before.partial), sharing, alike)

    def bound(self) -> float:
        """Elements that some rank receives at least."""
        incomplete = self._lacking() > 0
        each = float((self.transfers() * self.sizes).sum()) / len(self.holds)
        return max(each, float((incomplete * self.sizes).sum(axis=1).max(initial=0)) / self.sharing)

    def transfers(self) -> np.ndarray:
        """[cells], how often an element of each cell is sent at least."""
        lacking, held = self._lacking(), self._held()
        incomplete = lacking > 0
        count = incomplete.sum(axis=0)
        fewest = np.where(incomplete, lacking, self.terms + 1).min(axis=0)
        sent = (~held).any(axis=0, where=incomplete[:, None]).sum(axis=0)
        return np.where(count > 0, np.maximum(fewest + count - 1, np.where(count > 1, sent + count - 2, 0)), 0)

    def _lacking(self) -> np.ndarray:
        """[groups, cells], how many terms a group lacks of what it wants.

        Where terms of one reduction become terms of another, a rank of the group has to join them all.
        """
        held = self._held()
        lacking = self.terms - (held.sum(axis=1) if self.alike else held.any(axis=1))
        return lacking * self.wants

    def _held(self) -> np.ndarray:
        """[groups, terms, cells]: whether a rank of the group holds it."""
        slots = self.group * self.terms + self.term
        order = np.argsort(slots, kind="stable")
        slots, first = np.unique(slots[order], return_index=True)
        held = np.zeros((len(self.wants) * self.terms, len(self.sizes)), bool)
        if len(first):
            held[slots] = np.logical_or.reduceat(self.holds[order], first, axis=0)
        return held.reshape(len(self.wants), self.terms, len(self.sizes))


def cell_marks(before: Layout, after: Layout, dim: int, whole: int, true: int) -> list[int]:
    """Where blocks of either layout begin and end along a dim."""
    marks = {0, true}
    for layout in (before, after):
        local = max(1, -(-whole // layout.parts[dim]))
        marks.update(range(0, true, local))
    return sorted(marks)
