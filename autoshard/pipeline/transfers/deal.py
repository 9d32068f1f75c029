"""From blocks on the devices of one group to blocks on those of another: each box from one that holds it.

Of several holders a rank takes the one that it is itself, else one that has sent least so far, the nearest of these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from typing import NamedTuple

from autoshard.layout.layout import Layout
from autoshard.pipeline.transfers.group import RankGroup
from autoshard.util.errors import RedistributeError

Shape = tuple[int, ...]
Box = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class GroupLayout:
    """How a value of `shape` lies on a group: its layout, which cuts `padded` into equal blocks.

    What lies outside of `shape` holds no meaning.
    """

    group: RankGroup
    layout: Layout
    shape: Shape
    padded: Shape

    @classmethod
    def of(cls, group: RankGroup, layout: Layout, shape: Sequence[int]) -> GroupLayout:
        """With the least padding."""
        local = layout.local_shape(shape)
        padded = tuple(size * parts for size, parts in zip(local, layout.parts, strict=True))
        return cls(group, layout, tuple(shape), padded)

    @cached_property
    def local(self) -> Shape:
        """The shape of a rank's block, padding included."""
        return self.layout.local_shape(self.padded)

    def box(self, rank: int) -> Box:
        """What a rank of the mesh holds of the value: (start, stop) of each dim, in which there may be nothing."""
        triples = zip(self.shape, self.start(rank), self.local, strict=True)
        return tuple((min(size, at), min(size, at + local)) for size, at, local in triples)

    def start(self, rank: int) -> Shape:
        """Where a rank's block begins."""
        pairs = zip(self.layout.dims, self.local, strict=True)
        return tuple(self.layout.mesh.index(rank, refs) * local for refs, local in pairs)

    def starts_within(self, box: Box) -> Iterator[Shape]:
        """Where the blocks begin that hold some of a box."""
        pairs = zip(box, self.local, strict=True)
        if any(low == high for low, high in box):
            return iter(())
        return product(*(range(low - low % local, high, local) for (low, high), local in pairs))


class Parcel(NamedTuple):
    """A box that goes from one rank to another (ranks of their meshes): where it lies in the block of each."""

    source: int
    target: int
    taken: tuple[slice, ...]
    placed: tuple[slice, ...]
    size: int


def is_same(before: GroupLayout, after: GroupLayout) -> bool:
    """Whether all ranks hold already what they shall hold."""
    return before == after


@lru_cache(maxsize=1 << 12)
def deal(before: GroupLayout, after: GroupLayout) -> tuple[Parcel, ...]:
    """Who sends which box to whom, target by target.

    Raises:
        RedistributeError: partial values, or values of different shapes.
    """
    if before.layout.partial or after.layout.partial:
        raise RedistributeError(
            f"a value goes from group to group as it is, not in terms: [{before.layout}] to [{after.layout}]"
        )
    if before.shape != after.shape:
        raise RedistributeError(f"a value of {before.shape} cannot go where one of {after.shape} lies")
    holders: dict[Shape, list[int]] = {}
    for rank in range(before.group.mesh.devices):
        holders.setdefault(before.start(rank), []).append(rank)
    return tuple(_dealt(before, after, holders))


def _dealt(before: GroupLayout, after: GroupLayout, holders: dict[Shape, list[int]]) -> Iterator[Parcel]:
    """The parcels; `holders` are the ranks by where their blocks begin."""
    sent = [0] * before.group.mesh.devices
    for target, world in enumerate(after.group.ranks):
        begin, wanted = after.start(target), after.box(target)
        # In the order of the first rank that holds each.
        for start in sorted(before.starts_within(wanted), key=lambda start: holders[start][0]):
            parts = zip(start, before.local, wanted, strict=True)
            common = tuple((max(at, low), min(at + local, high)) for at, local, (low, high) in parts)
            size = math.prod(stop - first for first, stop in common)
            source = min(holders[start], key=lambda rank: _rating(before.group.ranks[rank], world, sent[rank]))
            if before.group.ranks[source] != world:
                sent[source] += size
            yield Parcel(source, target, _within(common, start), _within(common, begin), size)


def _rating(source: int, target: int, sent: int) -> tuple[bool, int, int]:
    return source != target, sent, abs(source - target)


def _within(box: Box, start: Shape) -> tuple[slice, ...]:
    return tuple(slice(low - at, high - at) for (low, high), at in zip(box, start, strict=True))


def bytes_between(before: GroupLayout, after: GroupLayout, itemsize: int) -> int:
    """Bytes that go from rank to rank."""
    pairs = deal(before, after)
    ranks = before.group.ranks, after.group.ranks
    return itemsize * sum(one.size for one in pairs if ranks[0][one.source] != ranks[1][one.target])
