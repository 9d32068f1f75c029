"""Candidates: sequences of steps from one layout to another, most promising first, and the best of them.

What the normal form writes down (`normal_form.py`) moves what must be moved and is not questioned where nothing is
reduced. Otherwise several candidates compete: where partial values are combined, whether ranks that would stand by take
a share of the work, where a replicated value becomes partial, through which intermediate layouts one goes, and boxes
(`fetch.py`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import AxisRef, merge_refs, size_of
from autoshard.redistribute.bound import symbolic_bound
from autoshard.redistribute.fetch import fetch
from autoshard.redistribute.normal_form import direct_steps, exchange_steps, reductions
from autoshard.redistribute.positions import Cuts, uncovered
from autoshard.redistribute.replicate_to_partial import replicate_to_partial
from autoshard.redistribute.step import Step

Shape = tuple[int, ...]
Steps = tuple[Step, ...]


class Candidate(NamedTuple):
    """Steps, gaps between two layouts each, and steps behind them. What fills a gap is found when it is asked for."""

    first: Steps
    gaps: tuple[tuple[Layout, Layout], ...] = ()
    last: Steps = ()
    detours: int = 0

    def steps(self, shape: Shape, limit: float = math.inf, room: float = math.inf) -> Steps | None:
        """All of them, the gaps filled as well as can be (through so many detours at most).

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
        spent, found = elements_moved(self.first, shape) + elements_moved(self.last, shape) + sum(missing), self.first
        for gap, least in zip(self.gaps, missing, strict=True):
            between = solve(*gap, shape, self.detours) if spent <= limit else None
            if between is None:
                return None
            spent += elements_moved(between, shape) - least
            found += between
        return found + self.last


def _lacked(before: Layout, after: Layout, shape: Shape) -> int:
    """Elements that a rank receives at least where its block gets larger; of terms it is not said."""
    return 0 if before.partial or after.partial else max(0, after.local_size(shape) - before.local_size(shape))


Candidates = Iterator[Candidate]

# Through how many layouts in between a redistribution may go.
DETOURS = 2


@lru_cache(maxsize=1 << 13)
def solve(before: Layout, after: Layout, shape: Shape, detours: int = DETOURS, roomy: bool = False) -> Steps | None:
    """The steps that move least of those that need no more memory than the larger end; None if there is none.

    Args:
        detours: through how many layouts in between it may go, where nothing else is known.
        roomy: it may need more memory than that.
    """
    if before is after:
        return ()
    known = None if before.partial else normal_form(before, after)
    if known is not None:
        return known
    idle = size_of(uncovered(before.free(), after.used))
    least = symbolic_bound(before, after, shape, idle) if before.partial or after.partial else 0.0
    return best(candidates(before, after, shape, detours), (before, after), shape, least * (1 + 1e-9), roomy)


def sized_candidates(before: Layout, after: Layout, shape: Shape, size: Shape, thrifty: bool = False) -> Candidates:
    """Candidates for a tensor of which `size` is there and the rest of the shape padding, which boxes leave behind."""
    boxes = fetch(before, after, size)
    boxed = () if boxes is None else (Candidate((Step.fetch(boxes),)),)
    for number, candidate in enumerate(candidates(before, after, shape, thrifty=thrifty)):
        # Behind what is written down at once, but before anything else.
        direct = not candidate.gaps and not any(step.fetched for step in candidate.first)
        yield from (candidate,) if number else (candidate, *boxed) if direct else (*boxed, candidate)
        steps = candidate.steps(shape) or ()
        for count in range(1, len(steps)):
            rest = fetch(steps[count].before, after, size)
            if rest is not None and not rest.reduced:
                yield Candidate((*steps[:count], Step.fetch(rest)))


