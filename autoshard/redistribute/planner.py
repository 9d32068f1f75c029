"""Redistribution: from one layout of a tensor to another, as steps that receive few bytes.

`plan_steps(before, after, shape)` is memoized and symbolic in the mesh size. Cuts, sums, gathers and a single
all_to_all or reduce_scatter, which are nearly all that plans ask for, are written down directly; the rest is cuts,
sums, one exchange and gathers (`exchange.py`, `sums.py`). Layouts whose pieces do not fit each other (2 and 3 of 6, or
2 and 3 parts of a dim) meet in between (`detour.py`). Sizes that do not divide are padded (`evened`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from autoshard.errors import RedistributeError
from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import AxisRef
from autoshard.redistribute.bound import fewest_elements
from autoshard.redistribute.canonical import canonical, restored
from autoshard.redistribute.detour import meeting_points
from autoshard.redistribute.digits import apart
from autoshard.redistribute.exchange import exchange_steps, with_dim
from autoshard.redistribute.keep import keep
from autoshard.redistribute.step import Step
from autoshard.redistribute.sums import reductions

Steps = tuple[Step, ...]

# Through how many layouts in between a redistribution may go, where the digits of its ends do not pair.
DETOURS = 2


def plan_steps(before: Layout, after: Layout, shape: Sequence[int]) -> Steps:
    """The steps from `before` to `after` for a tensor of global `shape`; () if they are the same.

    No block in between is larger than the larger of the two ends' where steps exist that keep to this. Where a layout
    does not divide the shape, the steps are for the shape `evened` by both.

    Raises:
        LayoutError: another number of dims than the shape has. RedistributeError: other meshes, or terms of a
        reduction that cannot be made.
    """
    return () if before is after else _plan(before, after, tuple(shape))


def evened(before: Layout, after: Layout, shape: Sequence[int]) -> tuple[int, ...]:
    """The least shape that holds a tensor of `shape` and that both layouts divide."""
    parts = zip(shape, before.parts, after.parts, strict=True)
    return tuple(-(-size // (both := math.lcm(old, new))) * both for size, old, new in parts)


@lru_cache(maxsize=1 << 18)
def _plan(before: Layout, after: Layout, shape: tuple[int, ...]) -> Steps:
    _check(before, after, shape)
    even = evened(before, after, shape)
    if even != shape:
        return _plan(before, after, even)
    old, new, sizes, dims = canonical(before, after, shape)
    found = _planned(old, new, sizes)
    if found is None:
        cause = "they cut an axis at places that do not fit each other"
        raise _refused(before, after, shape, cause)
    return restored(found, dims)


@lru_cache(maxsize=1 << 18)
def _planned(before: Layout, after: Layout, shape: tuple[int, ...]) -> Steps | None:
    return _solve(before, after, shape, DETOURS)


def _solve(before: Layout, after: Layout, shape: tuple[int, ...], detours: int) -> Steps | None:
    if before is after:
        return ()
    direct = _direct(before, after)
    if direct is not None:
        return direct
    if _ends(before, after):
        return _best(_summed(before, after, shape, detours), before, after, shape)
    if after.partial != before.partial:
        return _best(_begun(before, after, shape, detours), before, after, shape)
    steps = exchange_steps(before, after)
    if steps is not None or not detours:
        return steps
    return _best(_met(before, after, shape, detours), before, after, shape)


def _ends(before: Layout, after: Layout) -> bool:
    """Whether terms end."""
    if not before.partial or before.partial == after.partial and before.reduction == after.reduction:
        return False
    same = before.reduction == after.reduction
    return not same or bool(apart(before.partial, after.partial))


def _summed(before: Layout, after: Layout, shape: tuple[int, ...], detours: int) -> Iterator[Steps | None]:
    """Ways that combine the terms first."""
    least = fewest_elements(before, after, shape, counted=False) * (1 + 1e-9)
    for steps in reductions(before, after, shape):
        rest = _solve(steps[-1].after, after, shape, detours)
        yield None if rest is None else steps + rest
        if rest is not None and moved(steps + rest, shape) <= least:
            return
    if detours:
        yield from _met(before, after, shape, detours)


def _begun(before: Layout, after: Layout, shape: tuple[int, ...], detours: int) -> Iterator[Steps | None]:
    """Ways to begin terms: at once, or split along their pieces first, so that less is received."""
    terms = apart(after.partial, before.partial)
    if keep(before, after) is not None:
        yield (Step("keep", before, after, terms),)
        return
    final = Layout(before.mesh, after.dims, before.partial, before.reduction)
    for dim in range(after.rank):
        split = with_dim(final, dim, after.dims[dim] + terms)
        if split.divides(shape) and keep(split, after) is not None:
            first = _solve(before, split, shape, detours)
            yield None if first is None else (*first, Step("keep", split, after, terms))
    first = _solve(before, final, shape, detours)
    yield None if first is None else (*first, Step("keep", final, after, terms))


def _met(before: Layout, after: Layout, shape: tuple[int, ...], detours: int) -> Iterator[Steps | None]:
    """Ways through a layout in between."""
    for middle in meeting_points(before, after, shape):
        first = _solve(before, middle, shape, detours - 1)
        second = None if first is None else _solve(middle, after, shape, detours - 1)
        yield None if first is None or second is None else first + second


def _best(ways: Iterable[Steps | None], before: Layout, after: Layout, shape: tuple[int, ...]) -> Steps | None:
    """The way that needs no more memory than the larger end, of these the one that moves least in fewest steps."""
    room = max(_local(before, shape), _local(after, shape))

    def key(steps: Steps) -> tuple[float, float, int]:
        peak = max(_local(step.after, shape) for step in steps)
        return max(peak, room), moved(steps, shape), len(steps)

    return min((steps for steps in ways if steps is not None), key=key, default=None)


def _local(layout: Layout, shape: tuple[int, ...]) -> int:
    return math.prod(layout.local_shape(shape))


def moved(steps: Steps, shape: Sequence[int]) -> float:
    """Elements that one rank receives at most in all the steps together."""
    return sum(step.elements_moved(shape) for step in steps)


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


def _direct(before: Layout, after: Layout) -> tuple[Step, ...] | None:
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
    if all(_apart(ref, one) for refs in added.values() for ref in refs for one in held):
        return tuple(_sequence(before, after, added, terms, removed))
    (dim, refs), *more = added.items()
    if more or refs != tuple(held) or len(removed) + bool(terms) != 1:
        return None
    if terms:
        return (Step("reduce_scatter", before, after, refs, dim),)
    return (Step("all_to_all", before, after, refs, dim, next(iter(removed))),)


def _apart(ref: AxisRef, other: AxisRef) -> bool:
    return not ref.overlaps(other) and ref.can_coexist(other)


def _sequence(
    before: Layout, after: Layout, added: dict[int, Refs], terms: Refs, removed: dict[int, Refs]
) -> Iterator[Step]:
    """Cut the dims in `added`, combine the terms, gather the dims in `removed`."""
    now = before
    for dim, refs in added.items():
        nxt = with_dim(now, dim, after.dims[dim])
        yield Step("slice", now, nxt, refs, dim)
        now = nxt
    if terms:
        yield Step("all_reduce", now, now.final(), terms)
        now = now.final()
    for dim, refs in removed.items():
        nxt = with_dim(now, dim, after.dims[dim])
        yield Step("all_gather", now, nxt, refs, dim)
        now = nxt
