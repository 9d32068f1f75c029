"""Redistributions that differ only in which dim is which, or in factors of sizes that no mesh cuts, are planned as one.

The form that is planned has its dims in the order in which the mesh's innermost pieces use them, before and after; so
where ways tie, that over the inner pieces comes first. Dims that lie whole follow by size. A size counts by what it has
in common with the number of devices: parts are products of pieces of the mesh.
"""

from __future__ import annotations

import math
from dataclasses import replace

from autoshard.layout.layout import Layout
from autoshard.redistribute.step import Step

Shape = tuple[int, ...]


def canonical(before: Layout, after: Layout, shape: Shape) -> tuple[Layout, Layout, Shape, Shape]:
    """Both layouts and the shape in that form, and per dim of the form which dim it is."""
    mesh, devices = before.mesh, before.mesh.devices
    uses = [
        (*mesh.sort_key(ref)[:2], -side, dim)
        for side, layout in enumerate((before, after))
        for dim, refs in enumerate(layout.dims)
        for ref in refs
    ]
    order = dict.fromkeys(dim for *_, dim in sorted(uses, key=lambda use: use[:3], reverse=True))
    sizes = tuple(math.gcd(size, devices) for size in shape)
    order.update(dict.fromkeys(sorted(range(len(shape)), key=sizes.__getitem__)))
    dims = tuple(order)
    if dims == tuple(range(len(shape))):
        return before, after, sizes, dims
    return _turned(before, dims), _turned(after, dims), tuple(sizes[dim] for dim in dims), dims


def restored(steps: tuple[Step, ...], dims: Shape) -> tuple[Step, ...]:
    """The steps of the canonical form with the dims as they were."""
    back = tuple(sorted(range(len(dims)), key=dims.__getitem__))
    if back == tuple(range(len(dims))):
        return steps
    return tuple(_restored(step, dims, back) for step in steps)


def _restored(step: Step, dims: Shape, back: Shape) -> Step:
    before, after = _turned(step.before, back), _turned(step.after, back)
    if step.fetched is not None:
        return Step.fetch(replace(step.fetched, before=before, after=after))
    return replace(
        step,
        before=before,
        after=after,
        dim=None if step.dim is None else dims[step.dim],
        to_dim=None if step.to_dim is None else dims[step.to_dim],
    )


def _turned(layout: Layout, dims: Shape) -> Layout:
    """The layout with dim `dims[i]` as dim i."""
    return layout.with_dims(layout.dims[dim] for dim in dims)