def candidates(
    before: Layout, after: Layout, shape: Shape, detours: int = DETOURS, thrifty: bool = False
) -> Candidates:
    """Candidates that are worth a comparison.

    Args:
        thrifty: also those that do with fewer elements, but more collectives, what one of a kind would do.
    """
    if before is after:
        yield Candidate(())
    elif _combines_terms(before, after):
        yield from _with_reduction(before, after, shape, detours)
        if thrifty:
            yield from _work_shared(before, after, shape)
    else:
        yield from _without_reduction(before, after, shape, detours)
    if thrifty and before.partial and after.partial and before.reduction == after.reduction:
        yield from _reduced_then_to_partial(before, after, shape)


def best(
    found: Iterable[Candidate],
    ends: tuple[Layout, Layout],
    shape: Shape,
    least: float = 0.0,
    roomy: bool = False,
    size: Shape | None = None,
) -> Steps | None:
    """The steps that need no more memory than the larger end, of these those that move least in fewest steps.

    The first that moves no more than `least` is taken at once.
    """
    room = math.inf if roomy else max([end.local_size(shape) for end in ends])
    chosen, least_key = None, (math.inf, math.inf, math.inf)
    for candidate in found:
        fits = size is None and least_key[0] <= room  # no other that is worse in one of the two need be known in full
        steps = candidate.steps(shape, *((least_key[1] * (1 + 1e-9), room) if fits else ()))
        if steps is None:
            continue
        peak = 0 if roomy else max([step.after.local_size(shape) for step in steps], default=0)
        key = max(peak, room), _rounded(elements_moved(steps, shape, size)), collective_count(steps)
        if key < least_key:
            chosen, least_key = steps, key
        if key[0] <= room and key[1] <= least:
            break
    return chosen


def elements_moved(steps: Steps, shape: Sequence[int], size: Sequence[int] | None = None) -> float:
    """Elements that one rank receives at most in all the steps together; `size` as in `plan_steps`."""
    if size is None:
        return sum(step.elements_moved(shape) for step in steps)
    return sum(step.elements_moved(step_shape(step, shape, size)) for step in steps)


def step_shape(step: Step, shape: Sequence[int], size: Sequence[int]) -> Shape:
    """The shape that a step works on: padded only in the dims that it has split before or after."""
    parts = zip(step.before.parts, step.after.parts, shape, size, strict=True)
    return tuple(padded if old > 1 or new > 1 else true for old, new, padded, true in parts)


def collective_count(steps: Steps) -> int:
    """How many collectives there are; boxes count twice, for they are many messages without an order."""
    return sum(step.communicates + (step.fetched is not None) for step in steps)


def _rounded(elements: float) -> float:
    """Without the last digits, so that sums of fractions which are the same compare as such."""
    return float(f"{elements:.9e}")


def _combines_terms(before: Layout, after: Layout) -> bool:
    """Whether some partial axes are reduced."""
    if not before.partial or before.partial == after.partial and before.reduction == after.reduction:
        return False
    return before.reduction != after.reduction or bool(uncovered(before.partial, after.partial))


@lru_cache(maxsize=1 << 12)
def normal_form(before: Layout, after: Layout) -> Steps | None:
    """Cuts, an exchange and gathers, or a value that becomes partial where it is.

    Of values that are not partial nothing else moves less.
    """
    if after.partial == before.partial:
        steps = direct_steps(before, after)
        return exchange_steps(before, after) if steps is None else steps
    return (_to_partial_step(before, after),) if replicate_to_partial(before, after) is not None else None


def _to_partial_step(before: Layout, after: Layout) -> Step:
    return Step("keep", before, after, uncovered(after.partial, before.partial))


def _without_reduction(before: Layout, after: Layout, shape: Shape, detours: int) -> Candidates:
    """Candidates where no partial axes are reduced."""
    known = normal_form(before, after)
    if known is not None:
        yield Candidate(known)
    boxes = fetch(before, after)
    if boxes is not None:
        yield Candidate((Step.fetch(boxes),))
    if after.partial != before.partial:
        yield from _split_then_to_partial(before, after, shape, detours)
    elif known is None and boxes is None and detours:
        yield from _through_intermediate(before, after, shape, detours)


