"""Folding arrays by the scalar function of a Body: over whole dims, and over windows that slide along a dim.

All of it is elementwise steps on whole arrays: a fold is a tree, and windows are made of windows of half the size.
A Body has to be associative, as StableHLO asks of reducers (specification, `reduce`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autoshard.core.tensortype import dtype
from autoshard.ops.body import Body

Arrays = tuple[np.ndarray, ...]
_UFUNCS: dict[str, np.ufunc] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def widened(array: np.ndarray) -> np.ndarray:
    """Floats below 32 bits as f32, in which they are computed; all else as it is."""
    of = dtype(array.dtype)
    return array.astype(np.float32) if of.is_float and of.bits < 32 else array


_SHORT = 1 << 10
"""Elements of a row up to which einsum adds it up: it is faster (see `summed`), but its error grows with the length."""


def summed(x: np.ndarray, axes: Sequence[int], keepdims: bool = False) -> np.ndarray:
    """The sum along `axes`, which are counted from the front.

    Of floats numpy's own sum is slow along leading dims, which BLAS adds up five times as fast (128 x 128 in f32: 7.8
    and 1.5 us), and along a short last one (512 rows of 64: 29 us, einsum 9). They add row by row, as it does, or in
    order.
    """
    count, last = len(axes), x.ndim - 1
    if x.dtype.kind == "f" and x.itemsize > 2 and x.size and last > 0:
        if count <= last and tuple(axes) == tuple(range(count)):
            rest = x.shape[count:]
            made = np.dot(np.ones(math.prod(x.shape[:count]), x.dtype), x.reshape(-1, math.prod(rest)))
            return made.reshape((1,) * count + rest if keepdims else rest)
        if tuple(axes) == (last,) and x.shape[last] <= _SHORT:
            made = np.einsum("...n->...", x)
            return np.expand_dims(made, last) if keepdims else made
    return x.sum(tuple(axes), keepdims=keepdims)


def dotted(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The sum of products along the last dim, of floats by BLAS, row by row (128 rows of 256: 6 us, einsum 13), which
    numpy has from 2.0 on."""
    if x.dtype.kind == y.dtype.kind == "f" and hasattr(np, "vecdot"):
        return np.vecdot(x, y)
    return np.einsum("...n,...n->...", x, y)


def largest(x: np.ndarray, axis: int) -> np.ndarray:
    """The largest element along `axis`, which stays with size 1; NaN where there is one.

    Of floats along a short last dim by its place, which numpy finds three times as fast (512 rows of 64: 31 us, 12).
    """
    if x.dtype.kind == "f" and x.itemsize > 2 and x.size and axis % x.ndim == x.ndim - 1 and x.shape[-1] <= _SHORT:
        rows = x.reshape(-1, x.shape[-1])
        places = rows.argmax(1) + np.arange(0, rows.size, rows.shape[1])
        return rows.reshape(-1)[places].reshape(*x.shape[:-1], 1)
    return x.max(axis, keepdims=True)


def combine(body: Body, left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> Arrays:
    """The body on corresponding elements; for several arrays it takes all of the left, then all of the right."""
    return tuple(np.asarray(result, dtype=array.dtype) for result, array in zip(body(*left, *right), left, strict=True))


def fold(body: Body, arrays: Sequence[np.ndarray], axes: Sequence[int]) -> Arrays:
    """All elements along `axes`, of which there is at least one, put together in order; the axes disappear."""
    if not axes:
        return tuple(arrays)
    ufunc = _UFUNCS.get(body.name) if len(arrays) == 1 else None
    if ufunc is not None:
        (array,) = arrays
        wide = widened(array)
        return (ufunc.reduce(wide, axis=tuple(axes), dtype=wide.dtype).astype(array.dtype),)
    return _tree(body, tuple(_flattened(array, axes) for array in arrays))


def _flattened(array: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    """The axes moved to the front and made one."""
    moved = np.moveaxis(array, axes, range(len(axes)))
    count = math.prod(moved.shape[: len(axes)])
    return moved.reshape(count, *moved.shape[len(axes) :])


def _tree(body: Body, arrays: Arrays) -> Arrays:
    """Neighbours along the first axis put together until one is left."""
    while (count := len(arrays[0])) > 1:
        even = count - count % 2
        pairs = combine(body, [one[:even:2] for one in arrays], [one[1:even:2] for one in arrays])
        arrays = tuple(np.concatenate([pair, one[even:]]) for pair, one in zip(pairs, arrays, strict=True))
    return tuple(one[0] for one in arrays)


def fold_windows(body: Body, arrays: Arrays, axis: int, size: int, stride: int, dilation: int) -> Arrays:
    """Along one axis, `size` elements `dilation` apart put together, at every `stride`-th place where they fit.

    A window of `size` elements is made of windows of 1, 2, 4, ... elements, as the binary digits of `size` tell.
    """
    places = arrays[0].shape[axis] - (size - 1) * dilation
    powers, found, covered = arrays, None, 0
    for bit in range(size.bit_length()):
        width = 1 << bit
        if size & width:
            piece = _shifted(powers, axis, covered * dilation, places)
            found = piece if found is None else combine(body, found, piece)
            covered += width
        if covered < size:
            length = powers[0].shape[axis] - width * dilation
            powers = combine(body, _shifted(powers, axis, 0, length), _shifted(powers, axis, width * dilation, length))
    assert found is not None, "a window has at least one element"
    return tuple(one[_along(axis, slice(None, None, stride))] for one in found)


def _shifted(arrays: Arrays, axis: int, start: int, length: int) -> Arrays:
    return tuple(one[_along(axis, slice(start, start + length))] for one in arrays)


def _along(axis: int, taken: slice) -> tuple[slice, ...]:
    return (*(slice(None),) * axis, taken)


def each(*items: object, **_: object) -> tuple:
    """For `shape=` and `dtype=` of operators whose results are like their operands."""
    return items
