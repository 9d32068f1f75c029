"""From blocks on the devices of one group to blocks on those of another: each box from one that holds it.

Of several holders a rank takes the one that it is itself, else one on its node, else one that has sent least so far,
the nearest of these. Ranks of a node that want the same block may each fetch a piece of it, and pass it on to the
others: so each node is sent each element once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import permutations, product
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
        return self._starts[rank]

    @cached_property
    def _starts(self) -> list[Shape]:
        mesh, ranks = self.layout.mesh, range(self.layout.mesh.devices)
        columns = [
            [mesh.index(rank, refs) * local for rank in ranks] if refs else [0] * len(ranks)
            for refs, local in zip(self.layout.dims, self.local, strict=True)
        ]
        return list(zip(*columns, strict=True)) if columns else [()] * len(ranks)

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
def deal(before: GroupLayout, after: GroupLayout, spans: tuple[int, ...] = (), relayed: int = 0) -> tuple[Parcel, ...]:
    """Who sends which box to whom, target by target.

    Args:
        spans: consecutive ranks that lie near each other, at each level, the nearest first.
        relayed: of how many consecutive ranks those that want the same block fetch pieces of it alone, and then pass
            them on (see `passed_on`); 0: each rank fetches all that it wants.

    Raises:
        RedistributeError: partial values, or values of different shapes.
    """
    if before.layout.partial or after.layout.partial:
        raise RedistributeError(
            f"a value goes from group to group as it is, not in terms: [{before.layout}] to [{after.layout}]"
        )
    if before.shape != after.shape:
        raise RedistributeError(f"a value of {before.shape} cannot go where one of {after.shape} lies")
    wanted = _pieces(after, relayed) if relayed else {rank: after.box(rank) for rank in range(len(after.group.ranks))}
    return tuple(_dealt(before, after, wanted, spans))


def _dealt(
    before: GroupLayout, after: GroupLayout, boxes: Mapping[int, Box], spans: tuple[int, ...]
) -> Iterator[Parcel]:
    """The parcels that bring each target its box."""
    holders: dict[Shape, list[int]] = {}
    for rank in range(before.group.mesh.devices):
        holders.setdefault(before.start(rank), []).append(rank)
    sent = [0] * before.group.mesh.devices
    for target, wanted in boxes.items():
        world, begin = after.group.ranks[target], after.start(target)
        # In the order of the first rank that holds each.
        for start in sorted(before.starts_within(wanted), key=lambda start: holders[start][0]):
            parts = zip(start, before.local, wanted, strict=True)
            common = tuple((max(at, low), min(at + local, high)) for at, local, (low, high) in parts)
            size = math.prod(stop - first for first, stop in common)
            source = min(holders[start], key=lambda rank: _rating(before.group.ranks[rank], world, sent[rank], spans))
            if before.group.ranks[source] != world:
                sent[source] += size
            yield Parcel(source, target, _within(common, start), _within(common, begin), size)


def _rating(source: int, target: int, sent: int, spans: tuple[int, ...]) -> tuple[bool, int, int, int]:
    return source != target, levels_apart(source, target, spans), sent, abs(source - target)


def levels_apart(source: int, target: int, spans: tuple[int, ...]) -> int:
    """On how many levels two ranks lie on different nodes."""
    return sum(source // span != target // span for span in spans)


def _replicas(after: GroupLayout, span: int) -> Iterator[list[int]]:
    """The ranks of a node that want the same block, for each node and block."""
    found: dict[tuple[int, Shape], list[int]] = {}
    for rank, world in enumerate(after.group.ranks):
        found.setdefault((world // span, after.start(rank)), []).append(rank)
    yield from found.values()


def has_replicas(after: GroupLayout, span: int) -> bool:
    """Whether ranks of one node want the same block."""
    return bool(after.layout.free()) and any(len(ranks) > 1 for ranks in _replicas(after, span))


def _pieces(after: GroupLayout, span: int) -> dict[int, Box]:
    """The box that each rank fetches where those of a node that want the same block share it: as even as can be, along
    the longest dim."""
    found: dict[int, Box] = {}
    for ranks in _replicas(after, span):
        box = after.box(ranks[0])
        if not box:
            found[ranks[0]] = box  # a single number is fetched by the first
            continue
        dim = max(range(len(box)), key=lambda dim: box[dim][1] - box[dim][0])
        for i, rank in enumerate(ranks):
            found[rank] = _share(box, dim, i, len(ranks))
    return dict(sorted(found.items()))


def _share(box: Box, dim: int, number: int, count: int) -> Box:
    """One of `count` pieces of a box along a dim."""
    low, high = box[dim]
    edges = tuple(low + (high - low) * i // count for i in (number, number + 1))
    return (*box[:dim], (edges[0], edges[1]), *box[dim + 1 :])


@lru_cache(maxsize=1 << 12)
def passed_on(after: GroupLayout, relayed: int) -> tuple[Parcel, ...]:
    """Who of the receiving group sends which piece to whom on its node, where `deal` has brought each its own."""
    pieces = _pieces(after, relayed) if relayed else {}
    found = []
    for ranks in _replicas(after, relayed) if relayed else ():
        begin = after.start(ranks[0])
        for source, target in permutations(ranks, 2):
            size = math.prod(high - low for low, high in pieces[source]) if source in pieces else 0
            if size:
                at = _within(pieces[source], begin)
                found.append(Parcel(source, target, at, at, size))
    return tuple(found)


def _within(box: Box, start: Shape) -> tuple[slice, ...]:
    return tuple(slice(low - at, high - at) for (low, high), at in zip(box, start, strict=True))
