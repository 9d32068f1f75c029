"""Final values: cuts, then one exchange, then gathers. This normal form moves what the lower bound asks for.

After Rink et al., "Memory-efficient array redistribution through portable collective communication": cutting first
makes all that follows smaller, gathering comes last, so no block is ever larger than the larger end. Their sequence
of all-to-alls and permutes in the middle is one exchange here (`routing.py`), because each of several would receive
almost a block.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import AxisRef, merge_refs, size_of
from autoshard.redistribute.digits import Cuts, Digits, paired
from autoshard.redistribute.direct import in_order
from autoshard.redistribute.routing import Routing, route
from autoshard.redistribute.step import Step

Dims = tuple[Refs, ...]


def exchange_steps(before: Layout, after: Layout) -> tuple[Step, ...] | None:
    """The steps between layouts with the same partial axes; None if their digits do not pair."""
    cuts = Cuts(before, after)
    olds, news = cuts.dims
    sliced = _sliced(olds, news, {*itertools.chain(*olds), *cuts.before(before.partial)}, cuts.clashing)
    middle = _middle(sliced, news, cuts.clashing)
    digits = paired(sliced, middle)
    if digits is None:
        return None
    if digits.moves and middle != news:
        at_once = paired(sliced, news)
        if at_once is not None and not at_once.moves:
            middle, digits = news, at_once  # every rank keeps a part of its block, which it would not on the way
    steps = list(_slices(before, after, sliced, olds))
    now = steps[-1].after if steps else before
    target = now.with_dims(middle)
    if now is not target:
        steps.append(_exchange(now, target, digits, cuts))
    return (*steps, *_gathers(target, before, middle, news))


def _sliced(olds: Dims, news: Dims, used: set[AxisRef], clashing: frozenset[str]) -> Dims:
    """The dims split further by free pieces that the layout after wants there."""
    dims = []
    for old, new in zip(olds, news, strict=True):
        missing = new[_boundary(new, size_of(old)) :] if old != new else ()
        if not missing:
            dims.append(old)
            continue
        free = tuple(itertools.takewhile(lambda ref: ref not in used and ref.name not in clashing, missing))
        used.update(free)
        dims.append(old + free)
    return tuple(dims)


def _boundary(refs: Refs, parts: int) -> int:
    """How many of the refs make that many parts; all of them if no number does."""
    count, made = 0, 1
    while count < len(refs) and made < parts:
        made *= refs[count].size
        count += 1
    return count if made == parts else len(refs)


def _middle(olds: Dims, news: Dims, clashing: frozenset[str]) -> Dims:
    """The layout after, still split by what is gathered last: pieces that it does not use."""
    wanted = set(itertools.chain(*news))
    dims = []
    for old, new in zip(olds, news, strict=True):
        if old == new:
            dims.append(new)
            continue
        parts, kept = size_of(new), size_of(old)
        if kept <= parts or kept % parts:
            dims.append(new)
            continue
        tail = old[_boundary(old, parts) :]
        left = tuple(ref for ref in (tail or old) if ref not in wanted and ref.name not in clashing)
        if not tail and size_of(left) != kept // parts:
            left = ()
        dims.append(new + left)
    return tuple(dims)


def _slices(now: Layout, after: Layout, dims: Dims, olds: Dims) -> Iterator[Step]:
    changed = [dim for dim, old in enumerate(olds) if old != dims[dim]]
    for dim in in_order(changed, now, after):
        nxt = now.with_dim(dim, dims[dim])
        yield Step("slice", now, nxt, merge_refs(dims[dim][len(olds[dim]) :]), dim)
        now = nxt


def _exchange(before: Layout, after: Layout, digits: Digits, cuts: Cuts) -> Step:
    """An all_to_all if one dim just takes what another loses; else a permute, in rounds if need be."""
    if not digits.moves and len(digits.cuts) == len(digits.joins) == 1 and digits.cuts[0].new == digits.joins[0].old:
        taken, lost = digits.cuts[0], digits.joins[0]
        return Step("all_to_all", before, after, merge_refs(taken.new), taken.dim, lost.dim)
    # The cuts hold for layouts in between as well, unless each of the two ends has its own.
    routing = route(before, after) if cuts.clashing else Routing(before, after, digits, cuts)
    assert routing is not None, f"the digits of [{before}] and [{after}] pair"
    step = Step("permute", before, after, merge_refs(routing.axes))
    step.__dict__["routing"] = routing  # what the step would find again
    return step


def _gathers(now: Layout, before: Layout, middle: Dims, news: Dims) -> Iterator[Step]:
    """Gather what is left over at the minor ends."""
    longer = [dim for dim, old in enumerate(middle) if len(old) > len(news[dim])]
    for dim in in_order(longer, before, now):
        nxt = now.with_dim(dim, news[dim])
        yield Step("all_gather", now, nxt, merge_refs(middle[dim][len(news[dim]) :]), dim)
        now = nxt
