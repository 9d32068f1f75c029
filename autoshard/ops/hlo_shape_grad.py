"""Gradients of StableHLO's operators of shape and position: what was repeated is summed, what was cut out is put back.

The transposition rules are those of JAX (lax/lax.py, lax/slicing.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autoshard.core.tensortype import dtype as element_type
from autoshard.ops.hlo_dynamic import dynamic_slice, dynamic_update_slice
from autoshard.ops.hlo_shape import broadcast_in_dim, concatenate, hlo_pad, slice_in_dims
from autoshard.ops.pointwise import sub
from autoshard.ops.reduce import reduce_sum
from autoshard.ops.shape import transpose
from autoshard.ops.source import fill

Shape = Sequence[int]


def zeros(like: Any, shape: Shape | None = None) -> Any:
    """Zeros of the element type of a tensor, and of its shape if no other is given."""
    return fill(shape=tuple(like.shape if shape is None else shape), value=0.0, dtype=element_type(like.dtype).name)


def _scalar(like: Any) -> Any:
    return zeros(like, ())


@broadcast_in_dim.gradient
def _(g, y, x, shape, dims):
    added = tuple(dim for dim in range(len(shape)) if dim not in dims)
    order = sorted(dims)
    summed = reduce_sum(g, axis=added) if added else g
    perm = tuple(order.index(dim) for dim in dims)
    turned = summed if perm == tuple(range(len(dims))) else transpose(summed, perm=perm)
    repeated = tuple(i for i, dim in enumerate(dims) if x.shape[i] == 1 != shape[dim])
    return reduce_sum(turned, axis=repeated, keep_dims=True) if repeated else turned


@concatenate.gradient
def _(g, y, *xs, dim, **_):
    found, first = [], 0
    for x in xs:
        start, limit = [0] * len(x.shape), list(g.shape)
        start[dim], limit[dim] = first, first + x.shape[dim]
        first = limit[dim]
        found.append(slice_in_dims(g, start=tuple(start), limit=tuple(limit), strides=(1,) * len(start)))
    return tuple(found)


@hlo_pad.gradient
def _(g, y, x, value, low, high, interior):
    """Padding taken away again, as negative padding, and every element that was spread picked out."""
    none = (0,) * len(low)
    back = hlo_pad(g, _scalar(g), low=tuple(-n for n in low), high=tuple(-n for n in high), interior=none)
    if any(interior):
        back = slice_in_dims(back, start=none, limit=tuple(back.shape), strides=tuple(n + 1 for n in interior))
    return back, sub(reduce_sum(g), reduce_sum(back))


@slice_in_dims.gradient
def _(g, y, x, start, limit, strides):
    reached = [
        first + (n - 1) * step + 1 if n else first for first, n, step in zip(start, g.shape, strides, strict=True)
    ]
    high = tuple(size - last for size, last in zip(x.shape, reached, strict=True))
    return hlo_pad(g, _scalar(g), low=tuple(start), high=high, interior=tuple(step - 1 for step in strides))


# -- at places known only when they run


@dynamic_slice.gradient
def _(g, y, x, *starts, **_):
    return (dynamic_update_slice(zeros(x), g, *starts), *[None] * len(starts))


@dynamic_update_slice.gradient
def _(g, y, x, update, *starts, fixed, **_):
    kept = dynamic_update_slice(g, zeros(update), *starts, fixed=fixed)
    return (kept, dynamic_slice(g, *starts, sizes=tuple(update.shape)), *[None] * len(starts))
