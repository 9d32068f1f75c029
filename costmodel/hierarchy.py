"""Collectives of groups that span several levels of links: a node's fast links inside, the network outside.

`grouped_seconds(kind, nbytes, levels)` is the entry; levels are (ranks, link), innermost first, and the ranks multiply
to the group. The composition of levels follows the usual two-level algorithms (gather outside on a node's share, then
inside; reduce-scatter the mirror image; all-reduce as both around an all-reduce of the share).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodel.collectives import seconds
from costmodel.hardware import Link, Topology

Level = tuple[int, Link]


def group_levels(topology: Topology, steps: Sequence[tuple[int, int]]) -> tuple[Level, ...]:
    """How many ranks of a group each level of links joins, innermost first.

    Args:
        steps: the group as (count, stride) pairs: `count` ranks `stride` apart, for each direction it extends in.

    Raises:
        ValueError: the group reaches beyond the topology.
    """
    levels, inside, reach = [], 1, 1 + sum((count - 1) * stride for count, stride in steps)
    outermost = topology.link(reach)
    for span, link in topology.levels:
        whole = span is None or link is outermost
        joined = 1
        for count, stride in steps:
            joined *= count if whole else max(1, min(count, (span or 1) // stride))
        if joined > inside:
            levels.append((-(-joined // inside), link))  # a level that joins groups of unequal sizes joins two
            inside = joined
        if whole:
            break
    return tuple(levels)


def listed_levels(topology: Topology, rows: np.ndarray) -> tuple[Level, ...]:
    """The same of groups whose ranks are listed, for devices in any order; the group that lies widest decides.

    Args:
        rows: [groups, ranks], the places of the members, counted as the topology counts them.

    Raises:
        ValueError: a group reaches beyond the topology.
    """
    levels, inside, size = [], 1, rows.shape[1]
    for span, link in topology.levels:
        joined = size if span is None else size // _most_runs(rows, span)
        if joined > inside:
            levels.append((-(-joined // inside), link))
            inside = joined
        if joined == size:
            return tuple(levels)
    raise ValueError(f"a group of {size} ranks reaches beyond the topology, which ends at {topology.levels[-1][0]}")


def _most_runs(rows: np.ndarray, span: int) -> int:
    """Over how many aligned runs of `span` ranks a group lies at most."""
    runs = np.sort(rows // span, axis=1)
    return int((runs[:, 1:] != runs[:, :-1]).sum(axis=1).max(initial=0)) + 1


def grouped_seconds(kind: str, nbytes: float, levels: Sequence[Level]) -> float:
    """Seconds of a collective over a group with these levels; `nbytes` as in `collectives.seconds`.

    The better of the composition by levels and one flat algorithm over the outermost link.
    """
    if not levels:
        return 0.0
    ranks = 1
    for count, _ in levels:
        ranks *= count
    flat = float(seconds(kind, nbytes, ranks, levels[-1][1]))
    return flat if len(levels) == 1 else min(flat, _composed(kind, nbytes, levels))


def _composed(kind: str, nbytes: float, levels: Sequence[Level]) -> float:
    if kind == "permute":
        return float(seconds(kind, nbytes, 2, levels[-1][1]))
    if kind == "all_to_all":
        return float(sum(seconds(kind, nbytes, count, link) for count, link in levels))
    total, share = 0.0, nbytes
    for count, link in levels[:-1]:
        once = float(seconds("reduce_scatter", share, count, link))
        total += 2 * once if kind == "all_reduce" else once
        share /= count
    count, link = levels[-1]
    return total + float(seconds(kind, share, count, link))