def _split_then_to_partial(before: Layout, after: Layout, shape: Shape, detours: int) -> Candidates:
    """Candidates that split a value along the new partial axes first, so that less is received."""
    terms = uncovered(after.partial, before.partial)
    final = Layout(before.mesh, after.dims, before.partial, before.reduction)
    for dim in range(after.rank):
        split = final.with_dim(dim, after.dims[dim] + terms)
        if split.divides(shape) and replicate_to_partial(split, after) is not None:
            yield Candidate((), ((before, split),), (_to_partial_step(split, after),), detours)
    yield Candidate((), ((before, final),), (_to_partial_step(final, after),), detours)


def _reduced_then_to_partial(before: Layout, after: Layout, shape: Shape) -> Candidates:
    """Candidates that reduce partial axes which stay, and make them again: one value moves instead of several terms."""
    for steps in reductions(before, after.final(), shape):
        yield Candidate(steps, ((steps[-1].after, after),))


def _with_reduction(before: Layout, after: Layout, shape: Shape, detours: int) -> Candidates:
    """Candidates that reduce: in place, or as the layout after wants it."""
    known = direct_steps(before, after)
    if known is not None:
        yield Candidate(known)
    yield from _reduced_then_moved(before, after, shape, detours)
    boxes = fetch(before, after)
    if boxes is not None:
        yield Candidate((Step.fetch(boxes),))
    if detours and (uncovered(after.partial, before.partial) or before.reduction != after.reduction):
        yield from _reduced_in_shares(before, after, shape)
    if detours and boxes is None:
        yield from _through_intermediate(before, after, shape, detours)


def _reduced_in_shares(before: Layout, after: Layout, shape: Shape) -> Candidates:
    """Candidates that reduce in shares along the new partial axes, so that each rank just keeps its share."""
    final = after.final()
    for dim in range(after.rank):
        cut = _cut(final, dim, after.partial, shape)
        if cut is not None:
            yield Candidate((), ((before, cut.after), (cut.after, after)))


def _reduced_then_moved(before: Layout, after: Layout, shape: Shape, detours: int) -> Candidates:
    for steps in reductions(before, after, shape):
        yield Candidate(steps, ((steps[-1].after, after),), detours=detours)


def _work_shared(before: Layout, after: Layout, shape: Shape) -> Candidates:
    """Candidates in which all ranks reduce, those too along whose axes nothing is split: each a share of its own.

    What several ranks want is gathered then. Less is received where there are more than two terms.
    """
    free = before.free()
    idle = uncovered(free, tuple(ref for refs in after.dims for ref in refs))
    for refs in dict.fromkeys((idle, free)):
        for dim in range(before.rank) if refs else ():
            cut = _cut(before, dim, refs, shape)
            for candidate in () if cut is None else _reduced_then_moved(cut.after, after, shape, 0):
                yield candidate._replace(first=(cut, *candidate.first))
    for dim in range(after.rank) if not after.partial else ():
        cut = _cut(after, dim, after.free(), shape)
        boxes = None if cut is None else fetch(before, cut.after)
        if cut is not None and boxes is not None:
            yield Candidate((Step.fetch(boxes),), ((cut.after, after),))


def _cut(before: Layout, dim: int, refs: Refs, shape: Shape) -> Step | None:
    """The dim cut along as many of the refs as its size allows."""
    fit: list[AxisRef] = []
    for ref in refs:
        if shape[dim] % (before.parts[dim] * size_of(fit) * ref.size) == 0:
            fit.append(ref)
    if not fit:
        return None
    return Step("slice", before, before.with_dim(dim, (*before.dims[dim], *fit)), merge_refs(fit), dim)


def _through_intermediate(before: Layout, after: Layout, shape: Shape, detours: int) -> Candidates:
    """Candidates through an intermediate layout."""
    for middle in intermediate_layouts(before, after, shape):
        yield Candidate((), ((before, middle), (middle, after)), detours=detours - 1)


def intermediate_layouts(before: Layout, after: Layout, shape: tuple[int, ...]) -> Iterator[Layout]:
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
    yield Layout.replicated(before.mesh, before.rank)


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
