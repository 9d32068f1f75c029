"""The normal form of a redistribution: cuts and reductions first, then one exchange of blocks, gathers last.

Three chapters. `direct_steps` writes down at once what plans ask for most: cuts, sums and gathers, one all_to_all or
one reduce_scatter. `exchange_steps` is the form for tensors whose partial axes stay: after Rink et al.,
"Memory-efficient array redistribution through portable collective communication", cutting first makes all that follows
smaller and gathering comes last, so no block is ever larger than the larger end, and few bytes move. Their sequence of
all-to-alls and permutes in the middle is one exchange here (`routing.py`), because each of several would receive
almost a block. `reductions` says where to combine partial values: cuts come first, for they make them smaller; a value
that is partial along a piece of the mesh that shall split a dim is scattered there; along the others it is reduced in
place, or scattered along some dim and gathered after the blocks have changed hands, whichever moves less.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from functools import partial

from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import AxisRef, merge_refs, size_of
from autoshard.redistribute.positions import Cuts, Digits, paired, uncovered
from autoshard.redistribute.routing import Routing, route
from autoshard.redistribute.step import Step


def is_cut(before: Layout, after: Layout) -> bool:
    """Whether `after` follows by local cuts alone."""
    return (
        before.partial == after.partial
        and before.reduction == after.reduction
        and all(starts_with(new, old) for old, new in zip(before.dims, after.dims, strict=True))
    )


def starts_with(refs: Refs, prefix: Refs) -> bool:
    """Whether `prefix` are the major pieces of `refs` (the last one possibly a part of one)."""
    if len(prefix) > len(refs):
        return False
    if refs[: len(prefix)] == prefix:
        return True
    return refs[: len(prefix) - 1] == prefix[:-1] and prefix[-1].prefix_of(refs[len(prefix) - 1])


def without_prefix(refs: Refs, prefix: Refs) -> Refs:
    """What `refs` has behind its major pieces `prefix`."""
    if not prefix:
        return refs
    last, covering = prefix[-1], refs[len(prefix) - 1]
    rest = () if covering == last else (AxisRef(last.name, last.next, covering.next // last.next),)
    return rest + refs[len(prefix) :]


def direct_steps(before: Layout, after: Layout) -> tuple[Step, ...] | None:
    """The frequent cases, whose least cost is known: cuts, sums and gathers, or one exchange; else None.

    Every dim either grows by pieces or loses pieces at its minor end. What grows by free pieces is cut first,
    sums follow on the smaller blocks, gathers come last. One dim may instead take just the pieces that
    another loses (all_to_all), or those along which the tensor is partial (reduce_scatter).
    """
    if after.partial and (after.partial != before.partial or after.reduction != before.reduction):
        return None
    added: dict[int, Refs] = {}
    removed: dict[int, Refs] = {}
    for dim, (old, new) in enumerate(zip(before.dims, after.dims, strict=True)):
        if old == new:
            continue
        if starts_with(new, old):
            added[dim] = without_prefix(new, old)
        elif starts_with(old, new):
            removed[dim] = without_prefix(old, new)
        else:
            return None
    terms = () if after.partial else before.partial
    held = [ref for refs in (*removed.values(), terms) for ref in refs]
    if all(_are_disjoint(ref, one) for refs in added.values() for ref in refs for one in held):
        return tuple(_sequence(before, after, added, terms, removed))
    (dim, refs), *more = added.items()
    if more or refs != tuple(held) or len(removed) + bool(terms) != 1:
        return None
    if terms:
        return (Step("reduce_scatter", before, after, refs, dim),)
    return (Step("all_to_all", before, after, refs, dim, next(iter(removed))),)


def _are_disjoint(ref: AxisRef, other: AxisRef) -> bool:
    return not ref.clashes(other)


def _sequence(
    before: Layout, after: Layout, added: dict[int, Refs], terms: Refs, removed: dict[int, Refs]
) -> Iterator[Step]:
    """Cut the dims in `added`, combine the terms, gather the dims in `removed`."""
    now = before
    for dim in in_order(added, before, after):
        nxt = now.with_dim(dim, after.dims[dim])
        yield Step("slice", now, nxt, added[dim], dim)
        now = nxt
    if terms:
        yield Step("all_reduce", now, now.final(), terms)
        now = now.final()
    for dim in in_order(removed, before, after):
        nxt = now.with_dim(dim, after.dims[dim])
        yield Step("all_gather", now, nxt, removed[dim], dim)
        now = nxt


def in_order(dims: Collection[int], before: Layout, after: Layout) -> Collection[int]:
    """The dims in the order in which they are cut or gathered: where all orders move the same, inner pieces first."""
    return dims if len(dims) < 2 else [dim for dim in dict.fromkeys(inner_first(before, after)) if dim in dims]


def inner_first(before: Layout, after: Layout) -> list[int]:
    """The dims that are split, in the order in which the mesh's innermost pieces use them; a dim may occur again."""
    places = before.mesh.places
    uses = [
        (places[ref.name], ref.pre, side, dim)
        for side, layout in ((0, before), (-1, after))
        for dim, refs in enumerate(layout.dims)
        for ref in refs
    ]
    uses.sort(reverse=True)
    return [use[3] for use in uses]


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
    if digits.exchanges_blocks and middle != news:
        at_once = paired(sliced, news)
        if at_once is not None and not at_once.exchanges_blocks:
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
    if (
        not digits.exchanges_blocks
        and len(digits.cuts) == len(digits.joins) == 1
        and digits.cuts[0].new == digits.joins[0].old
    ):
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


