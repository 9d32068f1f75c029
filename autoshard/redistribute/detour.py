"""Meeting points: layouts between two whose digits do not pair.

A dim that is split into 2 and shall be split into 3 parts has no digits that both share. Both ends lead to each point
by steps that exist.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from autoshard.layout.layout import Layout
from autoshard.redistribute.digits import Cuts


def meeting_points(before: Layout, after: Layout, shape: tuple[int, ...]) -> Iterator[Layout]:
    """Layouts between the two, other than themselves, each once."""
    known = {before, after}
    for point in _points(before, after):
        if point not in known and point.divides(shape):
            known.add(point)
            yield point


def _points(before: Layout, after: Layout) -> Iterator[Layout]:
    unfit = [dim for dim in range(before.rank) if _unfit(before.parts[dim], after.parts[dim])]
    for layout, other in ((before, after), (after, before)):
        for dim in unfit:
            yield from _elsewhere(layout, other, dim)
        bare = layout.dims
        for dim in unfit:
            bare = (*bare[:dim], (), *bare[dim + 1 :])
        yield layout.with_dims(bare)
    yield before.final()
    yield Layout.whole(before.mesh, before.rank)


def _unfit(parts: int, wanted: int) -> bool:
    return bool(parts % wanted) and bool(wanted % parts)


def _elsewhere(layout: Layout, other: Layout, dim: int) -> Iterator[Layout]:
    """The layout with a dim split further as the other has it, or with its pieces in another dim, or nowhere."""
    cuts = Cuts(layout, other, fine=True)
    wanted = cuts.dims[1][dim]
    free = [ref for ref in cuts.before(layout.free()) if ref in wanted or ref.name in cuts.clashing]
    for count in range(len(free), 0, -1):
        for more in itertools.combinations(free, count):
            yield layout.with_dim(dim, (*layout.dims[dim], *more))
    pieces = cuts.dims[0][dim]
    for start in range(len(pieces)):
        shorter = layout.with_dim(dim, pieces[:start])
        yield shorter
        for target in range(layout.rank):
            if target != dim:
                yield shorter.with_dim(target, (*layout.dims[target], *pieces[start:]))
