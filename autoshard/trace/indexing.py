"""Indexing of tensors, `x[1:, None, ..., 0]`, as slices, unit dims and lookups by registered operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from autoshard.core.tensortype import dtype
from autoshard.ops.registry import lookup
from autoshard.util.errors import ShapeError


def take(x: Any, index: Any) -> Any:
    """`x[index]` as numpy has it, for ints, slices, `...`, None, and tensors of whole numbers, which are looked up.

    Raises:
        ShapeError: an index of another kind, too many of them, or one out of range.
    """
    given = index if isinstance(index, tuple) else (index,)
    given = tuple(one for item in given for one in _numbers_of(item))
    items = _aligned(given, len(x.shape))
    if any(map(_is_tensor, items)):
        return _looked_up(x, items)
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


def _is_tensor(item: Any) -> bool:
    return hasattr(item, "shape") and hasattr(item, "dtype") and not isinstance(item, np.generic)


def _numbers_of(item: Any) -> tuple:
    """An item with the numbers of a list as an array, and of a mask that is known as the places where it is true."""
    if isinstance(item, list):
        item = np.asarray(item, np.int64 if not item else None)
    if isinstance(item, np.ndarray) and item.dtype == bool and item.ndim:
        return np.nonzero(item)
    return (item,)


def _looked_up(x: Any, items: list) -> Any:
    """x by items of which some are tensors: whole numbers beside them are looked up, too."""
    new = tuple(place for place, item in enumerate(items) if item is None)
    x = lookup("ExpandDims")(x, axis=new) if new else x
    items = [slice(None) if item is None else item for item in items]
    slices = [item if isinstance(item, slice) else slice(None) for item in items]
    if any(one != slice(None) for one in slices):
        x = _cut(x, slices)
    at = [dim for dim, item in enumerate(items) if not isinstance(item, slice)]
    if len(at) == 1:
        return lookup("Gather")(x, _whole(x, items[at[0]]), axis=at[0], bound=x.shape[at[0]])
    places = [_place(items[dim], dim, x) for dim in at]
    picks = np.broadcast_shapes(*(tuple(one.shape) for one in places))
    wide = [one if tuple(one.shape) == picks else lookup("BroadcastTo")(one, shape=picks) for one in places]
    rest = [dim for dim in range(len(items)) if dim not in at]
    sizes = tuple(x.shape[dim] for dim in rest)
    found = lookup("GatherSlices")(
        x,
        lookup("Stack")(*wide, axis=len(picks)),
        offset_dims=tuple(range(len(picks), len(picks) + len(rest))),
        collapsed_slice_dims=tuple(at),
        start_index_map=tuple(at),
        index_vector_dim=len(picks),
        slice_sizes=tuple(1 if dim in at else size for dim, size in enumerate(x.shape)),
    )
    # Of neighbours the picked dims stand where they were, else in front.
    before = at[0] if at == list(range(at[0], at[-1] + 1)) else 0
    if not before or not picks:
        return found
    lead, last = range(len(picks)), range(len(picks), len(picks) + len(sizes))
    return lookup("Transpose")(found, perm=(*last[:before], *lead, *last[before:]))


def _place(item: Any, dim: int, x: Any) -> Any:
    """The places that an item picks along a dim, counted from the front; outside they are an error."""
    size = x.shape[dim]
    if not _is_tensor(item):
        return np.asarray(_as_slice(item, dim, size).start, np.int64)
    item = _whole(x, item)
    if isinstance(item, np.ndarray):
        if item.size and not -size <= item.min() <= item.max() < size:
            raise ShapeError(f"indices from {item.min()} to {item.max()} are not in dim {dim} of size {size}")
        return np.where(item < 0, item + size, item).astype(np.int64)
    return lookup("Gather")(np.arange(size, dtype=np.int64), item, axis=0, bound=size)


def _whole(x: Any, index: Any) -> Any:
    if dtype(index.dtype).numpy.kind not in "iu":
        raise ShapeError(
            f"indexing a tensor of shape {tuple(x.shape)} with one of {dtype(index.dtype)}: only whole "
            f"numbers can pick rows; for a mask use ops.select(mask, x, other)"
        )
    return index


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
        raise ShapeError(
            f"dim {dim} is indexed with {item!r}; an index is a whole number, a slice, None, ... or a tensor of whole "
            "numbers"
        )
    if not -size <= item < size:
        raise ShapeError(f"index {item} is not in dim {dim} of size {size}")
    start = int(item) % size
    return slice(start, start + 1)


def _cut(x: Any, slices: list[slice]) -> Any:
    columns = zip(*((one.start, one.stop, 1 if one.step is None else one.step) for one in slices), strict=True)
    begin, end, strides = columns
    return lookup("StridedSlice")(x, begin=begin, end=end, strides=strides)
