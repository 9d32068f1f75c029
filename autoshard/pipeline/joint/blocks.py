"""The forward pass as blocks between which it may be cut, and the seconds that each takes on one device."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from autoshard.ir.graph import Node
from autoshard.pipeline.stages.balance import chain_of
from autoshard.transform.micro.accumulate import StepParts
from costmodel import Hardware

MOST_BLOCKS = 24


@dataclass(frozen=True)
class ForwardBlocks:
    """Operators of the forward pass in blocks: `starts` are the places in `nodes` where one begins, but the first."""

    nodes: tuple[Node, ...]
    starts: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many blocks there are."""
        return len(self.starts) + 1

    def stages(self, cuts: Sequence[int]) -> dict[Node, int]:
        """The stage of each operator, where stages begin at these blocks (the first one's begin left out)."""
        places = [self.starts[cut - 1] for cut in cuts]
        return {node: bisect_right(places, i) for i, node in enumerate(self.nodes)}


def blocks_of(step: StepParts, hardware: Hardware, most: int = MOST_BLOCKS) -> ForwardBlocks:
    """At most so many blocks.

    Each begins with an operator that takes a tenth of the longest one's seconds or more. Of more such places those are
    taken over which less is sent than over their neighbours; and of these so many that all blocks take about as long.
    """
    chain = chain_of(step, hardware)
    places = _apart(0, len(chain.sent), chain.seconds)
    if chain.joined:
        places = [place for place in places if place - 1 not in chain.joined]
    if len(places) >= most:
        places = [place for place in _waists(chain.sent, chain.seconds) if place - 1 not in chain.joined]
    if len(places) >= most:
        places = _spread(places, chain.seconds, most)
    return ForwardBlocks(chain.nodes, tuple(places))


def _waists(sent: Sequence[int], seconds: Sequence[float]) -> list[int]:
    """Where a block begins: of each run of places over which the same is sent, if less than before and after it."""
    found: list[int] = []
    start = 0
    for i in range(1, len(sent) + 1):
        if i < len(sent) and sent[i] == sent[start]:
            continue
        before = sent[start - 1] if start else None
        after = sent[i] if i < len(sent) else None
        if (before is None or before > sent[start]) and (after is None or after > sent[start]):
            found += _apart(start, i, seconds)
        start = i
    return found


def _apart(start: int, stop: int, seconds: Sequence[float]) -> list[int]:
    """Places start..stop - 1 (behind that operator), those before operators that take more than a tenth of the most."""
    heavy = max(seconds[start + 1 : stop + 1], default=0.0) / 10
    return [place + 1 for place in range(start, stop) if seconds[place + 1] >= heavy]


def _spread(places: Sequence[int], seconds: Sequence[float], most: int) -> list[int]:
    total, done, at = sum(seconds), 0.0, 0
    chosen: list[int] = []
    for i, one in enumerate(seconds):
        if i in places and done >= total * (at + 1) / most - 1e-15 and len(chosen) < most - 1:
            chosen.append(i)
            at = int(done / total * most)
        done += one
    return chosen
