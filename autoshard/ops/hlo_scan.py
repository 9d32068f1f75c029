"""Cumulative reductions of StableHLO (windows that reach from an end of a dim up to each element) with that dim split.

A rank reduces along its own block, and goes on from what the blocks before it come to; only these totals are gathered.
"""

from __future__ import annotations

import numpy as np

from autoshard.core.tensortype import DType
from autoshard.core.tensortype import dtype as element_type
from autoshard.layout.layout import Layout
from autoshard.ops.body import Body
from autoshard.ops.folding import combine, fold, fold_windows
from autoshard.ops.registry import operator
from autoshard.ops.windows import Exchange, Totals, along


@operator(
    "BlockTotal",
    rule=None,
    shape=lambda x, dim, **_: ((*x[:dim], 1, *x[dim + 1 :]),),
    dtype=lambda x, *, dtype, **_: element_type(dtype),
)
def block_total(x, *, dim, body, dtype):
    """All elements along `dim` put together by `body`, in element type `dtype`; the dim has size 1 then."""
    (total,) = fold(body, (x.astype(element_type(dtype).numpy, copy=False),), (dim,))
    return np.expand_dims(total, dim)


@operator("ScanAfter", rule=None, shape=lambda x, *_, **__: (x,), dtype=lambda x, start, totals, **_: start)
def scan_after(x, start, totals, *, dim, body, reverse, position, padding):
    """Block number `position` along `dim` reduced cumulatively, after what the `totals` of the blocks before it tell.

    `padding` times `start` comes in too, as it does where windows reach beyond the dim: that changes nothing if it is
    neutral.
    """
    own = x.astype(start.dtype, copy=False)
    size = own.shape[dim]
    outside = np.full((*own.shape[:dim], size - 1, *own.shape[dim + 1 :]), start, own.dtype)
    padded = np.concatenate((own, outside) if reverse else (outside, own), dim)
    found = fold_windows(body, (padded,), dim, size, 1, 1)
    before = totals[(slice(None),) * dim + (slice(position + 1, None) if reverse else slice(0, position),)]
    if before.shape[dim]:
        others = tuple(np.expand_dims(one, dim) for one in fold(body, (before,), (dim,)))
        found = combine(body, found, others) if reverse else _onto(body, others, found)
    starts = (np.broadcast_to(start, own.shape),)
    for _ in range(padding.bit_length()):
        found = _onto(body, starts, found) if padding & 1 else found
        starts, padding = combine(body, starts, starts), padding >> 1
    return _onto(body, (np.broadcast_to(start, own.shape),), found)[0]


def _onto(body: Body, first: tuple, then: tuple) -> tuple:
    """The body on arrays that broadcast against each other, as whole arrays."""
    shape = np.broadcast_shapes(first[0].shape, then[0].shape)
    return combine(body, (np.broadcast_to(first[0], shape),), then)


def scan_exchange(layout: Layout, dim: int, size: int, body: Body, reverse: bool, dtype: DType) -> Exchange:
    """The exchange of a cumulative reduction of `size` elements that `dim` of the layout divides."""
    parts = layout.parts[dim]
    behind = range(parts) if reverse else reversed(range(parts))  # blocks that come later in the order of reduction
    padding = along(layout, dim, [count * (size // parts) for count in behind])
    attrs = {"dim": dim, "body": body, "reverse": reverse, "position": along(layout, dim, range(parts))}
    totals = Totals((0,), dim, block_total, {"dim": dim, "body": body, "dtype": dtype.name}, scan_after)
    return Exchange((), {**attrs, "padding": padding}, totals)
