"""Redistribution: from one layout of a tensor to another, as steps that receive few bytes.

`plan_steps(before, after, shape)` is memoized and symbolic in the mesh size: pairs of layouts that differ only in which
dim is which are planned once, in a canonical form. That form has its dims in the order in which the mesh's innermost
pieces use them, before and after, so that where candidates tie, the one over the inner pieces comes first; unsplit dims
follow by size, of which only what it has in common with the number of devices counts. `candidates.py` finds the
sequences of steps and compares them; `quickest` breaks ties on given links. Sizes that do not divide are padded
(`evened`), and padding stays where it is if `plan_steps` knows of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from autoshard.layout.layout import Layout
from autoshard.layout.mesh import size_of
from autoshard.redistribute.bound import fewest_elements
from autoshard.redistribute.candidates import (
    Candidate,
    Candidates,
    Shape,
    Steps,
    best,
    candidates,
    collective_count,
    elements_moved,
    normal_form,
    sized_candidates,
    solve,
    step_shape,
)
from autoshard.redistribute.fetch import Fetch
from autoshard.redistribute.normal_form import inner_first, is_cut
from autoshard.redistribute.positions import uncovered
from autoshard.redistribute.step import Step
from autoshard.util.errors import RedistributeError

__all__ = ["Steps", "elements_moved", "evened", "is_cut", "plan_steps", "program_steps", "step_shape"]

# What boxes have to spare where a collective of padded blocks would do: as a share of the elements moved, for no pass
# joins them with others, and for each message, of which they are many. Links move 8,192 elements (32 KiB of f32) in
# about the time that a message takes to begin: 5 microseconds at 6.5 GB/s.
SPARED, MESSAGE = 0.05, 8192
# Orders of the steps of one candidate that are tried at most: those of four gathers.
MOST_REORDERINGS = 24


def plan_steps(
    before: Layout,
    after: Layout,
    shape: Sequence[int],
    *,
    size: Sequence[int] | None = None,
    seconds: Callable[[Step], float] | None = None,
    allow_memory: bool = False,
    thrifty: bool = False,
) -> Steps:
    """The steps from `before` to `after` for a tensor of global `shape`; () if they are the same.

    They receive the fewest elements that any known sequence does, on the rank that receives most; of those that tie the
    quickest, if it is known what a step costs, else the one of fewest collectives. No block in between is larger than
    the larger of the two ends' where steps exist that keep to this. Where a layout does not divide the shape, the steps
    are for the shape `evened` by both.

    Args:
        size: how much of the shape is there. The rest is padding, which need not be moved; the shape must be even.
        seconds: what a step costs on the given links.
        allow_memory: blocks in between may be larger than both ends, if fewer elements are received then.
        thrifty: ranks that hold the same terms share the work of a sum and gather the result, and terms that stay end
            and begin again on the way, where fewer elements are received then. That takes more collectives, which small
            tensors are not worth: programs are made without it.

    Raises:
        LayoutError: another number of dims than the shape has. RedistributeError: other meshes, or terms of a
        reduction that cannot be made.
    """
    if before is after:
        return ()
    if size is None and seconds is None and not (allow_memory or thrifty):
        return _plan(before, after, tuple(shape))
    true = None if size is None or tuple(size) == tuple(shape) else tuple(size)
    search = _StepSearch(before, after, tuple(shape), true, allow_memory, thrifty)
    return _searched(search) if seconds is None else _quickest(search, seconds)


def program_steps(before: Layout, after: Layout, even: Sequence[int], size: Sequence[int]) -> Steps:
    """The steps by which programs bring what is there (`size`) of a tensor of an `even` shape from one to the other.

    Padding stays where it is if boxes spare enough.
    """
    padded = plan_steps(before, after, even)
    if tuple(even) == tuple(size) or (most := elements_moved(padded, even, size)) <= MESSAGE:
        return padded
    steps = plan_steps(before, after, even, size=size)
    messages = sum(size_of(step.axes) - 1 for step in steps if step.fetched)
    worth = max(SPARED * most, MESSAGE * messages) if messages else 0.0
    return steps if most - elements_moved(steps, even, size) > worth else padded


def evened(before: Layout, after: Layout, shape: Sequence[int]) -> tuple[int, ...]:
    """The least shape that holds a tensor of `shape` and that both layouts divide."""
    parts = zip(shape, before.parts, after.parts, strict=True)
    return tuple(-(-size // (both := math.lcm(old, new))) * both for size, old, new in parts)


@lru_cache(maxsize=1 << 13)
def _plan(before: Layout, after: Layout, shape: tuple[int, ...]) -> Steps:
    _check(before, after, shape)
    if not before.partial:
        known = normal_form(before, after)
        if known is not None:
            return known
    even = evened(before, after, shape)
    if even != shape:
        return _plan(before, after, even)
    old, new, sizes, dims = canonical(before, after, shape)
    found = solve(old, new, sizes)
    if found is None:
        raise _refused(before, after, shape, _UNFIT)
    return restored(found, dims)


class _StepSearch(NamedTuple):
    """A redistribution with all that is asked of it."""

    before: Layout
    after: Layout
    shape: tuple[int, ...]
    size: tuple[int, ...] | None
    allow_memory: bool
    thrifty: bool

    @property
    def even(self) -> tuple[int, ...]:
        return evened(self.before, self.after, self.shape)

    def candidates(self) -> Candidates:
        ends, even = (self.before, self.after), self.even
        if self.size is None:
            return candidates(*ends, even, thrifty=self.thrifty)
        return sized_candidates(*ends, even, self.size, self.thrifty)


@lru_cache(maxsize=1 << 14)
def _searched(of: _StepSearch) -> Steps:
    _check(of.before, of.after, of.shape)
    even = of.even
    least = fewest_elements(of.before, of.after, even, size=of.size) * (1 + 1e-9)
    found = best(of.candidates(), (of.before, of.after), even, least, of.allow_memory, of.size)
    if found is None:
        raise _refused(of.before, of.after, of.shape, _UNFIT)
    return found


def _quickest(of: _StepSearch, seconds: Callable[[Step], float]) -> Steps:
    known = _searched(of)
    return quickest(known, of.candidates(), (of.before, of.after), of.even, seconds, of.allow_memory, of.size)


_UNFIT = "they cut an axis at places that do not fit each other"


def _check(before: Layout, after: Layout, shape: tuple[int, ...]) -> None:
    """Raise unless steps exist; LayoutError for another number of dims, RedistributeError for the rest."""
    if before.mesh is not after.mesh:
        raise _refused(before, after, shape, f"their meshes '{before.mesh}' and '{after.mesh}' differ")
    if after.partial and after.reduction != "sum":
        terms = before.partial if before.reduction == after.reduction else ()
        if not all(any(have.contains(ref) for have in terms) for ref in after.partial):
            cause = f"terms of a {after.reduction} cannot be made from other values"
            raise _refused(before, after, shape, cause)
    for layout in (before, after):
        layout.check_fits(shape, "the tensor")


def _refused(before: Layout, after: Layout, shape: tuple[int, ...], cause: str) -> RedistributeError:
    return RedistributeError(f"cannot redistribute {list(shape)} from [{before}] to [{after}]: {cause}")


def canonical(before: Layout, after: Layout, shape: Shape) -> tuple[Layout, Layout, Shape, Shape]:
    """Both layouts and the shape in that form, and per dim of the form which dim it is."""
    devices = before.mesh.devices
    sizes = tuple([math.gcd(size, devices) for size in shape])
    order = dict.fromkeys([*inner_first(before, after), *sorted(range(len(shape)), key=sizes.__getitem__)])
    dims = tuple(order)
    if dims == tuple(range(len(shape))):
        return before, after, sizes, dims
    return before.turned(dims), after.turned(dims), tuple([sizes[dim] for dim in dims]), dims


def restored(steps: tuple[Step, ...], dims: Shape) -> tuple[Step, ...]:
    """The steps of the canonical form with the dims as they were."""
    back = tuple(sorted(range(len(dims)), key=dims.__getitem__))
    if back == tuple(range(len(dims))):
        return steps
    made, now = [], None
    for step in steps:
        now = step.before.turned(back) if now is None else now
        after = step.after.turned(back)
        made.append(_restored(step, dims, now, after))
        now = after
    return tuple(made)


def _restored(step: Step, dims: Shape, before: Layout, after: Layout) -> Step:
    if step.fetched is not None:
        return Step("permute", before, after, step.axes, fetched=Fetch(before, after, step.fetched.size))
    dim, to_dim = (None if one is None else dims[one] for one in (step.dim, step.to_dim))
    return Step(step.kind, before, after, step.axes, dim, to_dim)


def quickest(
    known: Steps,
    found: Iterable[Candidate],
    ends: tuple[Layout, Layout],
    shape: Shape,
    seconds: Callable[[Step], float],
    roomy: bool = False,
    size: Shape | None = None,
) -> Steps:
    """The quickest of the candidates that receive no more elements than `known` and need no more memory.

    Of those that take equally long the one of fewest collectives; `known` if nothing is better.
    """
    least = elements_moved(known, shape, size) * (1 + 1e-9)
    room = max(_peak(known, shape), *(end.local_size(shape) for end in ends))
    chosen, least_key = known, (_total(known, seconds), collective_count(known))
    for candidate in found:
        steps = candidate.steps(shape)
        if steps is None or elements_moved(steps, shape, size) > least:
            continue
        for one in reorderings(steps):
            key = _total(one, seconds), collective_count(one)
            fits = roomy or _peak(one, shape) <= room
            if key < least_key and fits and elements_moved(one, shape, size) <= least:
                chosen, least_key = one, key
    return chosen


def reorderings(steps: Steps) -> Iterator[Steps]:
    """The steps with neighbouring gathers of different dims in every order, and neighbouring scatters likewise."""
    runs = [tuple(run) for _, run in itertools.groupby(steps, key=lambda step: _class_of(step, steps))]
    choices = (itertools.permutations(run) if _reorders(run) else [run] for run in runs)
    for picked in itertools.islice(itertools.product(*choices), MOST_REORDERINGS):
        yield tuple(_chained(steps[0].before, itertools.chain(*picked))) if steps else ()


def _class_of(step: Step, steps: Steps) -> object:
    return step.kind if step.kind in ("all_gather", "reduce_scatter") else steps.index(step)


def _reorders(run: tuple[Step, ...]) -> bool:
    return len(run) > 1 and len({step.dim for step in run}) == len(run)


def _chained(now: Layout, steps: Iterable[Step]) -> Iterator[Step]:
    """The steps one after the other, each from where the one before it led."""
    for step in steps:
        if step.before is now:
            after = step.after
        else:
            assert step.dim is not None, f"{step} gathers or scatters a dim"
            left = uncovered(now.partial, step.axes) if step.kind == "reduce_scatter" else now.partial
            after = Layout(now.mesh, now.dims, left, now.reduction).with_dim(step.dim, step.after.dims[step.dim])
            step = Step(step.kind, now, after, step.axes, step.dim)
        yield step
        now = after


def _total(steps: Steps, seconds: Callable[[Step], float]) -> float:
    return sum(seconds(step) for step in steps)


def _peak(steps: Steps, shape: Shape) -> int:
    return max((step.after.local_size(shape) for step in steps), default=0)
