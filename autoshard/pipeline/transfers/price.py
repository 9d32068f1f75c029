"""What it takes to bring a value from one group to another, and in which layouts it best leaves and arrives.

Ways: direct; or cut finer where it is left (terms that are summed up are scattered, `reduce-scatter, send, gather`), or
finer where it arrives, and gathered there over the links inside of the group (`split, send, gather`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from autoshard.core.tensortype import TensorType
from autoshard.cost.prices import prices_for
from autoshard.layout.layout import Layout
from autoshard.pipeline.transfers.deal import GroupLayout, bytes_between, deal
from autoshard.pipeline.transfers.group import RankGroup
from costmodel import Hardware, grouped_seconds


@dataclass(frozen=True)
class TransferPath:
    """A value that is left in `made`, is brought to `sent`, goes over, arrives in `received` and is wanted in `wanted`.

    `seconds` are of all of it, `moving` of the messages from group to group.
    """

    sent: GroupLayout
    received: GroupLayout
    seconds: float
    moving: float


def cheapest_way(
    of: TensorType, made: Layout, wanted: Layout, groups: tuple[RankGroup, RankGroup], hardware: Hardware
) -> TransferPath:
    """The way that takes the fewest seconds; of equal ones the first: direct before all others."""
    prices, best = prices_for(hardware), None
    for sent, received in product(_finer(made.final(), of), _finer(wanted.final(), of)):
        around = prices.redistribution(made, sent, of) + prices.redistribution(received, wanted, of)
        if best is not None and around >= best.seconds:
            continue
        ends = GroupLayout.of(groups[0], sent, of.shape), GroupLayout.of(groups[1], received, of.shape)
        moving = moving_seconds(*ends, of.dtype.itemsize, hardware)
        if best is None or moving + around < best.seconds:
            best = TransferPath(*ends, moving + around, moving)
    assert best is not None, "a value can always go directly"
    return best


def _finer(layout: Layout, of: TensorType) -> Iterator[Layout]:
    """The layout, and those that cut one dim further by all the axes that it leaves free."""
    yield layout
    free = layout.free()
    for dim in range(layout.rank) if free else ():
        parts = layout.with_dim(dim, (*layout.dims[dim], *free))
        if of.shape[dim] % parts.parts[dim] == 0:
            yield parts


def moving_seconds(before: GroupLayout, after: GroupLayout, itemsize: int, hardware: Hardware) -> float:
    """Seconds of the messages from group to group: those of the rank that sends or receives longest."""
    return ValueMessages(before, after, itemsize).seconds(hardware)


@dataclass(frozen=True)
class ValueMessages:
    """The messages that bring a value over: one for each two ranks."""

    before: GroupLayout
    after: GroupLayout
    itemsize: int

    @cached_property
    def nbytes(self) -> dict[tuple[int, int], int]:
        """Bytes from one of all ranks to another."""
        found: dict[tuple[int, int], int] = {}
        for one in deal(self.before, self.after):
            pair = self.before.group.ranks[one.source], self.after.group.ranks[one.target]
            if pair[0] != pair[1]:
                found[pair] = found.get(pair, 0) + one.size * self.itemsize
        return found

    def seconds(self, hardware: Hardware) -> float:
        """Of the rank that sends or receives longest, one message after the other."""
        busy: dict[tuple[str, int], float] = {}
        for (source, target), nbytes in self.nbytes.items():
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


def slow_bytes(before: GroupLayout, after: GroupLayout, itemsize: int, span: int) -> int:
    """Bytes that go from one node of `span` ranks to another."""
    pairs = ValueMessages(before, after, itemsize).nbytes.items()
    return sum(nbytes for (source, target), nbytes in pairs if source // span != target // span)


def slow_bound(before: GroupLayout, after: GroupLayout, itemsize: int, span: int) -> int:
    """Bytes that have to go from node to node: what the ranks of each node need together and none of it has."""
    total = 0
    nodes: dict[int, list[int]] = {}
    for place, rank in enumerate(after.group.ranks):
        nodes.setdefault(rank // span, []).append(place)
    for node, places in nodes.items():
        needed = np.zeros(after.shape, bool)
        for place in places:
            needed[tuple(slice(*pair) for pair in after.box(place))] = True
        for place, rank in enumerate(before.group.ranks):
            if rank // span == node:
                needed[tuple(slice(*pair) for pair in before.box(place))] = False
        total += int(needed.sum()) * itemsize
    return total


__all__ = [
    "ValueMessages",
    "TransferPath",
    "bytes_between",
    "cheapest_way",
    "message_seconds",
    "moving_seconds",
    "slow_bound",
]
