"""Parts of a transfer that are alike, of which one tells what all take: replicas that each send to their own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from autoshard.layout.layout import Layout
from autoshard.pipeline.transfers.deal import GroupLayout
from autoshard.pipeline.transfers.group import RankGroup, groups_along


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
