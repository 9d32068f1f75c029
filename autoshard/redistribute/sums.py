"""Terms that end: where to combine them, so that little is received.

Cuts come first, for they make the terms smaller. Terms along a piece that shall split a dim are scattered there; the
others are combined in place, or scattered along some dim and joined after the blocks have changed hands, whichever
moves less.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial

from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import AxisRef, merge_refs, size_of
from autoshard.redistribute.digits import Cuts, apart
from autoshard.redistribute.exchange import _boundary
from autoshard.redistribute.step import Step

Ways = Iterator[tuple[Step, ...]]


def reductions(before: Layout, after: Layout, shape: tuple[int, ...]) -> Ways:
    """The ways to combine the terms that end: steps after which all partial axes of the value are those of `after`."""
    cuts = Cuts(before, after, fine=True)
    kept = after.partial if before.reduction == after.reduction else ()
    ended = apart(before.partial, kept)
    ending = cuts.before(ended)
    if size_of(ending) != size_of(ended) or any(not _apart_from(ref, kept) for ref in ended):
        # What ends cannot be told from what stays: all terms are combined, and some begin again.
        ending = cuts.before(before.partial)
    tried: list[tuple] = []
    for eager in (False, True):
        way = _towards(before, cuts, ending, eager)
        if way not in tried:
            yield from _finished(before, *way, shape)
        tried.append(way)


def _finished(before: Layout, steps: list[Step], left: Refs, shape: tuple[int, ...]) -> Ways:
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


def _towards(before: Layout, cuts: Cuts, ending: Refs, eager: bool) -> tuple[list[Step], Refs]:
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


def _apart_from(ref: AxisRef, others: Refs) -> bool:
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
    left = apart(layout.partial, refs)
    assert size_of(left) * size_of(refs) == size_of(layout.partial), f"[{layout}] is not partial along all of {refs}"
    return Layout(layout.mesh, layout.dims, left, layout.reduction)
