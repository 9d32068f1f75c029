"""Where a tensor's blocks lie: which rank holds which region, who writes it, and which bytes a region touches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from autoshard.core.tensortype import TensorType
from autoshard.layout.layout import Layout
from autoshard.util.errors import CheckpointError

Region = tuple[slice, ...]


@dataclass(frozen=True)
class Placed:
    """A tensor and how its blocks lie on the ranks.

    Args:
        type: of the whole tensor.
        padded: the shape that is cut into equal blocks, the tensor at its begin; None: the least that the layout
            divides.
        ranks: which of all ranks those of the layout's mesh are, in order; None: they are all.

    Raises:
        CheckpointError: a partial layout, or one for another number of dims.
    """

    type: TensorType
    layout: Layout
    padded: tuple[int, ...] | None = None
    ranks: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.layout.partial:
            raise CheckpointError(f"layout [{self.layout}] of {self.type} is partial; a checkpoint holds whole values")
        self.layout.check_fits(self.type.shape, str(self.type))
        if self.ranks is not None and len(set(self.ranks)) != self.layout.mesh.devices:
            raise CheckpointError(f"mesh '{self.layout.mesh}' has {self.layout.mesh.devices} devices, not {self.ranks}")
        if self.padded is not None and any(a < b for a, b in zip(self.padded, self.type.shape, strict=True)):
            raise CheckpointError(f"{self.type} cannot be held in the smaller shape {self.padded}")

    @cached_property
    def local(self) -> tuple[int, ...]:
        """Shape of the block that every rank holds, padding included."""
        return self.layout.local_shape(self.padded or self.type.shape)

    def hosted(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """Those of some ranks that hold a block, if an empty one."""
        return tuple(ranks) if self.ranks is None else tuple(rank for rank in ranks if rank in self.ranks)

    def place(self, rank: int) -> int:
        """Which rank of the layout's mesh one of all ranks is; it holds a block."""
        return rank if self.ranks is None else self.ranks.index(rank)

    def region(self, rank: int) -> Region:
        """The part of the tensor that a rank holds, without padding; it may be empty."""
        whole = [size * parts for size, parts in zip(self.local, self.layout.parts, strict=True)]
        block = self.layout.block(self.place(rank), whole)
        sizes = self.type.shape
        return tuple(slice(min(b.start, n), min(b.stop, n)) for b, n in zip(block, sizes, strict=True))

    @property
    def where(self) -> str:
        """The mesh, and its ranks if they are not all."""
        mesh = self.layout.mesh
        return str(mesh) if self.ranks is None else f"{mesh} on ranks {', '.join(map(str, self.ranks))}"

    def __str__(self) -> str:
        return self.layout.show_type(self.type.shape, str(self.type.dtype))


@dataclass(frozen=True, eq=False)
class LocalBlocks:
    """A tensor as this process has it: the blocks of the ranks that it hosts and that have any, of the shape
    `placed.local` or, without padding, of the rank's region."""

    parts: Sequence[np.ndarray]
    placed: Placed


def extent(region: Region) -> tuple[int, ...]:
    """The shape of a region."""
    return tuple(one.stop - one.start for one in region)


def overlap(one: Region, other: Region) -> Region | None:
    """What two regions have in common; None if that is empty."""
    pairs = zip(one, other, strict=True)
    both = tuple(slice(max(a.start, b.start), min(a.stop, b.stop)) for a, b in pairs)
    return both if all(part.start < part.stop for part in both) else None


def within(region: Region, origin: Sequence[int]) -> Region:
    """A region counted from `origin`."""
    return tuple(slice(one.start - at, one.stop - at) for one, at in zip(region, origin, strict=True))


@lru_cache(maxsize=4096)
def first_owners(layout: Layout) -> frozenset[int]:
    """Of the ranks that hold the same block, the first: each block has one, who writes it."""
    mesh = layout.mesh
    ranks = np.arange(len(mesh.listed("find the first owners of blocks")))
    places = ranks if mesh.order is None else np.argsort(np.asarray(mesh.order))
    block = np.zeros(mesh.devices, np.int64)
    for ref in (ref for refs in layout.dims for ref in refs):
        block = block * ref.size + places // mesh.stride(ref) % ref.size
    return frozenset(np.unique(block, return_index=True)[1].tolist())


def touched(region: Region, shape: Sequence[int], itemsize: int, chunk: int) -> np.ndarray:
    """Which chunks of `chunk` bytes a region of a block of `shape` (in C order) has bytes in, ascending."""
    if not math.prod(extent(region)):
        return np.zeros(0, np.int64)
    starts, run, stride = np.zeros(1, np.int64), itemsize, itemsize
    for part, size in zip(reversed(region), reversed(shape), strict=True):
        count = part.stop - part.start
        starts = starts + part.start * stride
        if len(starts) == 1 and (count == 1 or stride - run < chunk):
            # No chunk fits into the gaps between the rows: each that lies along them is touched.
            run += (count - 1) * stride
        else:
            starts = (np.arange(count, dtype=np.int64)[:, None] * stride + starts).reshape(-1)
        stride *= size
    first, last = starts // chunk, (starts + run - 1) // chunk
    wide = int((last - first).max()) + 1
    chunks = first[:, None] + np.arange(wide)
    return np.unique(chunks[chunks <= last[:, None]])
