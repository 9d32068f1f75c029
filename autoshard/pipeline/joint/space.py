"""Choices of stages, and seconds that a step of each takes at least.

    choice = micro batches, devices of each group (and where there are several kinds, of which), how stages lie on the
             groups (straight, looped, in V form), cuts

Its least seconds are those of its busiest group: what lies before the group's first stage, and all its work, if its
devices share it evenly, nothing is sent and nobody waits. How the devices of a group form a mesh is no part of it.
Its expected seconds, by which choices are ordered (`guided`), count what sharing makes no less, starts of operators,
and the update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, combinations, islice, pairwise, permutations, product
from math import comb, prod

MOST_CHOICES = 1 << 16
"""Choices that are listed at most."""
MOST_KINDS = 1 << 10
"""Of these, ways to deal out devices to groups and groups to stages."""


@dataclass(frozen=True)
class StageChoice:
    """Where stages begin (block numbers, the first left out), devices by group, the group of each stage, and the kind
    of each group's devices; () where all are of one kind."""

    micro_batches: int
    devices: tuple[int, ...]
    places: tuple[int, ...]
    cuts: tuple[int, ...]
    kinds: tuple[int, ...] = ()

    @property
    def kind_of(self) -> tuple[int, ...]:
        """The kind of each group's devices."""
        return self.kinds or (0,) * len(self.devices)

    def edges(self, blocks: int) -> tuple[int, ...]:
        """Where stages begin and end, of so many blocks."""
        return 0, *self.cuts, blocks