Sequences = Iterator[tuple[Step, ...]]


def reductions(before: Layout, after: Layout, shape: tuple[int, ...]) -> Sequences:
    """The ways to combine the terms that end: steps after which all partial axes of the value are those of `after`."""
    cuts = Cuts(before, after, fine=True)
    kept = after.partial if before.reduction == after.reduction else ()
    ended = uncovered(before.partial, kept)
    ending = cuts.before(ended)
    if size_of(ending) != size_of(ended) or any(not _is_disjoint_from(ref, kept) for ref in ended):
        # What ends cannot be told from what stays: all terms are combined, and some begin again.
        ending = cuts.before(before.partial)
    tried: list[tuple] = []
    for eager in (False, True):
        way = _cut_and_scattered(before, cuts, ending, eager)
        if way not in tried:
            yield from _with_rest_combined(before, *way, shape)
        tried.append(way)


def _with_rest_combined(before: Layout, steps: list[Step], left: Refs, shape: tuple[int, ...]) -> Sequences:
    """Combine the terms that are left in place, or scatter them along some dims, beginning with any of them."""
    now = steps[-1].after if steps else before
    if not left:
        yield tuple(steps)
        return
    yield (*steps, _all_reduce(now, left))
    known: set[Layout] = set()
    for first in range(len(shape)):
        scattered, rest = _scattered(now, left, [first, *(dim for dim in range(len(shape)) if dim != first)], shape)
        if not scattered or scattered[-1].after in known:
            continue
        known.add(scattered[-1].after)
        summed = (_all_reduce(scattered[-1].after, rest),) if rest else ()
        yield (*steps, *scattered, *summed)


def _scattered(now: Layout, left: Refs, dims: list[int], shape: tuple[int, ...]) -> tuple[list[Step], Refs]:
    """Scatter as many of the terms as the dims' sizes allow, one dim after the other; and what is left."""
    steps: list[Step] = []
    for dim in dims:
        fit: list[AxisRef] = []
        for ref in left:
            if shape[dim] % (now.parts[dim] * size_of(fit) * ref.size) == 0:
                fit.append(ref)
        if fit:
            steps.append(_scatter(now, tuple(fit), dim))
            now, left = steps[-1].after, tuple(ref for ref in left if ref not in fit)
    return steps, left


def _cut_and_scattered(before: Layout, cuts: Cuts, ending: Refs, eager: bool) -> tuple[list[Step], Refs]:
    """Cut and scatter as the layout after wants it, as far as possible; and the terms that are left.

    With `eager` not in the order in which it wants the pieces: an exchange will sort them.
    """
    steps: list[Step] = []
    now, left = before, ending
    dims, wanted = list(cuts.dims[0]), cuts.dims[1]
    used = {*itertools.chain(*dims), *cuts.before(before.partial)}

    def fits(kind: str, ref: AxisRef) -> bool:
        return ref in left if kind == "reduce_scatter" else ref not in used and ref.name not in cuts.clashing

    grown = True
    while grown:
        grown = False
        for kind in ("slice", "reduce_scatter"):
            for dim, refs in enumerate(wanted):
                missing = _missing(dims[dim], refs)
                fit = tuple(filter(partial(fits, kind), missing) if eager else _leading(missing, partial(fits, kind)))
                if not fit:
                    continue
                grown = True
                dims[dim] += fit
                used.update(fit)
                left = tuple(ref for ref in left if ref not in fit)
                step = _slice(now, fit, dim) if kind == "slice" else _scatter(now, fit, dim)
                steps.append(step)
                now = step.after
    return steps, left


def _is_disjoint_from(ref: AxisRef, others: Refs) -> bool:
    return not any(ref.overlaps(other) for other in others)


def _missing(have: Refs, wanted: Refs) -> Refs:
    return wanted[_boundary(wanted, size_of(have)) :]


def _leading(refs: Refs, fits: Callable[[AxisRef], bool]) -> Refs:
    return tuple(itertools.takewhile(fits, refs))


def _slice(now: Layout, refs: Refs, dim: int) -> Step:
    return Step("slice", now, now.with_dim(dim, now.dims[dim] + refs), merge_refs(refs), dim)


def _scatter(now: Layout, refs: Refs, dim: int) -> Step:
    split = _without(now, refs).with_dim(dim, now.dims[dim] + refs)
    return Step("reduce_scatter", now, split, merge_refs(refs), dim)


def _all_reduce(now: Layout, refs: Refs) -> Step:
    return Step("all_reduce", now, _without(now, refs), merge_refs(refs))


def _without(layout: Layout, refs: Refs) -> Layout:
    """The layout with the terms along some pieces combined."""
    left = uncovered(layout.partial, refs)
    assert size_of(left) * size_of(refs) == size_of(layout.partial), f"[{layout}] is not partial along all of {refs}"
    return Layout(layout.mesh, layout.dims, left, layout.reduction)
