"""Fetch: each rank gets the boxes that its block lacks, each from a rank that holds it, and sends what others lack.

For where collectives of equal pieces move more than has to be moved: 3 parts against 4, blocks of which a part is
padding, values that become terms, or terms that are summed into blocks which lie across those that hold them. A rank
gets a box of each term that ends. Ranks along terms that begin share what they lack together, and each adds its own
to a block of zeros. Who sends what follows from the blocks' places alone: all ranks know it without asking.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from autoshard.layout.layout import Layout, Refs, free_refs
from autoshard.layout.mesh import merge_refs, size_of
from autoshard.redistribute.bound import cell_marks, grid_positions, index_along, overlaps
from autoshard.redistribute.positions import cutter, uncovered

Shape = tuple[int, ...]
Box = tuple[slice, ...]
Cell = tuple[tuple[int, int], ...]
Unit = tuple[Cell, Shape, int]
"""A cell, which block of the layout before holds it, and a term of it."""

Dealing = tuple[int, int, Cell, bool]
"""A source, the rank that gets a cell from it, the cell, and whether it is combined with what lies there already."""

# Ranks between which boxes are told one by one at most.
MANY = 256


class FetchPiece(NamedTuple):
    """A box of elements: whose it is, where it lies in the source's block, and where in one's own.

    What `adds` is combined with what lies there already.
    """

    source: int
    source_box: Box
    target_box: Box
    adds: bool = False


class FetchRound(NamedTuple):
    """Whom each rank of a group could hear of in one round."""

    sources: list[int]


@dataclass(frozen=True)
class Fetch:
    """How each rank gets its block `after`; `size` tells what of the shape is no padding (None: all of it)."""

    before: Layout
    after: Layout
    size: Shape | None

    @cached_property
    def added_partial(self) -> Refs:
        """The pieces of the mesh along which the value becomes partial."""
        return uncovered(self.after.partial, self.kept_partial)

    @cached_property
    def reduced(self) -> Refs:
        """The partial axes that are reduced."""
        return uncovered(self.before.partial, self.kept_partial)

    @cached_property
    def kept_partial(self) -> Refs:
        """The partial axes that stay: so many tensors, each moved for itself."""
        if self.before.reduction != self.after.reduction:
            return ()
        return uncovered(self.before.partial, uncovered(self.before.partial, self.after.partial))

    @property
    def is_whole(self) -> bool:
        """Whether the partial axes that are reduced, that stay and that are new do not overlap."""
        kept, changed = size_of(self.kept_partial), (*self.reduced, *self.added_partial)
        return (
            size_of(self.reduced) * kept == size_of(self.before.partial)
            and size_of(self.added_partial) * kept == size_of(self.after.partial)
            and not any(one.overlaps(other) for one in changed for other in self.kept_partial)
        )

    @cached_property
    def axes(self) -> Refs:
        """The pieces of the mesh along which boxes change hands."""
        mesh = self.before.mesh
        pairs = [(old, new) for old, new in zip(self.before.dims, self.after.dims, strict=True) if old != new]
        found = {ref for pair in pairs for refs in pair for ref in refs} | {*self.added_partial, *self.reduced}
        if cutter(self.before, self.after) is None:
            names = {ref.name for ref in found}
            return tuple(mesh.axis(name) for name in mesh.names if name in names)
        pieces: Refs = ()
        for ref in sorted(found, key=lambda ref: (mesh.sort_key(ref)[:2], -ref.size)):
            pieces += uncovered((ref,), pieces)
        return merge_refs(sorted(pieces, key=mesh.sort_key))

    def elements_moved(self, shape: Sequence[int]) -> float:
        """Elements that one rank receives at most; those that a group shares are counted as if they could be cut."""
        return _elements_moved(self, tuple(shape))

    def at_least(self, shape: Sequence[int]) -> float:
        """Elements that a rank receives at least, without a look at who holds what: as if all that ranks hold were of
        use to those with which they share a block."""
        wanted, held = self.after.local_size(shape), self.before.local_size(shape)
        if self.size is not None:
            return 0.0
        return max(0.0, wanted * size_of(self.reduced) / size_of(self.added_partial) - min(wanted, held))

    def pieces(self, rank: int, shape: Sequence[int]) -> tuple[FetchPiece, ...]:
        """What a rank's new block is made of, its own elements included, in the order of its places."""
        return _schedule(self, tuple(shape))[rank]

    def wanted(self, rank: int, shape: Sequence[int]) -> dict[int, tuple[FetchPiece, ...]]:
        """What each other rank takes of a rank's block."""
        return _by_target(self, tuple(shape)).get(rank, {})

    def elements_sent(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Elements that each rank sends to others."""
        return _sent(self, tuple(shape))

    @cached_property
    def messages(self) -> int:
        """From how many others a rank receives at most."""
        return _Scheduler(self, self._shape).most_sources() if self.added_partial else _most_blocks(self, self._shape)

    @cached_property
    def _shape(self) -> Shape:
        """The least shape in which everything that is shared can be cut."""
        parts = zip(self.before.parts, self.after.parts, strict=True)
        even = [math.lcm(old, new) for old, new in parts]
        if self.size is not None:
            return tuple(-(-size // both) * both for size, both in zip(self.size, even, strict=True))
        share = size_of(self.added_partial)
        return tuple(both * (share if i == 0 else 1) for i, both in enumerate(even))

    @property
    def rounds(self) -> int:
        """As many as messages: the ranks of a group could send in turns."""
        return max(1, self.messages)

    def round(self, number: int) -> FetchRound:
        """Each rank hears of the one so many places before it in its group."""
        groups = self.before.mesh.groups(self.axes)
        sources = []
        for rank in range(self.before.mesh.devices):
            members = groups.members(rank)
            sources.append(int(members[(groups.position(rank) - number - 1) % groups.size]))
        return FetchRound(sources)


@lru_cache(maxsize=1 << 14)
def fetch(before: Layout, after: Layout, size: Shape | None = None) -> Fetch | None:
    """How `after` is fetched; None where there are too many ranks to tell all boxes, or terms cannot be told apart."""
    if before.mesh.devices > MANY:
        return None
    one = Fetch(before, after, size)
    if not one.is_whole or (one.added_partial and after.reduction != "sum"):
        return None
    # Where some terms end and others begin they are added up on the way, whatever they are terms of.
    return None if one.added_partial and one.reduced and before.reduction != "sum" else one


@lru_cache(maxsize=1 << 12)
def _elements_moved(one: Fetch, shape: Shape) -> float:
    mesh = one.before.mesh
    if not one.added_partial:  # each rank gets all terms of its block but what it holds of one
        needed, held = overlaps(one.before, one.after, shape, one.size or shape, grid_positions(mesh))
        return float((needed * size_of(one.reduced) - held).max())
    ends = Layout(mesh, one.before.dims, one.reduced), Layout(mesh, one.after.dims, one.added_partial)
    places = _different(*ends, one.size is None)
    wanted, held = overlaps(*ends, shape, one.size or shape, places)
    _, group = np.unique(index_along(mesh, places, free_refs(mesh, one.added_partial)), return_inverse=True)
    replicas, first = _replicas(one, places), index_along(mesh, places, one.added_partial) == 0
    chosen = np.empty(group.max() + 1, dtype=replicas.dtype)
    chosen[group[first]] = replicas[first]  # of a group, that of its first rank
    # A block and a term that several ranks of a group hold count once.
    useful = np.flatnonzero((replicas == chosen[group]) & (held > 0))
    refs = tuple(itertools.chain(*one.before.dims, one.reduced))
    units = group * size_of(refs) + index_along(mesh, places, refs)
    useful = useful[np.unique(units[useful], return_index=True)[1]]
    kept = np.bincount(group[useful], weights=held[useful], minlength=len(chosen))
    lacked = np.zeros(len(chosen))
    lacked[group] = wanted * size_of(one.reduced)
    return float((lacked - kept).max()) / size_of(one.added_partial)


def _different(before: Layout, after: Layout, even: bool) -> np.ndarray:
    """The grid positions of ranks that get on in different ways; the others do what one of these does.

    Ranks along pieces that neither layout uses are alike, and where all blocks are full also those along the major
    pieces by which both cut a dim: each of its parts is redistributed for itself.
    """
    mesh, cut = before.mesh, cutter(before, after)
    if cut is None:
        return grid_positions(mesh)
    alike = {ref for refs in (cut(before.free()), cut(after.free())) for ref in refs}
    alike -= {ref for refs in (cut(before.used), cut(after.used)) for ref in refs}
    for old, new in zip(before.dims, after.dims, strict=True) if even else ():
        both = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(cut(old), cut(new), strict=False))
        alike.update(ref for ref, _ in both)
    places = np.zeros(1, np.int64)
    for ref in cut(mesh.all_axes):
        steps = np.arange(1 if ref in alike else ref.size, dtype=np.int64) * mesh.stride(ref)
        places = (places[:, None] + steps).reshape(-1)
    return places


@lru_cache(maxsize=1 << 10)
def _sent(one: Fetch, shape: Shape) -> tuple[int, ...]:
    sent = [0] * one.before.mesh.devices
    for rank, row in enumerate(_schedule(one, shape)):
        for piece in row:
            if piece.source != rank:
                sent[piece.source] += math.prod(box.stop - box.start for box in piece.source_box)
    return tuple(sent)


@lru_cache(maxsize=1 << 10)
def _by_target(one: Fetch, shape: Shape) -> dict[int, dict[int, tuple[FetchPiece, ...]]]:
    found: dict[int, dict[int, list[FetchPiece]]] = {}
    for rank, row in enumerate(_schedule(one, shape)):
        for piece in row:
            if piece.source != rank:
                found.setdefault(piece.source, {}).setdefault(rank, []).append(piece)
    return {source: {rank: tuple(row) for rank, row in rows.items()} for source, rows in found.items()}


@lru_cache(maxsize=1 << 10)
def _schedule(one: Fetch, shape: Shape) -> tuple[tuple[FetchPiece, ...], ...]:
    """Per rank the pieces of its new block."""
    return _Scheduler(one, shape).rows()


def _most_blocks(one: Fetch, shape: Shape) -> int:
    """From how many others a rank that shares its block with nobody receives at most: it takes all it needs of a block
    and a term from one holder, and nothing of what it holds itself."""
    mesh = one.before.mesh
    places = grid_positions(mesh)
    needed = np.full(len(places), size_of(one.reduced))
    own = np.ones(len(places), bool)
    for dim, whole in enumerate(shape):
        parts = one.before.parts[dim], one.after.parts[dim]
        before, after = (layout.local_shape(shape)[dim] for layout in (one.before, one.after))
        touched = np.zeros(parts[::-1], bool)  # which blocks of before each block of after has something of
        marks = np.array(cell_marks(one.before, one.after, dim, whole, (one.size or shape)[dim]))
        for place in range(parts[1]):
            inside = marks[(marks >= place * after) & (marks <= (place + 1) * after)]
            touched[place, inside[:-1] // before] = True
        old, new = (index_along(mesh, places, layout.dims[dim]) for layout in (one.before, one.after))
        needed *= touched.sum(axis=1)[new]
        own &= touched[new, old]
    return int((needed - own).max())


def _replicas(one: Fetch, places: np.ndarray) -> np.ndarray:
    """Which replica of the terms each rank holds.

    Ranks that hold a block of the same sum may make it of other terms: only those of one replica fit together.
    """
    mesh, before = one.before.mesh, one.before
    return index_along(mesh, places, free_refs(mesh, before.used) if before.partial else ())


class _Scheduler:
    """Deals out the boxes of a tensor of one shape."""

    def __init__(self, one: Fetch, shape: Shape) -> None:
        mesh = one.before.mesh
        self.one, self.shape, self.size = one, shape, one.size or shape
        self.local = [one.before.local_shape(shape), one.after.local_shape(shape)]
        places = grid_positions(mesh)
        self.old = list(zip(*(index_along(mesh, places, refs).tolist() for refs in one.before.dims), strict=True))
        self.new = list(zip(*(index_along(mesh, places, refs).tolist() for refs in one.after.dims), strict=True))
        if not shape:
            self.old = self.new = [()] * mesh.devices
        # Only ranks of one group exchange boxes, and of these only those that hold the same of the terms that stay.
        group, stayed = (
            index_along(mesh, places, refs).tolist() for refs in (free_refs(mesh, one.axes), one.kept_partial)
        )
        self.near = list(zip(group, stayed, strict=True))
        self.replica = _replicas(one, places).tolist()
        self.terms = size_of(one.reduced)
        self.term = index_along(mesh, places, one.reduced).tolist()
        # Of several holders a rank takes one that it hears of anyway; different ranks begin with different ones.
        self.heard: list[set[int]] = [set() for _ in self.old]
        self.held = list(zip(self.old, self.term, self.replica, strict=True))
        self.holders: dict[tuple[tuple[Shape, int, int], tuple[int, ...]], list[int]] = {}
        for rank, held in enumerate(self.held):
            self.holders.setdefault((held, self.near[rank]), []).append(rank)
        self.spans: dict[tuple[int, int], list[tuple[tuple[int, int], int]]] = {}
        self.marks = [cell_marks(one.before, one.after, dim, shape[dim], self.size[dim]) for dim in range(len(shape))]

    def rows(self) -> tuple[tuple[FetchPiece, ...], ...]:
        """Per rank the pieces of its new block."""
        rows: list[list[FetchPiece]] = [[] for _ in self.old]
        for source, rank, cell, adds in self._dealings():
            rows[rank].append(self._piece(source, rank, cell, adds))
        return tuple(map(tuple, rows))

    def most_sources(self) -> int:
        """From how many others a rank of a group that shares a block receives pieces at most, without a look at where
        these lie."""
        if self.one.size is None and all(len(ranks) == 1 for ranks in self.holders.values()):
            counts = [self._units_heard(members) for members in self._groups()]
            known = [count for count in counts if count is not None]
            if len(known) == len(counts):
                return max(known)
        for _ in self._dealings():
            pass
        return max(map(len, self.heard))

    def _units_heard(self, members: list[int]) -> int | None:
        """How many units, or slabs of units, a member of a group gets at most as `_dealt` deals them out; None where
        they differ in size. Where a unit has one holder, a member hears of as many ranks."""
        spans = [self._spans(dim, place) for dim, place in enumerate(self.new[members[0]])]
        if any(len({stop - start for (start, stop), _ in one}) > 1 for one in spans):
            return None
        needed = [{index for _, index in one} for one in spans]
        kept = {
            held
            for held in map(self.held.__getitem__, members)
            if held[2] == self.replica[members[0]] and all(map(operator.contains, needed, held[0]))
        }
        lacked, count = math.prod(map(len, spans)) * self.terms - len(kept), len(members)
        whole, left = divmod(lacked, count)
        each_gets_one = not spans or (left and count % left == 0)
        return whole + (min(left, 1) if each_gets_one else left)

    def _groups(self) -> Iterator[list[int]]:
        """The ranks that share a block."""
        groups = self.one.before.mesh.groups(self.one.added_partial)
        for rank in range(len(self.old)):
            members = groups.members(rank).tolist()
            if members[0] == rank:
                yield members

    def _dealings(self) -> Iterator[Dealing]:
        for members in self._groups():
            yield from self._group(members)

    def _group(self, members: list[int]) -> Iterator[Dealing]:
        """What each member of a group that shares a block gets of it; the terms of a box one after the other."""
        lacked: list[Unit] = []
        replica, alone = self.replica[members[0]], len(members) == 1
        keepers: dict[tuple[Shape, int, int], int] = {self.held[i]: i for i in reversed(members)}
        for (cell, index), term in itertools.product(self._cells(self.new[members[0]]), range(self.terms)):
            held = (index, term, replica)
            keeper = keepers.get(held)
            if keeper is not None:
                yield keeper, keeper, cell, not alone or term > 0
            elif alone:
                yield self._source(members[0], held), members[0], cell, term > 0
            else:
                lacked.append((cell, index, term))
        for part, (cell, index, term) in _dealt(lacked, len(members)):
            yield self._source(members[part], (index, term, replica)), members[part], cell, True

    def _source(self, rank: int, held: tuple[Shape, int, int]) -> int:
        """From whom a rank takes what others hold."""
        sources, heard = self.holders[held, self.near[rank]], self.heard[rank]
        source = next((one for one in sources if one in heard), sources[rank % len(sources)])
        heard.add(source)
        return source

    def _cells(self, index: Shape) -> Iterator[tuple[Cell, Shape]]:
        """The cells of a block: per dim (start, stop), and which block of the layout before that lies in."""
        spans = [self._spans(dim, place) for dim, place in enumerate(index)]
        cells = itertools.product(*([span for span, _ in one] for one in spans))
        return zip(cells, itertools.product(*([place for _, place in one] for one in spans)), strict=True)

    def _spans(self, dim: int, place: int) -> list[tuple[tuple[int, int], int]]:
        found = self.spans.get((dim, place))
        if found is None:
            size, before = self.local[1][dim], self.local[0][dim]
            inside = [mark for mark in self.marks[dim] if place * size <= mark <= (place + 1) * size]
            found = [((start, stop), start // before) for start, stop in itertools.pairwise(inside)]
            self.spans[dim, place] = found
        return found

    def _piece(self, source: int, rank: int, cell: Cell, adds: bool) -> FetchPiece:
        taken, placed = _within(cell, self.old[source], self.local[0]), _within(cell, self.new[rank], self.local[1])
        return FetchPiece(source, taken, placed, adds)


def _within(cell: Cell, index: Shape, local: Shape) -> Box:
    """Where a cell lies in the block at this index."""
    spans = zip(cell, index, local, strict=True)
    return tuple(slice(start - place * size, stop - place * size) for (start, stop), place, size in spans)


def _dealt(units: list[Unit], count: int) -> Iterator[tuple[int, Unit]]:
    """Each unit, or a slab of it, with the number of the member that gets it; all of them get as much as can be.

    Units of one size go whole from hand to hand while there are enough for everyone. What is left, and units of
    different sizes, is cut into slabs: each for some of the members, or for all.
    """
    alike = len({math.prod(stop - start for start, stop in cell) for cell, _, _ in units}) == 1
    whole = len(units) // count * count if alike else 0
    for number, unit in enumerate(units[:whole]):
        yield number % count, unit
    left = units[whole:]
    few = count // len(left) if left and alike and count % len(left) == 0 else count
    for number, (cell, index, term) in enumerate(left):
        first = number * few if few < count else number
        if not cell:
            yield first % count, (cell, index, term)
            continue
        dim = max(range(len(cell)), key=lambda dim: cell[dim][1] - cell[dim][0])
        start, stop = cell[dim]
        cuts = [start + (stop - start) * part // few for part in range(few + 1)]
        for part, (low, high) in enumerate(itertools.pairwise(cuts)):
            if low < high:
                yield (first + part) % count, ((*cell[:dim], (low, high), *cell[dim + 1 :]), index, term)
