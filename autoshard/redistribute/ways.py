"""The ways from one layout to another, most promising first, and the best of them.

What is written down at once (`direct.py`), or is cuts, one exchange and gathers (`exchange.py`), moves what must be
moved and is not questioned where no terms end. Otherwise several ways compete: where terms are combined, whether ranks
that would stand by take a share of the work, where terms begin, through which layouts in between one goes, and boxes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import AxisRef, merge_refs, size_of
from autoshard.redistribute.bound import symbolic
from autoshard.redistribute.detour import meeting_points
from autoshard.redistribute.digits import apart
from autoshard.redistribute.direct import direct_steps
from autoshard.redistribute.exchange import exchange_steps, with_dim
from autoshard.redistribute.fetch import fetch
from autoshard.redistribute.keep import keep
from autoshard.redistribute.step import Step
from autoshard.redistribute.sums import reductions

Shape = tuple[int, ...]
Steps = tuple[Step, ...]
Ways = Iterator[Steps | None]

# Through how many layouts in between a redistribution may go.
DETOURS = 2


@lru_cache(maxsize=1 << 16)
def solve(before: Layout, after: Layout, shape: Shape, detours: int = DETOURS, roomy: bool = False) -> Steps | None:
    """The way that moves least of those that need no more memory than the larger end; None if there is none.

    Args:
        detours: through how many layouts in between it may go, where nothing else is known.
        roomy: it may need more memory than that.
    """
    if before is after:
        return ()
    if not before.partial:
        plain = _plain(before, after)
        if plain is not None:
            return plain
    idle = size_of(apart(before.free(), after.used))
    least = symbolic(before, after, shape, idle) if before.partial or after.partial else 0.0
    return best(ways(before, after, shape, detours), (before, after), shape, least * (1 + 1e-9), roomy)


def sized_ways(before: Layout, after: Layout, shape: Shape, size: Shape, thrifty: bool = False) -> Ways:
    """Ways for a tensor of which `size` is there and the rest of the shape is padding, which boxes leave behind."""
    boxes = fetch(before, after, size)
    for number, steps in enumerate(ways(before, after, shape, thrifty=thrifty)):
        if steps is not None:
            yield steps
        if number == 0 and boxes is not None:
            yield (Step.fetch(boxes),)
        if steps is None:
            continue
        for count in range(1, len(steps)):
            boxes = fetch(steps[count].before, after, size)
            if boxes is not None and not boxes.ended:
                yield (*steps[:count], Step.fetch(boxes))


def ways(before: Layout, after: Layout, shape: Shape, detours: int = DETOURS, thrifty: bool = False) -> Ways:
    """Ways that are worth a comparison; None for one that turned out not to exist.

    Args:
        thrifty: also those that do with fewer elements, but more collectives, what one of a kind would do.
    """
    if before is after:
        yield ()
    elif _ends(before, after):
        yield from _ended(before, after, shape, detours)
        if thrifty:
            yield from _shared(before, after, shape)
    else:
        yield from _stayed(before, after, shape, detours)
    if thrifty and before.partial and after.partial and before.reduction == after.reduction:
        yield from _ended_first(before, after, shape)


def best(
    found: Iterable[Steps | None],
    ends: tuple[Layout, Layout],
    shape: Shape,
    least: float = 0.0,
    roomy: bool = False,
    size: Shape | None = None,
) -> Steps | None:
    """The way that needs no more memory than the larger end, of these the one that moves least in fewest steps.

    The first that moves no more than `least` is taken at once.
    """
    room = math.inf if roomy else max(_local(end, shape) for end in ends)
    chosen, least_key = None, (math.inf, math.inf, math.inf)
    for steps in found:
        if steps is None:
            continue
        peak = 0 if roomy else max((_local(step.after, shape) for step in steps), default=0)
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


def _local(layout: Layout, shape: Shape) -> int:
    return math.prod(layout.local_shape(shape))


def _ends(before: Layout, after: Layout) -> bool:
    """Whether terms end."""
    if not before.partial or before.partial == after.partial and before.reduction == after.reduction:
        return False
    return before.reduction != after.reduction or bool(apart(before.partial, after.partial))


def _plain(before: Layout, after: Layout) -> Steps | None:
    """Cuts, an exchange and gathers, or terms that begin where the values are."""
    if after.partial == before.partial:
        steps = direct_steps(before, after)
        return exchange_steps(before, after) if steps is None else steps
    return (_keep(before, after),) if keep(before, after) is not None else None


def _keep(before: Layout, after: Layout) -> Step:
    return Step("keep", before, after, apart(after.partial, before.partial))


def _stayed(before: Layout, after: Layout, shape: Shape, detours: int) -> Ways:
    """Ways where no terms end."""
    plain = _plain(before, after)
    yield plain
    boxes = fetch(before, after)
    if boxes is not None:
        yield (Step.fetch(boxes),)
    if after.partial != before.partial:
        yield from _begun(before, after, shape, detours)
    elif plain is None and boxes is None and detours:
        yield from _met(before, after, shape, detours)


def _begun(before: Layout, after: Layout, shape: Shape, detours: int) -> Ways:
    """Ways to begin terms of values that are split along their pieces first, so that less is received."""
    terms = apart(after.partial, before.partial)
    final = Layout(before.mesh, after.dims, before.partial, before.reduction)
    for dim in range(after.rank):
        split = with_dim(final, dim, after.dims[dim] + terms)
        if split.divides(shape) and keep(split, after) is not None:
            yield _joined(solve(before, split, shape, detours), (_keep(split, after),))
    yield _joined(solve(before, final, shape, detours), (_keep(final, after),))


def _ended_first(before: Layout, after: Layout, shape: Shape) -> Ways:
    """Ways that combine terms which stay, and begin them again: one value moves then instead of several terms."""
    for steps in reductions(before, after.final(), shape):
        yield _joined(steps, solve(steps[-1].after, after, shape, 0))


def _ended(before: Layout, after: Layout, shape: Shape, detours: int) -> Ways:
    """Ways that combine terms: in place, or as the layout after wants it."""
    yield direct_steps(before, after)
    yield from _combined(before, after, shape, detours)
    boxes = fetch(before, after)
    if boxes is not None:
        yield (Step.fetch(boxes),)
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
            yield _joined(solve(before, cut.after, shape, 0), solve(cut.after, after, shape, 0))


def _combined(before: Layout, after: Layout, shape: Shape, detours: int) -> Ways:
    for steps in reductions(before, after, shape):
        yield _joined(steps, solve(steps[-1].after, after, shape, detours))


def _shared(before: Layout, after: Layout, shape: Shape) -> Ways:
    """Ways on which all ranks combine terms, those too along whose pieces nothing is split: each a share of its own.

    What several ranks want is gathered then. Less is received where there are more than two terms.
    """
    free = before.free()
    idle = apart(free, tuple(ref for refs in after.dims for ref in refs))
    for refs in dict.fromkeys((idle, free)):
        for dim in range(before.rank) if refs else ():
            cut = _cut(before, dim, refs, shape)
            for steps in () if cut is None else _combined(cut.after, after, shape, 0):
                yield _joined((cut,), steps) if cut is not None else None
    for dim in range(after.rank) if not after.partial else ():
        cut = _cut(after, dim, after.free(), shape)
        boxes = None if cut is None else fetch(before, cut.after)
        if cut is not None and boxes is not None:
            yield _joined((Step.fetch(boxes),), solve(cut.after, after, shape, 0))


def _cut(before: Layout, dim: int, refs: Refs, shape: Shape) -> Step | None:
    """The dim cut along as many of the refs as its size allows."""
    fit: list[AxisRef] = []
    for ref in refs:
        if shape[dim] % (before.parts[dim] * size_of(fit) * ref.size) == 0:
            fit.append(ref)
    if not fit:
        return None
    return Step("slice", before, with_dim(before, dim, (*before.dims[dim], *fit)), merge_refs(fit), dim)


def _met(before: Layout, after: Layout, shape: Shape, detours: int) -> Ways:
    """Ways through a layout in between."""
    for middle in meeting_points(before, after, shape):
        first = solve(before, middle, shape, detours - 1)
        yield None if first is None else _joined(first, solve(middle, after, shape, detours - 1))


def _joined(first: Steps | None, second: Steps | None) -> Steps | None:
    return None if first is None or second is None else first + second
