"""Redistribution: from one layout of a tensor to another, as steps that move few bytes.

`plan_steps(before, after, shape)` is memoized and symbolic in the mesh size. Cuts, sums, gathers and a single
all_to_all or reduce_scatter, which are nearly all that plans ask for, are written down directly; the rest is
searched for. Layouts that cut an axis at places that do not fit each other (2 and 3 of 6) meet in
between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from autoshard.errors import RedistributeError
from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import AxisRef
from autoshard.redistribute.search import search_steps
from autoshard.redistribute.step import Step, cutter


def plan_steps(before: Layout, after: Layout, shape: Sequence[int]) -> tuple[Step, ...]:
    """The steps from `before` to `after` for a tensor of global `shape`; () if they are the same.

    Raises:
        LayoutError: another number of dims than the shape has. RedistributeError: other meshes, terms of a
        reduction that cannot be made, or sizes that do not divide.
    """
    return () if before is after else _plan(before, after, tuple(shape))


@lru_cache(maxsize=1 << 18)
def _plan(before: Layout, after: Layout, shape: tuple[int, ...]) -> tuple[Step, ...]:
    _check(before, after, shape)
    if before.partial and after.partial and before.reduction != after.reduction:
        return _via(before, before.final(), after, shape)
    direct = _direct(before, after)
    if direct is not None:
        return direct
    if cutter(before, after) is not None:
        return search_steps(before, after, shape)
    return _detour(before, after, shape)


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
        if not layout.divides(shape):
            raise _refused(before, after, shape, f"[{layout}] does not divide the sizes {list(shape)}")


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
        nxt = _with_dim(now, dim, after.dims[dim])
        yield Step("slice", now, nxt, refs, dim)
        now = nxt
    if terms:
        yield Step("all_reduce", now, now.final(), terms)
        now = now.final()
    for dim, refs in removed.items():
        nxt = _with_dim(now, dim, after.dims[dim])
        yield Step("all_gather", now, nxt, refs, dim)
        now = nxt


def _with_dim(layout: Layout, dim: int, refs: Refs) -> Layout:
    return layout.with_dims((*layout.dims[:dim], refs, *layout.dims[dim + 1 :]))


def _detour(before: Layout, after: Layout, shape: tuple[int, ...]) -> tuple[Step, ...]:
    """Over the best layout that fits the pieces of both ends: either end without what does not fit."""
    found = []
    for layout, other in ((after, before), (before, after)):
        for cut_short in (False, True):
            middle = _fitting(layout, other, cut_short)
            try:
                found.append(_via(before, middle, after, shape))
            except RedistributeError:
                continue  # terms that are not a sum cannot be begun again
    if not found:
        cause = f"they cut an axis at places that do not fit each other, terms of a {after.reduction} included"
        raise _refused(before, after, shape, cause)
    return min(found, key=lambda steps: (sum(step.elements_moved(shape) for step in steps), len(steps)))


def _via(before: Layout, middle: Layout, after: Layout, shape: tuple[int, ...]) -> tuple[Step, ...]:
    return plan_steps(before, middle, shape) + plan_steps(middle, after, shape)


def _fitting(layout: Layout, other: Layout, cut_short: bool) -> Layout:
    """`layout` with each piece shrunk until it can coexist with those of `other`.

    With `cut_short` a dim ends at the first piece that was shrunk, so that the rest follows by cuts alone.
    """
    dims = []
    for refs in layout.dims:
        kept: list[AxisRef] = []
        for ref in refs:
            small = _shrunk(ref, other.used)
            kept.append(small)
            if cut_short and small != ref:
                break
        dims.append(kept)
    partial = [_shrunk(ref, other.used) for ref in layout.partial]
    return Layout(layout.mesh, dims, partial, layout.reduction)


def _shrunk(ref: AxisRef, others: Refs) -> AxisRef:
    """The longest major part of `ref` (of size 1 if need be) that can coexist with the others."""
    for size in range(ref.size, 1, -1):
        part = AxisRef(ref.name, ref.pre, size)
        if ref.size % size == 0 and all(part.can_coexist(one) for one in others):
            return part
    return AxisRef(ref.name, ref.pre, 1)
