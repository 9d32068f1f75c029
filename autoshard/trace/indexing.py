"""Indexing of tensors, `x[1:, None, ..., 0]`, as slices, unit dims and lookups by registered operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from autoshard.core.tensortype import dtype
from autoshard.ops.registry import lookup
from autoshard.util.errors import ShapeError


def take(x: Any, index: Any) -> Any:
    """`x[index]` for ints, slices, `...` and None, or one tensor of whole numbers that picks along dim 0.

    Raises:
        ShapeError: an index of another kind, too many of them, or one out of range.
    """
    if hasattr(index, "shape") and hasattr(index, "dtype") and not isinstance(index, np.generic):
        return _lookup(x, index)
    items = _aligned(index if isinstance(index, tuple) else (index,), len(x.shape))
    taken = [item for item in items if item is not None]
    slices = [_as_slice(item, dim, size) for dim, (item, size) in enumerate(zip(taken, x.shape, strict=True))]
    if any(one != slice(None) for one in slices):
        x = _cut(x, slices)
    gone = tuple(dim for dim, item in enumerate(taken) if not isinstance(item, slice))
    if gone:
        x = lookup("Squeeze")(x, axis=gone)
    kept = [item for item in items if item is None or isinstance(item, slice)]
    new = tuple(place for place, item in enumerate(kept) if item is None)
    return lookup("ExpandDims")(x, axis=new) if new else x


def _lookup(x: Any, index: Any) -> Any:
    if dtype(index.dtype).numpy.kind not in "iu":
        raise ShapeError(
            f"indexing a tensor of shape {tuple(x.shape)} with one of {dtype(index.dtype)}: only whole "
            f"numbers can pick rows; for a mask use ops.select(mask, x, other)"
        )
    return lookup("Gather")(x, index, axis=0)


def _aligned(items: tuple, rank: int) -> list:
    """One item per dim (and None for each new one): `...` and missing items are whole dims."""
    used = sum(item is not None and item is not Ellipsis for item in items)
    dots = sum(item is Ellipsis for item in items)
    if used > rank or dots > 1:
        raise ShapeError(f"indexing a tensor of {rank} dims with {used} indices and {dots} times '...'")
    if not dots:
        items = (*items, Ellipsis)
    at = next(i for i, item in enumerate(items) if item is Ellipsis)
    return [*items[:at], *[slice(None)] * (rank - used), *items[at + 1 :]]


def _as_slice(item: Any, dim: int, size: int) -> slice:
    if isinstance(item, slice):
        return item
    if isinstance(item, bool | np.bool_) or not isinstance(item, int | np.integer):
        raise ShapeError(f"dim {dim} is indexed with {item!r}; an index is a whole number, a slice, None or ...")
    if not -size <= item < size:
        raise ShapeError(f"index {item} is not in dim {dim} of size {size}")
    start = int(item) % size
    return slice(start, start + 1)


def _cut(x: Any, slices: list[slice]) -> Any:
    columns = zip(*((one.start, one.stop, 1 if one.step is None else one.step) for one in slices), strict=True)
    begin, end, strides = columns
    return lookup("StridedSlice")(x, begin=begin, end=end, strides=strides)
