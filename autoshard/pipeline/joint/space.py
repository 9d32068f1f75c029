"""Choices of stages, and seconds that a step of each takes at least.

    choice = micro batches, devices of each group, how stages lie on the groups (straight, looped, in V form), cuts

Its least seconds are those of its busiest group: what lies before the group's first stage, and all its work, if its
devices share it evenly, nothing is sent and nobody waits. How the devices of a group form a mesh is no part of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations

STRAIGHT, LOOPED, V_FORM = "straight", "looped", "v"


@dataclass(frozen=True)
class StageChoice:
    """Where stages begin (block numbers, the first left out), devices by group, and the group of each stage."""

    micro_batches: int
    devices: tuple[int, ...]
    places: tuple[int, ...]
    cuts: tuple[int, ...]


@dataclass(frozen=True)
class BlockSeconds:
    """Seconds that each block takes on one device for one micro batch: forward, and in all."""

    forward: tuple[float, ...]
    whole: tuple[float, ...]

    def least_seconds(self, choice: StageChoice) -> float:
        """Seconds that a step of a choice takes at least."""
        forward, whole = ((0.0, *accumulate(one)) for one in (self.forward, self.whole))
        edges = (0, *choice.cuts, len(self.whole))
        busy = [0.0] * len(choice.devices)
        heads: dict[int, float] = {}
        head = 0.0
        for stage, group in enumerate(choice.places):
            share = choice.devices[group]
            heads.setdefault(group, head)
            busy[group] += (whole[edges[stage + 1]] - whole[edges[stage]]) / share
            head += (forward[edges[stage + 1]] - forward[edges[stage]]) / share
        return max(heads[group] + choice.micro_batches * one for group, one in enumerate(busy))


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
    if groups > 1:
        yield (*straight, *straight)
        yield (*straight, *reversed(straight))


def choices(devices: int, blocks: int, micro_batches: Sequence[int], most_groups: int) -> Iterator[StageChoice]:
    """All of them."""
    for groups in range(1, min(devices, blocks, most_groups) + 1):
        for split in splits(devices, groups):
            for places in placements(groups):
                for cuts in combinations(range(1, blocks), len(places) - 1):
                    yield from (StageChoice(count, split, places, cuts) for count in micro_batches)
