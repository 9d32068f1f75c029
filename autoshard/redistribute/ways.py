"""The ways from one layout to another, most promising first, and the best of them.

What is written down at once (`direct.py`), or is cuts, one exchange and gathers (`exchange.py`), moves what must be
moved and is not questioned where no terms end. Otherwise several ways compete: where terms are combined, whether ranks
that would stand by take a share of the work, where terms begin, through which layouts in between one goes, and boxes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import AxisRef, merge_refs, size_of
from autoshard.redistribute.bound import symbolic
from autoshard.redistribute.detour import meeting_points
from autoshard.redistribute.digits import apart
from autoshard.redistribute.direct import direct_steps
from autoshard.redistribute.exchange import exchange_steps
from autoshard.redistribute.fetch import fetch
from autoshard.redistribute.keep import keep
from autoshard.redistribute.step import Step
from autoshard.redistribute.sums import reductions

Shape = tuple[int, ...]
Steps = tuple[Step, ...]


class Way(NamedTuple):
    """Steps, gaps between two layouts each, and steps behind them. What fills a gap is found when it is asked for."""

    first: Steps
    gaps: tuple[tuple[Layout, Layout], ...] = ()
    last: Steps = ()
    detours: int = 0

    def steps(self, shape: Shape, limit: float = math.inf, room: float = math.inf) -> Steps | None:
        """All of them, the gaps filled in the best way (through so many detours at most).

        None if a gap cannot be filled, or if it shows on the way that more elements are received than the limit, or
        that a block takes more than the room.
        """
        if not self.gaps:
            boxes = [step.fetched for step in self.first if step.fetched] if limit < math.inf else ()
            return None if any([one.at_least(shape) > limit for one in boxes]) else self.first + self.last
        blocks = [step.after for step in (*self.first, *self.last)] + [end for gap in self.gaps for end in gap]
        if room < math.inf and max(layout.local_size(shape) for layout in blocks) > room:
            return None
        missing = [_lacked(*gap, shape) for gap in self.gaps]
        spent, found = moved(self.first, shape) + moved(self.last, shape) + sum(missing), self.first
        for gap, least in zip(self.gaps, missing, strict=True):
            between = solve(*gap, shape, self.detours) if spent <= limit else None
            if between is None:
                return None
            spent += moved(between, shape) - least
            found += between
        return found + self.last


def _lacked(before: Layout, after: Layout, shape: Shape) -> int:
    """Elements that a rank receives at least where its block gets larger; of terms it is not said."""
    return 0 if before.partial or after.partial else max(0, after.local_size(shape) - before.local_size(shape))


Ways = Iterator[Way]

# Through how many layouts in between a redistribution may go.
DETOURS = 2


@lru_cache(maxsize=1 << 13)
def solve(before: Layout, after: Layout, shape: Shape, detours: int = DETOURS, roomy: bool = False) -> Steps | None:
    """The way that moves least of those that need no more memory than the larger end; None if there is none.

    Args:
        detours: through how many layouts in between it may go, where nothing else is known.
        roomy: it may need more memory than that.
    """
    if before is after:
        return ()
    known = None if before.partial else plain(before, after)
    if known is not None:
        return known
    idle = size_of(apart(before.free(), after.used))
    least = symbolic(before, after, shape, idle) if before.partial or after.partial else 0.0
    return best(ways(before, after, shape, detours), (before, after), shape, least * (1 + 1e-9), roomy)


def sized_ways(before: Layout, after: Layout, shape: Shape, size: Shape, thrifty: bool = False) -> Ways:
    """Ways for a tensor of which `size` is there and the rest of the shape is padding, which boxes leave behind."""
    boxes = fetch(before, after, size)
    boxed = () if boxes is None else (Way((Step.fetch(boxes),)),)
    for number, way in enumerate(ways(before, after, shape, thrifty=thrifty)):
        # Behind what is written down at once, but before anything else.
        direct = not way.gaps and not any(step.fetched for step in way.first)
        yield from (way,) if number else (way, *boxed) if direct else (*boxed, way)
        steps = way.steps(shape) or ()
        for count in range(1, len(steps)):
            rest = fetch(steps[count].before, after, size)
            if rest is not None and not rest.ended:
                yield Way((*steps[:count], Step.fetch(rest)))


def ways(before: Layout, after: Layout, shape: Shape, detours: int = DETOURS, thrifty: bool = False) -> Ways:
    """Ways that are worth a comparison.

    Args:
        thrifty: also those that do with fewer elements, but more collectives, what one of a kind would do.
    """
    if before is after:
        yield Way(())
    elif _ends(before, after):
        yield from _ended(before, after, shape, detours)
        if thrifty:
            yield from _shared(before, after, shape)
    else:
        yield from _stayed(before, after, shape, detours)
    if thrifty and before.partial and after.partial and before.reduction == after.reduction:
        yield from _ended_first(before, after, shape)


def best(
    found: Iterable[Way],
    ends: tuple[Layout, Layout],
    shape: Shape,
    least: float = 0.0,
    roomy: bool = False,
    size: Shape | None = None,
) -> Steps | None:
    """The way that needs no more memory than the larger end, of these the one that moves least in fewest steps.

    The first that moves no more than `least` is taken at once.
    """
    room = math.inf if roomy else max([end.local_size(shape) for end in ends])
    chosen, least_key = None, (math.inf, math.inf, math.inf)
    for way in found:
        fits = size is None and least_key[0] <= room  # no other that is worse in one of the two need be known in full
        steps = way.steps(shape, *((least_key[1] * (1 + 1e-9), room) if fits else ()))
        if steps is None:
            continue
        peak = 0 if roomy else max([step.after.local_size(shape) for step in steps], default=0)
        key = max(peak, room), _rounded(moved(steps, shape, size)), effort(steps)
        if key < least_key:
            chosen, least_key = steps, key
        if key[0] <= room and key[1] <= least:
            break
    return chosen


def moved(steps: Steps, shape: Sequence[int], size: Sequence[int] | None = None) -> float:
    """Elements that one rank receives at most in all the steps together; `size` as in `plan_steps`."""
    if size is None:
        return sum(step.elements_moved(shape) for step in steps)
    return sum(step.elements_moved(step_shape(step, shape, size)) for step in steps)


def step_shape(step: Step, shape: Sequence[int], size: Sequence[int]) -> Shape:
    """The shape that a step works on: padded only in the dims that it has split before or after."""
    parts = zip(step.before.parts, step.after.parts, shape, size, strict=True)
    return tuple(padded if old > 1 or new > 1 else true for old, new, padded, true in parts)


def effort(steps: Steps) -> int:
    """How many collectives there are; boxes count twice, for they are many messages without an order."""
    return sum(step.communicates + (step.fetched is not None) for step in steps)


def _rounded(elements: float) -> float:
    """Without the last digits, so that sums of fractions which are the same compare as such."""
    return float(f"{elements:.9e}")


def _ends(before: Layout, after: Layout) -> bool:
    """Whether terms end."""
    if not before.partial or before.partial == after.partial and before.reduction == after.reduction:
        return False
    return before.reduction != after.reduction or bool(apart(before.partial, after.partial))


@lru_cache(maxsize=1 << 12)
def plain(before: Layout, after: Layout) -> Steps | None:
    """Cuts, an exchange and gathers, or terms that begin where the values are.

    Of final values nothing else moves less.
    """
    if after.partial == before.partial:
        steps = direct_steps(before, after)
        return exchange_steps(before, after) if steps is None else steps
    return (_keep(before, after),) if keep(before, after) is not None else None


def _keep(before: Layout, after: Layout) -> Step:
    return Step("keep", before, after, apart(after.partial, before.partial))


def _stayed(before: Layout, after: Layout, shape: Shape, detours: int) -> Ways:
    """Ways where no terms end."""
    known = plain(before, after)
    if known is not None:
        yield Way(known)
    boxes = fetch(before, after)
    if boxes is not None:
        yield Way((Step.fetch(boxes),))
    if after.partial != before.partial:
        yield from _begun(before, after, shape, detours)
    elif known is None and boxes is None and detours:
        yield from _met(before, after, shape, detours)


def _begun(before: Layout, after: Layout, shape: Shape, detours: int) -> Ways:
    """Ways to begin terms of values that are split along their pieces first, so that less is received."""
    terms = apart(after.partial, before.partial)
    final = Layout(before.mesh, after.dims, before.partial, before.reduction)
    for dim in range(after.rank):
        split = final.with_dim(dim, after.dims[dim] + terms)
        if split.divides(shape) and keep(split, after) is not None:
            yield Way((), ((before, split),), (_keep(split, after),), detours)
    yield Way((), ((before, final),), (_keep(final, after),), detours)


def _ended_first(before: Layout, after: Layout, shape: Shape) -> Ways:
    """Ways that combine terms which stay, and begin them again: one value moves then instead of several terms."""
    for steps in reductions(before, after.final(), shape):
        yield Way(steps, ((steps[-1].after, after),))


def _ended(before: Layout, after: Layout, shape: Shape, detours: int) -> Ways:
    """Ways that combine terms: in place, or as the layout after wants it."""
    known = direct_steps(before, after)
    if known is not None:
        yield Way(known)
    yield from _combined(before, after, shape, detours)
    boxes = fetch(before, after)
    if boxes is not None:
        yield Way((Step.fetch(boxes),))
    if detours and (apart(after.partial, before.partial) or before.reduction != after.reduction):
        yield from _ended_apart(before, after, shape)
    if detours and boxes is None:
        yield from _met(before, after, shape, detours)


def _ended_apart(before: Layout, after: Layout, shape: Shape) -> Ways:
    """Ways that combine terms in shares along the pieces along which others begin, so that these are just kept."""
    final = after.final()
    for dim in range(after.rank):
        cut = _cut(final, dim, after.partial, shape)
        if cut is not None:
            yield Way((), ((before, cut.after), (cut.after, after)))


def _combined(before: Layout, after: Layout, shape: Shape, detours: int) -> Ways:
    for steps in reductions(before, after, shape):
        yield Way(steps, ((steps[-1].after, after),), detours=detours)


def _shared(before: Layout, after: Layout, shape: Shape) -> Ways:
    """Ways on which all ranks combine terms, those too along whose pieces nothing is split: each a share of its own.

    What several ranks want is gathered then. Less is received where there are more than two terms.
    """
    free = before.free()
    idle = apart(free, tuple(ref for refs in after.dims for ref in refs))
    for refs in dict.fromkeys((idle, free)):
        for dim in range(before.rank) if refs else ():
            cut = _cut(before, dim, refs, shape)
            for way in () if cut is None else _combined(cut.after, after, shape, 0):
                yield way._replace(first=(cut, *way.first))
    for dim in range(after.rank) if not after.partial else ():
        cut = _cut(after, dim, after.free(), shape)
        boxes = None if cut is None else fetch(before, cut.after)
        if cut is not None and boxes is not None:
            yield Way((Step.fetch(boxes),), ((cut.after, after),))


def _cut(before: Layout, dim: int, refs: Refs, shape: Shape) -> Step | None:
    """The dim cut along as many of the refs as its size allows."""
    fit: list[AxisRef] = []
    for ref in refs:
        if shape[dim] % (before.parts[dim] * size_of(fit) * ref.size) == 0:
            fit.append(ref)
    if not fit:
        return None
    return Step("slice", before, before.with_dim(dim, (*before.dims[dim], *fit)), merge_refs(fit), dim)


def _met(before: Layout, after: Layout, shape: Shape, detours: int) -> Ways:
    """Ways through a layout in between."""
    for middle in meeting_points(before, after, shape):
        yield Way((), ((before, middle), (middle, after)), detours=detours - 1)
