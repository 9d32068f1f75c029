"""What plans ask for most, written down at once: cuts, sums and gathers, one all_to_all or one reduce_scatter."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import AxisRef
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
