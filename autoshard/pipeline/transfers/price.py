"""What it takes to bring a value from one group to another, and in which layouts it best leaves and arrives.

Ways: direct; or cut finer where it is left (terms that are summed up are scattered, `reduce-scatter, send, gather`), or
finer where it arrives, and gathered there over the links inside of the group (`split, send, gather`); or to each node
once, where ranks that want the same block fetch pieces of it and pass them on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product

import numpy as np

from autoshard.core.tensortype import TensorType
from autoshard.cost.prices import prices_for
from autoshard.layout.layout import Layout
from autoshard.pipeline.transfers.deal import GroupLayout, Parcel, deal, has_replicas, passed_on
from autoshard.pipeline.transfers.group import RankGroup, groups_along
from costmodel import Hardware, grouped_seconds


@dataclass(frozen=True)
class TransferPath:
    """A value that is left in `made`, is brought to `sent`, goes over, arrives in `received` and is wanted in `wanted`.

    `seconds` are of all of it, `moving` of the messages; `relayed` is of how many ranks those pass on to each other
    what they receive, 0: none (see `deal`).
    """

    sent: GroupLayout
    received: GroupLayout
    seconds: float
    moving: float
    relayed: int = 0


def cheapest_way(
    of: TensorType, made: Layout, wanted: Layout, groups: tuple[RankGroup, RankGroup], hardware: Hardware
) -> TransferPath:
    """The way that takes the fewest seconds; of equal ones that which sends less over the outermost links, of these the
    first: direct before all others."""
    prices, best, least = prices_for(hardware), None, (math.inf, 0)
    spans = node_spans(hardware)
    for sent, received in product(_finer(made.final(), of), _finer(wanted.final(), of)):
        around = prices.redistribution(made, sent, of) + prices.redistribution(received, wanted, of)
        if around >= least[0]:
            continue
        ends = GroupLayout.of(groups[0], sent, of.shape), GroupLayout.of(groups[1], received, of.shape)
        for relayed in (0, *(span for span in spans if has_replicas(ends[1], span))):
            messages = ValueMessages(*ends, of.dtype.itemsize, spans, relayed)
            moving = messages.seconds(hardware)
            key = moving + around, messages.slow_bytes(spans[-1]) if spans else 0
            if best is None or _is_less(key, least):
                best, least = TransferPath(*ends, key[0], moving, relayed), key
    assert best is not None, "a value can always go directly"
    return best


def _is_less(one: tuple[float, int], other: tuple[float, int]) -> bool:
    """Seconds decide, and bytes where these are equal but for rounding."""
    same = math.isclose(one[0], other[0], rel_tol=1e-9)
    return one[1] < other[1] if same else one[0] < other[0]


def node_spans(hardware: Hardware) -> tuple[int, ...]:
    """How many consecutive ranks lie near each other, at each level of links but the outermost."""
    return tuple(span for span, _ in hardware.topology.levels if span is not None)


def _finer(layout: Layout, of: TensorType) -> Iterator[Layout]:
    """The layout, and those that cut one dim further by all the axes that it leaves free."""
    yield layout
    free = layout.free()
    for dim in range(layout.rank) if free else ():
        parts = layout.with_dim(dim, (*layout.dims[dim], *free))
        if of.shape[dim] % parts.parts[dim] == 0:
            yield parts


@dataclass(frozen=True)
class ValueMessages:
    """The messages that bring a value over: one for each two ranks, and where it is relayed more inside of the
    receiving group; `spans` and `relayed` as for `deal`."""

    before: GroupLayout
    after: GroupLayout
    itemsize: int
    spans: tuple[int, ...] = ()
    relayed: int = 0

    def seconds(self, hardware: Hardware) -> float:
        """Of the rank that sends or receives longest, one message after the other, on each hop."""
        hops, _ = self._hops(node_spans(hardware))
        return sum(_busiest(hop, hardware) for hop in hops)

    def slow_bytes(self, span: int) -> int:
        """Bytes that go from one node of `span` ranks to another."""
        hops, parts = self._hops((span,))
        pairs = (pair for hop in hops for pair in hop.items())
        return parts * sum(nbytes for (source, target), nbytes in pairs if source // span != target // span)

    def _hops(self, spans: tuple[int, ...]) -> tuple[tuple[dict[tuple[int, int], int], ...], int]:
        """Bytes from one of all ranks to another, from group to group and then inside of the receiving one; of one of
        parts that are alike for these nodes, too, and how many there are."""
        nodes = tuple(sorted({*self.spans, *spans, *((self.relayed,) if self.relayed else ())}))
        if nodes not in self._known:
            before, after, parts = one_of_equal_parts(self.before, self.after, nodes)
            over = deal(before, after, self.spans, self.relayed)
            ranks = before.group.ranks, after.group.ranks
            inside = passed_on(after, self.relayed)
            self._known[nodes] = (self._bytes(over, *ranks), self._bytes(inside, ranks[1], ranks[1])), parts
        return self._known[nodes]

    @cached_property
    def _known(self) -> dict[tuple[int, ...], tuple[tuple[dict[tuple[int, int], int], ...], int]]:
        return {}

    def _bytes(
        self, parcels: Iterable[Parcel], sources: Sequence[int], targets: Sequence[int]
    ) -> dict[tuple[int, int], int]:
        found: dict[tuple[int, int], int] = {}
        for one in parcels:
            pair = sources[one.source], targets[one.target]
            if pair[0] != pair[1]:
                found[pair] = found.get(pair, 0) + one.size * self.itemsize
        return found


def _busiest(hop: Mapping[tuple[int, int], int], hardware: Hardware) -> float:
    busy: dict[tuple[str, int], float] = {}
    for (source, target), nbytes in hop.items():
        took = message_seconds(source, target, nbytes, hardware)
        for key in (("out", source), ("in", target)):
            busy[key] = busy.get(key, 0.0) + took
    return max(busy.values(), default=0.0)


def message_seconds(source: int, target: int, nbytes: int, hardware: Hardware) -> float:
    """Seconds of a message from rank to rank, over the outermost links between them."""
    for span, link in hardware.topology.levels:
        if span is None or source // span == target // span:
            return grouped_seconds("permute", nbytes, ((2, link),))
    return grouped_seconds("permute", nbytes, ((2, hardware.topology.levels[-1][1]),))


# Parts of a transfer that are alike, of which one tells what all take: replicas that each send to their own.


def one_of_equal_parts(
    before: GroupLayout, after: GroupLayout, spans: tuple[int, ...]
) -> tuple[GroupLayout, GroupLayout, int]:
    """The first of the parts, and how many there are; all of it and 1, where they are not alike.

    Both groups split a dim first by an axis of one size, such as the batch by replicas: so no part sends to another.
    Parts are alike if the ranks of each lie as those of the first do, on nodes of `spans` ranks, too.
    """
    count = 1
    while found := _first_part(before, after, spans):
        before, after, parts = found
        count *= parts
    return before, after, count


def _first_part(
    before: GroupLayout, after: GroupLayout, spans: tuple[int, ...]
) -> tuple[GroupLayout, GroupLayout, int] | None:
    for dim in range(len(before.shape)):
        names = [_leading_axis(one, dim) for one in (before, after)]
        groups = [_along(one.group, name) for one, name in zip((before, after), names, strict=True) if name]
        if len(groups) < 2 or len(groups[0]) != len(groups[1]):
            continue
        sources, targets = ([part.ranks for part in parts] for parts in groups)
        if _are_alike(sources, targets, spans):
            first = [_part(one, dim, parts[0]) for one, parts in zip((before, after), groups, strict=True)]
            return first[0], first[1], len(groups[0])
    return None


@lru_cache(maxsize=1 << 8)
def _along(group: RankGroup, axis: str) -> tuple[RankGroup, ...]:
    """A group for each place along an axis of its mesh."""
    parts = groups_along(group.mesh, axis)
    return tuple(RankGroup(one.mesh, tuple(group.ranks[place] for place in one.ranks)) for one in parts)


def _leading_axis(held: GroupLayout, dim: int) -> str | None:
    """The axis by which a dim is split first, into equal parts without padding."""
    refs, sizes = held.layout.dims[dim], held.layout.mesh.sizes
    if not refs or refs[0].size != sizes[refs[0].name] or refs[0].size == 1:
        return None
    return refs[0].name if held.shape[dim] == held.padded[dim] else None


def _are_alike(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], spans: tuple[int, ...]) -> bool:
    """Whether in each part all ranks are as far from each other as in the first, and on nodes alike."""
    ranks = np.concatenate([np.asarray(sources), np.asarray(targets)], axis=1)
    if np.any(ranks - ranks[:, :1] != ranks[0] - ranks[0, 0]):
        return False
    ordered = np.sort(ranks, axis=1)
    borders = [np.diff(ordered // span, axis=1) > 0 for span in spans]
    return all(bool(np.all(one == one[0])) for one in borders)


def _part(held: GroupLayout, dim: int, group: RankGroup) -> GroupLayout:
    """What the first part holds, on a mesh without the axis."""
    axis, *others = held.layout.dims[dim]
    layout = Layout(group.mesh, (*held.layout.dims[:dim], tuple(others), *held.layout.dims[dim + 1 :]))
    shape, padded = ((*sizes[:dim], sizes[dim] // axis.size, *sizes[dim + 1 :]) for sizes in (held.shape, held.padded))
    return GroupLayout(group, layout, shape, padded)
