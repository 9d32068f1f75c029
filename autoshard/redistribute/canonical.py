"""Redistributions that differ only in which dim is which, or in factors of sizes that no mesh cuts, are planned as one.

The form that is planned has its dims in the order in which the mesh's innermost pieces use them, before and after; so
where ways tie, that over the inner pieces comes first. Dims that lie whole follow by size. A size counts by what it has
in common with the number of devices: parts are products of pieces of the mesh.
"""

from __future__ import annotations

import math

from autoshard.layout.layout import Layout
from autoshard.redistribute.direct import inner_first
from autoshard.redistribute.fetch import Fetch
from autoshard.redistribute.step import Step

Shape = tuple[int, ...]


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
