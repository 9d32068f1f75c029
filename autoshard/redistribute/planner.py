"""Redistribution: from one layout of a tensor to another, as steps that receive few bytes.

`plan_steps(before, after, shape)` is memoized and symbolic in the mesh size: pairs of layouts that differ only in which
dim is which are planned once (`canonical.py`). `ways.py` finds the ways and compares them; sizes that do not divide
are padded (`evened`), and where it is told what is padding, that stays where it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from autoshard.layout.layout import Layout
from autoshard.layout.mesh import size_of
from autoshard.redistribute.bound import fewest_elements
from autoshard.redistribute.canonical import canonical, restored
from autoshard.redistribute.direct import is_cut
from autoshard.redistribute.orders import quickest
from autoshard.redistribute.step import Step
from autoshard.redistribute.ways import Steps, Ways, best, moved, plain, sized_ways, solve, step_shape, ways
from autoshard.util.errors import RedistributeError

__all__ = ["Steps", "evened", "is_cut", "moved", "plan_steps", "program_steps", "step_shape"]

# What boxes have to spare where a collective of padded blocks would do: as a share of the elements moved, for no pass
# joins them with others, and for each message, of which they are many. Links move 8,192 elements (32 KiB of f32) in
# about the time that a message takes to begin: 5 microseconds at 6.5 GB/s.
SPARED, MESSAGE = 0.05, 8192


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

    They receive the fewest elements that any known way does, on the rank that receives most; of ways that tie the
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
    if tuple(even) == tuple(size) or (most := moved(padded, even, size)) <= MESSAGE:
        return padded
    steps = plan_steps(before, after, even, size=size)
    messages = sum(size_of(step.axes) - 1 for step in steps if step.fetched)
    worth = max(SPARED * most, MESSAGE * messages) if messages else 0.0
    return steps if most - moved(steps, even, size) > worth else padded


def evened(before: Layout, after: Layout, shape: Sequence[int]) -> tuple[int, ...]:
    """The least shape that holds a tensor of `shape` and that both layouts divide."""
    parts = zip(shape, before.parts, after.parts, strict=True)
    return tuple(-(-size // (both := math.lcm(old, new))) * both for size, old, new in parts)


@lru_cache(maxsize=1 << 13)
def _plan(before: Layout, after: Layout, shape: tuple[int, ...]) -> Steps:
    _check(before, after, shape)
    if not before.partial:
        known = plain(before, after)
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

    def ways(self) -> Ways:
        ends, even = (self.before, self.after), self.even
        if self.size is None:
            return ways(*ends, even, thrifty=self.thrifty)
        return sized_ways(*ends, even, self.size, self.thrifty)


@lru_cache(maxsize=1 << 14)
def _searched(of: _StepSearch) -> Steps:
    _check(of.before, of.after, of.shape)
    even = of.even
    least = fewest_elements(of.before, of.after, even, size=of.size) * (1 + 1e-9)
    found = best(of.ways(), (of.before, of.after), even, least, of.allow_memory, of.size)
    if found is None:
        raise _refused(of.before, of.after, of.shape, _UNFIT)
    return found


def _quickest(of: _StepSearch, seconds: Callable[[Step], float]) -> Steps:
    known = _searched(of)
    return quickest(known, of.ways(), (of.before, of.after), of.even, seconds, of.allow_memory, of.size)


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
