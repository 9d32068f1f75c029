"""Mesh: a named grid of ranks; AxisRef: one axis of it, or a piece of one (a sub-axis); Groups along axes.

Nothing here is stored per rank but a custom device order, so a mesh of 10**12 devices costs as much as one of eight;
`Mesh.listed` and `Groups.members` are the two doors to lists of ranks, and refuse lists that no process could hold.

>>> mesh = Mesh(dp=2, tp=4)
>>> mesh.groups([mesh.axis("tp")]).members(5)
array([4, 5, 6, 7])
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from autoshard.layout.mesh_axes import LISTED, axis_size, check_axes, device_order, read_axes, show_axes
from autoshard.util.errors import MeshError, ParseError
from autoshard.util.text import natural

_REF = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::\((\d+)\)(\d+))?")


class AxisRef(NamedTuple):
    """The piece of axis `name` behind its first `pre` parts, `size` parts long (Shardy's `name:(pre)size`).

    A whole axis has pre 1 and the axis's size. As an interval the piece is [pre, pre * size); the algebra
    below is that of the Shardy RFC's sub-axes (section on axis splitting and sub-axes).
    """

    name: str
    pre: int
    size: int

    @property
    def next(self) -> int:
        """Where the interval ends: the pre-size of the piece that would follow."""
        return self.pre * self.size

    def overlaps(self, other: AxisRef) -> bool:
        name, pre, size = self
        its_name, its_pre, its_size = other
        return name == its_name and pre < its_pre * its_size and its_pre < pre * size

    def contains(self, other: AxisRef) -> bool:
        inside = self.name == other.name and self.pre <= other.pre and other.next <= self.next
        return inside and other.pre % self.pre == 0 and self.next % other.next == 0

    def prefix_of(self, other: AxisRef) -> bool:
        """Whether this is the major part of `other` (or all of it)."""
        return self.name == other.name and self.pre == other.pre and other.next % self.next == 0

    def can_coexist(self, other: AxisRef) -> bool:
        """Whether one splitting of the axis holds both pieces."""
        if self.name != other.name:
            return True
        pre1, pre2, next1, next2 = self.pre, other.pre, self.next, other.next
        if pre1 > pre2:
            pre1, pre2 = pre2, pre1
        if next1 > next2:
            next1, next2 = next2, next1
        if next1 > pre2:
            return next1 % pre2 == 0 and pre2 % pre1 == 0 and next2 % next1 == 0
        return pre2 % next1 == 0

    def clashes(self, other: AxisRef) -> bool:
        """Whether the two cannot be used side by side: they overlap, or no splitting of the axis holds both."""
        return self.overlaps(other) or not self.can_coexist(other)

    def overlap(self, other: AxisRef) -> AxisRef | None:
        """The common piece, None if there is none or the two cannot coexist."""
        if not self.overlaps(other) or not self.can_coexist(other):
            return None
        pre = max(self.pre, other.pre)
        return AxisRef(self.name, pre, min(self.next, other.next) // pre)

    def prefix_without_overlap(self, other: AxisRef) -> AxisRef | None:
        """The part of this before `other` begins; all of it if they are disjoint."""
        if not self.overlaps(other):
            return self
        if not self.can_coexist(other) or other.pre <= self.pre:
            return None
        return AxisRef(self.name, self.pre, other.pre // self.pre)

    def suffix_without_overlap(self, other: AxisRef) -> AxisRef | None:
        """The part of this after `other` ends; all of it if they are disjoint."""
        if not self.overlaps(other):
            return self
        if not self.can_coexist(other) or other.next >= self.next:
            return None
        return AxisRef(self.name, other.next, self.next // other.next)

    def can_merge(self, other: AxisRef) -> bool:
        """Whether `other` follows directly, so that both are one larger piece."""
        return self.name == other.name and self.next == other.pre

    def merge(self, other: AxisRef) -> AxisRef:
        return AxisRef(self.name, self.pre, self.size * other.size)

    def split(self, major: int) -> tuple[AxisRef, AxisRef]:
        """Cut into a piece of `major` parts and the rest; `major` must divide the size."""
        return AxisRef(self.name, self.pre, major), AxisRef(self.name, self.pre * major, self.size // major)


def merge_refs(refs: Iterable[AxisRef]) -> tuple[AxisRef, ...]:
    """The same refs, neighbours that form one piece joined, pieces of size 1 dropped."""
    given = refs if isinstance(refs, tuple) else tuple(refs)
    if len(given) > 1:
        return _merged(given)
    return given if not given or given[0].size > 1 else ()


@lru_cache(maxsize=1 << 12)
def _merged(refs: tuple[AxisRef, ...]) -> tuple[AxisRef, ...]:
    merged: list[AxisRef] = []
    for ref in refs:
        if ref.size == 1:
            continue
        if merged and merged[-1].can_merge(ref):
            merged[-1] = merged[-1].merge(ref)
        else:
            merged.append(ref)
    return tuple(merged)


def size_of(refs: Iterable[AxisRef]) -> int:
    """How many parts the refs make together."""
    parts = 1
    for ref in refs:
        parts *= ref.size
    return parts


class Mesh:
    """An ordered grid of ranks: axis name -> size, first axis most major; optionally an explicit rank order.

    Meshes are interned: equal meshes are the same object.

    Args:
        axes: (name, size) pairs, for names that cannot be keywords.
        order: ranks listed in grid order, when that is not 0, 1, 2, ...
        sizes: axes as keywords, `Mesh(dp=2, tp=4)`.

    Raises:
        MeshError: no axis, a bad name or size, or an order that is no permutation.

    >>> from autoshard import Mesh
    >>> mesh = Mesh.parse("dp=2 tp=4")
    >>> mesh.devices, mesh.names, mesh == Mesh(dp=2, tp=4)
    (8, ('dp', 'tp'), True)
    """

    _interned: dict[object, Mesh] = {}
    axes: tuple[tuple[str, int], ...]
    order: tuple[int, ...] | None

    def __new__(cls, axes: Iterable[tuple[str, int]] = (), order: Sequence[int] | None = None, **sizes: int) -> Mesh:
        try:
            pairs = tuple((name, axis_size(name, size)) for name, size in (*axes, *sizes.items()))
        except (TypeError, ValueError):
            raise MeshError(
                f"a mesh has pairs of a name and a size, not {axes!r}; write Mesh(dp=2, tp=4), or Mesh.parse of text"
            ) from None
        ranks = device_order(order, pairs)
        known = cls._interned.get((pairs, ranks))
        if known is not None:
            return known
        check_axes(pairs, ranks)
        mesh = super().__new__(cls)
        mesh.axes, mesh.order = pairs, ranks
        return cls._interned.setdefault((pairs, ranks), mesh)

    def __reduce__(self) -> tuple:
        return Mesh, (self.axes, self.order)

    @staticmethod
    def flat(devices: int) -> Mesh:
        """The mesh of a bare device count: one axis `d`, whose sub-axes the strategies use."""
        return Mesh([("d", devices)])

    @staticmethod
    def empty() -> Mesh:
        """The mesh without axes: a placeholder that goes with every mesh (Shardy's `<[]>`)."""
        return Mesh((), ())

    @staticmethod
    def maximal(device: int) -> Mesh:
        """The mesh of one device and no axes: what lies on it lies on that device alone."""
        return Mesh((), (device,))

    @property
    def is_empty(self) -> bool:
        return not self.axes and not self.order

    @property
    def is_maximal(self) -> bool:
        return not self.axes and bool(self.order)

    @staticmethod
    def parse(text: str) -> Mesh:
        """Read `dp=2 tp=4`, `dp=2,tp=4`, `2x4` (axes x0, x1) or `8`; `order=0.2.1.3` may follow."""
        if not isinstance(text, str):
            raise MeshError(f"cannot read {text!r} as a mesh; write text, e.g. 'dp=2,tp=4', '2x4' or '8'")
        words = [word for word in re.split(r"[,\s]+", text.strip()) if word]
        if not words:
            raise MeshError(f"mesh {text!r} has no axis; write e.g. 'dp=2,tp=4', '2x4' or '8'")
        try:
            axes, order = read_axes(words)
        except ParseError as error:
            raise MeshError(f"{error} in mesh {text!r}; write e.g. 'dp=2,tp=4', '2x4' or '8'") from None
        return Mesh(axes, order)

    def __str__(self) -> str:
        text = show_axes(self.axes)
        return text if self.order is None else f"{text} order={'.'.join(map(str, self.order))}"

    def __repr__(self) -> str:
        return f"Mesh({self})"

    @cached_property
    def devices(self) -> int:
        return math.prod(size for _, size in self.axes)

    def listed(self, doing: str) -> range:
        """All ranks, for work that is done for each of them.

        Raises:
            MeshError: they are too many; the message says what was being done.
        """
        if self.devices > LISTED:
            raise MeshError(f"cannot {doing} for each of the {self.devices} ranks of mesh '{self}'; {LISTED} at most")
        return range(self.devices)

    @cached_property
    def sizes(self) -> dict[str, int]:
        return dict(self.axes)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.axes)

    @cached_property
    def _strides(self) -> dict[str, int]:
        strides, stride = {}, 1
        for name, size in reversed(self.axes):
            strides[name] = stride
            stride *= size
        return strides

    @cached_property
    def _position_of_rank(self) -> np.ndarray | None:
        return None if self.order is None else np.argsort(np.asarray(self.order))

    @cached_property
    def _checked(self) -> set[AxisRef]:
        """Pieces that were found to be pieces of this mesh."""
        return set()

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of each axis in the mesh."""
        return {name: place for place, name in enumerate(self.names)}

    def axis(self, name: str) -> AxisRef:
        """The whole axis `name`."""
        if name not in self.sizes:
            raise MeshError(f"unknown axis {name!r}; the mesh has {show_axes(self.axes)}")
        return AxisRef(name, 1, self.sizes[name])

    @property
    def all_axes(self) -> tuple[AxisRef, ...]:
        return tuple(AxisRef(name, 1, size) for name, size in self.axes if size > 1)

    def ref(self, text: str) -> AxisRef:
        """Read `tp` or `tp:(1)2`."""
        match = _REF.fullmatch(text.strip())
        if match is None:
            raise MeshError(f"cannot read axis {text!r}; write a name like 'tp' or a sub-axis like 'tp:(1)2'")
        whole = self.axis(match[1])
        if match[2] is None:
            return whole
        ref = AxisRef(match[1], natural(match[2], MeshError), natural(match[3], MeshError))
        self.check_ref(ref)
        return ref

    def check_ref(self, ref: AxisRef) -> None:
        """Raise MeshError unless `ref` is a piece of an axis of this mesh."""
        if ref in self._checked:
            return
        size = self.axis(ref.name).size
        if ref.pre < 1 or ref.size < 1 or size % (ref.pre * ref.size):
            raise MeshError(
                f"sub-axis {ref.name}:({ref.pre}){ref.size} does not exist: pre-size times size must divide "
                f"the size {size} of axis {ref.name!r}"
            )
        self._checked.add(ref)

    def show_ref(self, ref: AxisRef) -> str:
        """Text of a ref: the bare name for a whole axis, `tp:(1)2` otherwise."""
        return ref.name if ref.size == self.sizes[ref.name] else f"{ref.name}:({ref.pre}){ref.size}"

    def sort_key(self, ref: AxisRef) -> tuple[int, int, int]:
        """Mesh order: place of the axis, then pre-size, then size."""
        return self.places[ref.name], ref.pre, ref.size

    def stride(self, ref: AxisRef) -> int:
        """Distance in grid positions between neighbours along `ref`."""
        return self._strides[ref.name] * (self.sizes[ref.name] // ref.next)

    def spacing(self, ref: AxisRef) -> int | None:
        """Distance in ranks between neighbours along `ref`; None where the device order has them unequally far apart.

        >>> Mesh.parse("dp=2 tp=2 order=0.2.1.3").spacing(AxisRef("tp", 1, 2))
        2
        """
        if self.order is None:
            return self.stride(ref)
        if ref not in self._spacings:
            ranks, stride = np.asarray(self.order), self.stride(ref)
            rows = ranks.reshape(-1, ref.size, stride)
            gaps = np.unique(rows[:, 1:] - rows[:, :-1])
            self._spacings[ref] = int(gaps[0]) if len(gaps) == 1 and gaps[0] > 0 else None
        return self._spacings[ref]

    @cached_property
    def _spacings(self) -> dict[AxisRef, int | None]:
        return {}

    def position(self, rank: int) -> int:
        """The grid position of `rank`: its place in the device order."""
        return rank if self._position_of_rank is None else int(self._position_of_rank[rank])

    def coordinate(self, rank: int, ref: AxisRef) -> int:
        """Where `rank` stands along `ref`, 0 .. size - 1."""
        return self.position(rank) // self.stride(ref) % ref.size

    def index(self, rank: int, refs: Iterable[AxisRef]) -> int:
        """Where `rank` stands along several refs together, major to minor."""
        index = 0
        for ref in refs:
            index = index * ref.size + self.coordinate(rank, ref)
        return index

    def groups(self, refs: Iterable[AxisRef]) -> Groups:
        """All groups of ranks that differ only along `refs`, ordered major to minor."""
        return Groups(self, merge_refs(refs))

    def interval(self, start: int, size: int) -> tuple[AxisRef, ...]:
        """The refs that make up positions [start, start * size) of the mesh flattened to one axis.

        This is how an axis of a device matrix is expressed on a mesh.

        Raises:
            MeshError: the interval cuts an axis at a size that does not divide it.
        """
        refs, done, end = [], 1, start * size
        for name, whole in self.axes:
            low, high = max(start, done), min(end, done * whole)
            if low < high:
                if low % done or high % low or (done * whole) % high:
                    raise MeshError(
                        f"{size} parts behind the first {start} of mesh '{self}' would cut axis {name}={whole} unevenly"
                    )
                refs.append(AxisRef(name, low // done, high // low))
            done *= whole
        if end > done:
            raise MeshError(f"mesh '{self}' has no {size} parts behind the first {start}")
        return merge_refs(refs)


@dataclass(frozen=True)
class Groups:
    """All groups of ranks along `refs` of `mesh`: each rank is in one, members ordered major to minor."""

    mesh: Mesh
    refs: tuple[AxisRef, ...]

    @property
    def size(self) -> int:
        return size_of(self.refs)

    @property
    def world(self) -> int:
        return self.mesh.devices

    @property
    def span(self) -> int:
        """How many consecutive grid positions a group lies within (which link it needs)."""
        return 1 + sum((ref.size - 1) * self.mesh.stride(ref) for ref in self.refs)

    @cached_property
    def _offsets(self) -> np.ndarray:
        offsets = np.zeros(1, dtype=np.int64)
        for ref in self.refs:
            steps = np.arange(ref.size, dtype=np.int64) * self.mesh.stride(ref)
            offsets = (offsets[:, None] + steps).reshape(-1)
        return offsets

    def members(self, rank: int) -> np.ndarray:
        """The ranks of `rank`'s group in order.

        Raises:
            MeshError: they are more than LISTED.
        """
        if self.size > LISTED:
            raise MeshError(f"cannot list the {self.size} ranks of a group along {self} of mesh '{self.mesh}'")
        base = self.mesh.position(rank) - sum(
            self.mesh.coordinate(rank, ref) * self.mesh.stride(ref) for ref in self.refs
        )
        places = base + self._offsets
        return places if self.mesh.order is None else np.asarray(self.mesh.order)[places]

    @property
    def rows(self) -> np.ndarray:
        """[groups, size], the ranks of every group.

        Raises:
            MeshError: the mesh has more than LISTED ranks.
        """
        places = np.asarray(self.mesh.listed("list the groups"))
        first = places - sum(places // self.mesh.stride(ref) % ref.size * self.mesh.stride(ref) for ref in self.refs)
        rows = np.unique(first)[:, None] + self._offsets
        return rows if self.mesh.order is None else np.asarray(self.mesh.order)[rows]

    def position(self, rank: int) -> int:
        """Where `rank` stands in its group."""
        return self.mesh.index(rank, self.refs)

    def __str__(self) -> str:
        return ".".join(self.mesh.show_ref(ref) for ref in self.refs) or "-"


@dataclass(frozen=True)
class GroupList:
    """Groups of ranks that are listed, where no axes tell them: each rank is in one, all of one size."""

    rows: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        return len(self.rows[0])

    @cached_property
    def _places(self) -> dict[int, tuple[int, int]]:
        return {rank: (i, j) for i, row in enumerate(self.rows) for j, rank in enumerate(row)}

    @property
    def world(self) -> int:
        return len(self._places)

    def members(self, rank: int) -> np.ndarray:
        """The ranks of `rank`'s group in order."""
        return np.asarray(self.rows[self._places[rank][0]])

    def position(self, rank: int) -> int:
        """Where `rank` stands in its group."""
        return self._places[rank][1]

    def __str__(self) -> str:
        return " ".join(".".join(map(str, row)) for row in self.rows)


Grouping = Groups | GroupList
