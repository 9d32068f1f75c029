"""Values on their routes: packed where they are made, sent, expected, and put together where they are read.

All boxes that go from one rank to another are one message. A receiver posts its messages in the order in which the
sender makes them, one ahead of what it needs. Where a route is relayed, the ranks of the receiving group pass on to
each other what they have received when they take it: they all do so at the same place of their common order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from autoshard.pipeline.planned.programs import Route
from autoshard.pipeline.transfers.deal import Parcel, deal, passed_on
from autoshard.runtime.array import array_dtype
from autoshard.runtime.comm import Comm
from autoshard.runtime.interpret import Parts
from autoshard.runtime.mail import Letter, Mail

AHEAD = 1
"""Messages of a route that are posted before they are needed."""


class Sender:
    """The end of a route on the group that makes its value."""

    def __init__(self, route: Route, comm: Comm, mail: Mail) -> None:
        self.route, self.ranks, self.mail = route, comm.ranks, mail
        self.sent = 0
        self.by_pair = by_pair(parcels_over(route)) if not route.stays else {}

    def send(self, parts: Parts) -> None:
        """Send the blocks of the hosted ranks to those that lack them."""
        before, after = self.route.before.group.ranks, self.route.after.group.ranks
        hosted = dict(zip(self.ranks, parts, strict=True))
        for (source, target), parcels in self.by_pair.items():
            if source in hosted:
                row = _packed(hosted[source], parcels)
                self.mail.send((before[source], after[target], tags_of(self.route)[0]), row)
                self.sent += row.nbytes if before[source] != after[target] else 0


class Receiver:
    """The end of a route on the group that reads its value.

    Args:
        order: the micro batches in the order in which they are sent.
    """

    def __init__(self, route: Route, comm: Comm, mail: Mail, order: Iterable[int | None]) -> None:
        self.route, self.ranks, self.mail = route, comm.ranks, mail
        self.dtype = array_dtype(route.value.type.dtype)
        self.by_pair, self.passed_on = by_pair(parcels_over(route)), by_pair(passed_on(route.after, route.relayed))
        self.sent = 0
        self.coming = deque(order)
        self.letters: dict[int | None, dict[tuple[int, int], Letter]] = {}

    def post(self, micro: int | None) -> list[Letter]:
        """Be ready for a micro batch's value, and for the next; the letters that bring it."""
        while micro not in self.letters:
            self._post_next()
        for _ in range(min(AHEAD, len(self.coming)) if len(self.letters) <= AHEAD else 0):
            self._post_next()
        return list(self.letters[micro].values())

    def _post_next(self) -> None:
        micro = self.coming.popleft()
        before, after = self.route.before.group.ranks, self.route.after.group.ranks
        self.letters[micro] = {
            (source, target): self.mail.expect(
                (before[source], after[target], tags_of(self.route)[0]), sum(one.size for one in parcels), self.dtype
            )
            for (source, target), parcels in self.by_pair.items()
            if target in self.ranks
        }

    def take(self, micro: int | None) -> Parts:
        """The blocks of the hosted ranks; waits where a transport can."""
        letters = self.letters.pop(micro)
        made = {rank: np.zeros(self.route.after.local, self.dtype) for rank in self.ranks}
        for (source, target), letter in letters.items():
            _place(made[target], letter.take(), self.by_pair[source, target])
        self._pass_on(made)
        return list(made.values())

    def _pass_on(self, blocks: Mapping[int, np.ndarray]) -> None:
        """Give other ranks of the group what they want, too, and take from them."""
        ranks, tag = self.route.after.group.ranks, tags_of(self.route)[1]
        letters: list[tuple[np.ndarray, Letter, list[Parcel]]] = []
        for (source, target), parcels in self.passed_on.items():
            if target in blocks and source not in blocks:
                channel, count = (ranks[source], ranks[target], tag), sum(one.size for one in parcels)
                letters.append((blocks[target], self.mail.expect(channel, count, self.dtype), parcels))
        for (source, target), parcels in self.passed_on.items():
            if source not in blocks:
                continue
            row = _packed(blocks[source], parcels)
            self.sent += row.nbytes
            if target in blocks:
                _place(blocks[target], row, parcels)
            else:
                self.mail.send((ranks[source], ranks[target], tag), row)
        for block, letter, parcels in letters:
            _place(block, letter.take(), parcels)


def tags_of(route: Route) -> tuple[int, int]:
    """Those of a route's messages from group to group, and inside of the receiving one."""
    return 2 * route.number, 2 * route.number + 1


def parcels_over(route: Route) -> tuple[Parcel, ...]:
    """The boxes of a route from group to group."""
    return deal(route.before, route.after, route.spans, route.relayed)


def _packed(block: np.ndarray, parcels: Sequence[Parcel]) -> np.ndarray:
    return np.concatenate([block[one.taken].reshape(-1) for one in parcels])


def _place(block: np.ndarray, row: np.ndarray, parcels: Sequence[Parcel]) -> None:
    start = 0
    for one in parcels:
        box = block[one.placed]
        block[one.placed] = row[start : start + one.size].reshape(box.shape)
        start += one.size


def by_pair(parcels: Iterable[Parcel]) -> dict[tuple[int, int], list[Parcel]]:
    """The boxes that go from one rank to another, which are one message, by the two."""
    found: dict[tuple[int, int], list[Parcel]] = {}
    for one in parcels:
        found.setdefault((one.source, one.target), []).append(one)
    return found
