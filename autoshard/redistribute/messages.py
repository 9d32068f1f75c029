"""Who sends how much to whom in a step that is no collective of all: a permute, boxes that are fetched, a halo."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from autoshard.redistribute.fetch import Fetch
from autoshard.redistribute.step import Step
from autoshard.redistribute.window import WindowStep

POINT_TO_POINT = ("permute", "halo")
"""Kinds of steps that are messages between two ranks each."""


def received(step: Step | WindowStep, shape: Sequence[int], rank: int) -> Mapping[int, float]:
    """The elements that a rank receives from each other rank, for a tensor of the global `shape`.

    Args:
        step: of one of the kinds POINT_TO_POINT.

    >>> from autoshard import Layout, Mesh
    >>> mesh = Mesh.parse("a=4")
    >>> from autoshard.redistribute.planner import plan_steps
    >>> before, after = Layout.parse("a:(1)2.a:(2)2", mesh), Layout.parse("a:(2)2.a:(1)2", mesh)
    >>> (step,) = plan_steps(before, after, (24,))
    >>> dict(received(step, (24,), 1))
    {2: 6.0}
    """
    if isinstance(step, WindowStep):
        found = _halo(step, shape, rank)
    elif step.fetched is not None:
        found = _fetched(step.fetched, shape, rank)
    else:
        found = _permuted(step, shape, rank)
    return {source: count for source, count in sorted(found.items()) if source != rank and count}


def _permuted(step: Step, shape: Sequence[int], rank: int) -> dict[int, float]:
    found: dict[int, float] = defaultdict(float)
    piece = math.prod(step.after.local_shape(shape)) / step.rounds
    for number in range(step.rounds):
        found[step.routing.round(number).sources[rank]] += piece
    return found


def _fetched(one: Fetch, shape: Sequence[int], rank: int) -> dict[int, float]:
    found: dict[int, float] = defaultdict(float)
    for piece in one.pieces(rank, shape):
        found[piece.source] += float(math.prod(box.stop - box.start for box in piece.target_box))
    return found


def _halo(step: WindowStep, shape: Sequence[int], rank: int) -> dict[int, float]:
    found: dict[int, float] = defaultdict(float)
    position, members = step.groups.position(rank), step.groups.members(rank)
    for piece in step.pieces(position) if step.is_split else ():
        found[int(members[piece.source])] += float(piece.count * step.line(shape))
    return found
