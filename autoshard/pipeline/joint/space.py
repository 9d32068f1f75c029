"""Choices of stages, and seconds that a step of each takes at least.

    choice = micro batches, devices of each group, how stages lie on the groups (straight, looped, in V form), cuts

Its least seconds are those of its busiest group: what lies before the group's first stage, and all its work, if its
devices share it evenly, nothing is sent and nobody waits. How the devices of a group form a mesh is no part of it.
Its expected seconds, by which choices are ordered (`guided`), count what sharing makes no less, starts of operators,
and the update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, combinations, islice, pairwise, product
from math import comb, prod

MOST_CHOICES = 1 << 16
"""Choices that are listed at most."""
MOST_KINDS = 1 << 10
"""Of these, ways to deal out devices to groups and groups to stages."""


@dataclass(frozen=True)
class StageChoice:
    """Where stages begin (block numbers, the first left out), devices by group, and the group of each stage."""

    micro_batches: int
    devices: tuple[int, ...]
    places: tuple[int, ...]
    cuts: tuple[int, ...]

    def edges(self, blocks: int) -> tuple[int, ...]:
        """Where stages begin and end, of so many blocks."""
        return 0, *self.cuts, blocks


@dataclass(frozen=True)
class BlockWork:
    """What is expected of choices: what each block takes on one device.

    Attributes:
        actions: seconds of a micro batch forward, for gradients of inputs and of weights.
        started, update_started: of a micro batch, and of the update, seconds of starting operators, which devices that
            share a block's work take each.
        update: of the update.
        nbytes: parameters, states and gradients.
        kept: bytes that a micro batch leaves for its backward pass.
        onward, back: seconds of what is sent from each block to the next, and back to it from there.
    """

    actions: tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]
    started: tuple[float, ...]
    update_started: tuple[float, ...]
    update: tuple[float, ...]
    nbytes: tuple[int, ...]
    kept: tuple[float, ...]
    onward: tuple[float, ...]
    back: tuple[float, ...]

    @cached_property
    def whole(self) -> tuple[float, ...]:
        """Seconds of each block for one micro batch, in all."""
        return tuple(map(sum, zip(*self.actions, strict=True)))

    def least_seconds(self, choice: StageChoice) -> float:
        """Seconds that a step of a choice takes at least."""
        forward, whole = ((0.0, *accumulate(one)) for one in (self.actions[0], self.whole))
        edges = choice.edges(len(self.whole))
        busy = [0.0] * len(choice.devices)
        heads: dict[int, float] = {}
        head = 0.0
        for stage, group in enumerate(choice.places):
            share = choice.devices[group]
            heads.setdefault(group, head)
            busy[group] += (whole[edges[stage + 1]] - whole[edges[stage]]) / share
            head += (forward[edges[stage + 1]] - forward[edges[stage]]) / share
        return max(heads[group] + choice.micro_batches * one for group, one in enumerate(busy))

    def expected(self, choice: StageChoice) -> tuple[float, float]:
        """Seconds of a step, and bytes of a device of the fullest group, if the devices of each group share all and as
        many micro batches wait for their backward pass as 1F1B has there."""
        edges = choice.edges(len(self.nbytes))
        groups = range(len(choice.devices))
        busy, update, nbytes = ([0.0 for _ in groups] for _ in range(3))
        heads: dict[int, float] = {}
        trip = 0.0  # of one micro batch, there and back
        for stage, group in enumerate(choice.places):
            share, span = choice.devices[group], slice(edges[stage], edges[stage + 1])
            heads.setdefault(group, trip)
            one = shared_seconds(self.whole[span], self.started[span], share)
            trip, busy[group] = trip + one, busy[group] + one
            update[group] += shared_seconds(self.update[span], self.update_started[span], share)
            waiting = min(choice.micro_batches, len(groups) - group)
            nbytes[group] += (sum(self.nbytes[span]) + waiting * sum(self.kept[span])) / share
        ends = (max(trip, heads[group] + choice.micro_batches * busy[group]) + update[group] for group in groups)
        return max(ends), max(nbytes)


def shared_seconds(seconds: Sequence[float], started: Sequence[float], devices: int) -> float:
    """Seconds of blocks whose work devices share evenly, but for starts of operators."""
    starts = sum(started)
    return starts + (sum(seconds) - starts) / devices


def splits(devices: int, groups: int) -> Iterator[tuple[int, ...]]:
    """How many devices each of so many groups may have: a divisor of all of them each, all of them used.

    >>> list(splits(4, 2))
    [(2, 2)]
    >>> list(splits(4, 3))
    [(1, 1, 2), (1, 2, 1), (2, 1, 1)]
    """
    sizes = [one for one in range(1, devices + 1) if devices % one == 0]

    def rest(left: int, count: int) -> Iterator[tuple[int, ...]]:
        if count == 1:
            yield from ((left,) for _ in range(left in sizes))
            return
        for size in sizes:
            if size <= left - (count - 1):
                yield from ((size, *others) for others in rest(left - size, count - 1))

    yield from rest(devices, groups)


def placements(groups: int) -> Iterator[tuple[int, ...]]:
    """The group of each stage: one stage each; two each in turn; two each there and back."""
    straight = tuple(range(groups))
    yield straight
    yield (*straight, *straight)
    if groups > 1:  # of one group it is the same
        yield (*straight, *reversed(straight))


def choices(
    devices: int, seconds: Sequence[float], micro_batches: Sequence[int], most_groups: int, most: int = MOST_CHOICES
) -> Iterator[StageChoice]:
    """All of them, or of too many those that cut near where stages share the work evenly, on equal groups first.

    Args:
        seconds: of each block.
        most: how many there are at most.
    """
    kinds = list(islice(_kinds(devices, min(devices, len(seconds), most_groups), len(seconds)), MOST_KINDS))
    room = max(1, most // (len(kinds) * len(micro_batches)))
    for split, places in kinds:
        for cuts in cuts_near(tuple(split[group] / places.count(group) for group in places), seconds, room):
            yield from (StageChoice(count, split, places, cuts) for count in micro_batches)


def _kinds(devices: int, most_groups: int, blocks: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Devices of each group and the group of each stage: equal groups, then others."""
    for equal in (True, False):
        for groups in range(1, most_groups + 1):
            alike = [(devices // groups,) * groups] if devices % groups == 0 else []
            for split in alike if equal else (one for one in splits(devices, groups) if one not in alike):
                yield from ((split, places) for places in placements(groups) if len(places) <= blocks)


def cuts_near(shares: Sequence[float], seconds: Sequence[float], room: int) -> Iterator[tuple[int, ...]]:
    """Where stages may begin that take these shares of the work: all cuts, or of more than there is room for those
    that are least blocks away from where each stage has its share.

    >>> list(cuts_near([1, 1], [1, 1, 1, 1], room=3))
    [(1,), (2,), (3,)]
    >>> list(cuts_near([1, 2, 1], [1, 1, 1, 1, 1, 1, 1, 1], room=1))
    [(2, 6)]
    """
    last, count = len(seconds), len(shares) - 1
    if comb(last - 1, count) <= room:
        yield from combinations(range(1, last), count)
        return
    done, wanted = list(accumulate(seconds)), list(accumulate(shares))
    even: list[int] = []
    for i in range(count):
        near = min(range(1, last), key=lambda at, part=wanted[i] / wanted[-1]: abs(done[at - 1] - part * done[-1]))
        even.append(min(max(near, even[-1] + 1 if even else 1), last - count + i))
    far = 0
    while prod(map(len, _windows(even, far + 1, last))) <= room:
        far += 1
    for cuts in product(*_windows(even, far, last)):
        if all(one < other for one, other in pairwise(cuts)):
            yield cuts


def _windows(even: Sequence[int], far: int, last: int) -> list[range]:
    return [range(max(1, at - far), min(last, at + far + 1)) for at in even]