@dataclass(frozen=True)
class BlockWork:
    """What is expected of choices: what each block takes on one device, of the first kind if there are several.

    Attributes:
        actions: seconds of a micro batch forward, for gradients of inputs and of weights.
        started, update_started: of a micro batch, and of the update, seconds of starting operators, which devices that
            share a block's work take each.
        update: of the update.
        nbytes: parameters, states and gradients.
        kept: bytes that a micro batch leaves for its backward pass.
        onward, back: seconds of what is sent from each block to the next, and back to it from there.
        others: the same on devices of the other kinds.
    """

    actions: tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]
    started: tuple[float, ...]
    update_started: tuple[float, ...]
    update: tuple[float, ...]
    nbytes: tuple[int, ...]
    kept: tuple[float, ...]
    onward: tuple[float, ...]
    back: tuple[float, ...]
    others: tuple[BlockWork, ...] = ()

    @cached_property
    def whole(self) -> tuple[float, ...]:
        """Seconds of each block for one micro batch, in all."""
        return tuple(map(sum, zip(*self.actions, strict=True)))

    @cached_property
    def done(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Seconds of a micro batch forward, and in all, before each block and behind the last."""
        return (0.0, *accumulate(self.actions[0])), (0.0, *accumulate(self.whole))

    @property
    def speeds(self) -> tuple[float, ...]:
        """How many times faster than the first each kind of devices is."""
        return tuple(sum(self.whole) / (sum(self.on(kind).whole) or 1.0) for kind in range(1 + len(self.others)))

    def on(self, kind: int) -> BlockWork:
        """What blocks take on devices of that kind."""
        return self.others[kind - 1] if kind else self

    def least_seconds(self, choice: StageChoice) -> float:
        """Seconds that a step of a choice takes at least."""
        done = [self.on(kind).done for kind in choice.kind_of]
        edges = choice.edges(len(self.whole))
        busy = [0.0] * len(choice.devices)
        heads: dict[int, float] = {}
        head = 0.0
        for stage, group in enumerate(choice.places):
            share, (forward, whole) = choice.devices[group], done[group]
            heads.setdefault(group, head)
            busy[group] += (whole[edges[stage + 1]] - whole[edges[stage]]) / share
            head += (forward[edges[stage + 1]] - forward[edges[stage]]) / share
        return max(heads[group] + choice.micro_batches * one for group, one in enumerate(busy))

    def expected(self, choice: StageChoice, limits: Sequence[float]) -> tuple[float, float]:
        """Seconds of a step, and how many times its limit the bytes of a device of the fullest group are, if the
        devices of each group share all and as many micro batches wait for their backward pass as 1F1B has there.

        Args:
            limits: bytes of a device of each kind.
        """
        edges = choice.edges(len(self.nbytes))
        groups, kinds = range(len(choice.devices)), [self.on(kind) for kind in choice.kind_of]
        busy, update, nbytes = ([0.0 for _ in groups] for _ in range(3))
        heads: dict[int, float] = {}
        trip = 0.0  # of one micro batch, there and back
        for stage, group in enumerate(choice.places):
            share, span = choice.devices[group], slice(edges[stage], edges[stage + 1])
            heads.setdefault(group, trip)
            work = kinds[group]
            one = shared_seconds(work.whole[span], work.started[span], share)
            trip, busy[group] = trip + one, busy[group] + one
            update[group] += shared_seconds(work.update[span], work.update_started[span], share)
            waiting = min(choice.micro_batches, len(groups) - group)
            nbytes[group] += (sum(self.nbytes[span]) + waiting * sum(self.kept[span])) / share
        ends = (max(trip, heads[group] + choice.micro_batches * busy[group]) + update[group] for group in groups)
        shares = (one / limits[kind] for one, kind in zip(nbytes, choice.kind_of, strict=True))
        return max(ends), max(shares)


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


Dealt = tuple[tuple[int, ...], tuple[int, ...]]
"""The devices of each group, and their kinds."""


def choices(
    devices: Sequence[int],
    seconds: Sequence[float],
    micro_batches: Sequence[int],
    most_groups: int,
    most: int = MOST_CHOICES,
    speeds: Sequence[float] = (1.0,),
) -> Iterator[StageChoice]:
    """All of them, or of too many those that cut near where stages share the work evenly, on equal groups first.

    Args:
        devices: how many there are of each kind.
        seconds: of each block.
        most: how many there are at most.
        speeds: how many times faster than the first each kind of devices is.
    """
    ways = list(islice(_ways(devices, min(sum(devices), len(seconds), most_groups), len(seconds)), MOST_KINDS))
    room = max(1, most // (len(ways) * len(micro_batches)))
    for split, kinds, places in ways:
        shares = tuple(split[group] * speeds[kinds[group]] / places.count(group) for group in places)
        for cuts in cuts_near(shares, seconds, room):
            own = kinds if len(devices) > 1 else ()
            yield from (StageChoice(count, split, places, cuts, own) for count in micro_batches)


def _ways(
    devices: Sequence[int], most_groups: int, blocks: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    """Devices of each group, their kinds, and the group of each stage: equal groups of each kind, then others."""
    for equal in (True, False):
        for groups in range(len(devices), most_groups + 1):
            for split, kinds in _dealt(devices, groups, equal):
                yield from ((split, kinds, places) for places in placements(groups) if len(places) <= blocks)


def _dealt(devices: Sequence[int], groups: int, equal: bool) -> Iterator[Dealt]:
    """All devices in so many groups, each of one kind, one kind behind the other: of each in equal groups, or not."""
    for order in permutations(range(len(devices))):
        for counts in _sums(groups, len(devices)):
            each = [list(splits(devices[kind], count)) for kind, count in zip(order, counts, strict=True)]
            for parts in product(*each):
                if all(len(set(part)) == 1 for part in parts) == equal:
                    kinds = [(kind,) * count for kind, count in zip(order, counts, strict=True)]
                    yield tuple(chain(*parts)), tuple(chain(*kinds))


def _sums(total: int, count: int) -> Iterator[tuple[int, ...]]:
    """So many numbers from 1 on with that sum."""
    for cuts in combinations(range(1, total), count - 1):
        yield tuple(end - start for start, end in pairwise((0, *cuts, total)))


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
