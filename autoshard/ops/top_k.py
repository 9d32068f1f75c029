"""Distributed top-k: each rank finds the best elements of its block of a split dim, and merges those of all ranks.

What a rank finds is elements and their positions in the whole dim; the positions of padding are -1. Only these are
gathered: one element of a block for the position of an extreme, k for the k largest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from autoshard.core.tensortype import DType
from autoshard.ops.attributes import OperatorPlacement
from autoshard.ops.registry import Operator, lookup, operator
from autoshard.ops.windows import Exchange, Totals

Shape = tuple[int, ...]


def top_k_exchange(
    op: Operator, attrs: Mapping[str, Any], placement: OperatorPlacement, dim: int, count: int
) -> Exchange:
    """The exchange of an operator that finds elements along `dim` of its operand and the least places of equal ones.

    `op.run(x, **attrs)` gives places last. `count` is how many elements it finds of a block that has as many.
    """
    block, size = placement.local_operand(0)[dim], placement.operands[0].shape[dim]
    held = min(count, block)
    parts = math.prod(ref.size for ref in placement.operand_layouts[0].dims[dim])
    real = tuple(min(max(size - part * block, 0), held) for part in range(parts))
    offered = {
        "op": op.name,
        "attrs": tuple((name, value) for name, value in attrs.items() if name in op.attributes),
        "dim": dim,
        "count": held,
        "valid": placement.operand_valid(0, dim),
        "first": placement.operand_offset(0, dim),
    }
    picked = {"op": op.name, "attrs": offered["attrs"], "dim": dim, "real": real}
    return Exchange((), picked, Totals((0,), dim, local_top_k, offered, merge_top_k))


def _positions(op: str, attrs: tuple, x: np.ndarray, dim: int) -> np.ndarray:
    """Where the best elements of x stand, with `dim` in place of what the operator leaves of it."""
    keeping = {"keep_dims": True} if "keep_dims" in dict(attrs) else {}
    results = lookup(op).run(x, **{**dict(attrs), **keeping})
    return np.asarray(results[-1] if isinstance(results, tuple) else results).astype(np.intp, copy=False)


def _limited(attrs: tuple, size: int) -> tuple:
    """The attributes where there are only `size` elements to find k of."""
    return tuple((name, min(value, size) if name == "k" else value) for name, value in attrs)


def _local_shape(x: Shape, *, dim: int, count: int, **_: object) -> tuple[Shape, ...]:
    return ((*x[:dim], count, *x[dim + 1 :]),) * 2


@operator("LocalTopK", rule=None, shape=_local_shape, dtype=lambda x, **_: (x, "i32"))
def local_top_k(x, *, op, attrs, dim, count, valid, first):
    """The `count` best elements along `dim` by operator `op`, and their places in the whole dim, best first.

    Only the first `valid` elements are real; the block begins at place `first`.
    """
    values = np.zeros((*x.shape[:dim], count, *x.shape[dim + 1 :]), x.dtype)
    places = np.full(values.shape, -1, np.int32)
    if valid and x.size:
        real = x[(slice(None),) * dim + (slice(0, valid),)]
        found = _positions(op, _limited(attrs, valid), real, dim)
        at = (slice(None),) * dim + (slice(0, found.shape[dim]),)
        values[at], places[at] = np.take_along_axis(real, found, dim), found + first
    return values, places


def _merged_shape(
    x: Shape, values: Shape, places: Shape, *, op: str, attrs: tuple, dim: int, **_: object
) -> tuple[Shape, ...]:
    given = dict(attrs)
    if "k" in given:
        return ((*x[:dim], given["k"], *x[dim + 1 :]),) * 2
    return ((*x[:dim], *((1,) if given["keep_dims"] else ()), *x[dim + 1 :]),)


def _merged_type(x: DType, values: DType, places: DType, *, attrs: tuple, **_: object) -> Any:
    return (x, places) if "k" in dict(attrs) else places


@operator("MergeTopK", rule=None, shape=_merged_shape, dtype=_merged_type)
def merge_top_k(x, values, places, *, op, attrs, dim, real):
    """What operator `op` finds along `dim`, from the offers of all blocks in order, of which `real[i]` are no padding.

    Each block offers as many.
    """
    if not values.size:
        shapes = _merged_shape(x.shape, values.shape, places.shape, op=op, attrs=attrs, dim=dim)
        return tuple(np.zeros(shape, values.dtype) for shape in shapes)
    held = values.shape[dim] // len(real)
    if any(count < held for count in real):
        kept = [i < count for count in real for i in range(held)]
        values, places = (np.compress(kept, one, dim) for one in (values, places))
    found = _positions(op, attrs, values, dim)
    where = np.take_along_axis(places, found, dim)
    if "k" in dict(attrs):
        return np.take_along_axis(values, found, dim), where
    return where if dict(attrs)["keep_dims"] else np.squeeze(where, dim)
