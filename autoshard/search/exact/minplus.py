"""Min-plus products: the sum of arrays over named dims, minimized over one of them, in blocks that stay in cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Cells of a block: two such float64 arrays fit in a second-level cache.
BLOCK = 1 << 15


def min_out(parts: Sequence[tuple[np.ndarray, tuple[int, ...]]], count: int) -> np.ndarray:
    """min over label 0 of the sum of `parts`; the result has dims 1..count.

    A part is an array and the label of each of its dims; labels other than 0 ascend. Every label up to `count` must
    stand in some part.
    """
    aligned = [_aligned(array, labels, count) for array, labels in parts]
    shape = np.broadcast_shapes(*(array.shape for array in aligned))
    if len(shape) == 1:
        return _total(aligned).min(axis=0)
    result = np.empty(shape[1:])
    _fill(_grouped(aligned, shape), shape[0], result)
    return result


def _aligned(array: np.ndarray, labels: tuple[int, ...], count: int) -> np.ndarray:
    """The array with label 0 first and a dim of size 1 for each label that it has not."""
    if 0 in labels:
        array = np.moveaxis(array, labels.index(0), 0)
        labels = (0, *(label for label in labels if label))
    sizes = dict(zip(labels, array.shape, strict=True))
    return np.ascontiguousarray(array).reshape([sizes.get(label, 1) for label in range(count + 1)])


def _total(arrays: Sequence[np.ndarray]) -> np.ndarray:
    total = arrays[0]
    for array in arrays[1:]:
        total = total + array
    return total


def _grouped(arrays: list[np.ndarray], shape: tuple[int, ...]) -> list[np.ndarray]:
    """Sum arrays beforehand where the sum is much smaller than the whole, smallest unions first."""
    whole = np.prod(shape, dtype=float)
    arrays = list(arrays)
    while len(arrays) > 2:
        pairs = [(i, j) for i in range(len(arrays)) for j in range(i)]
        size, i, j = min((_union(arrays[i].shape, arrays[j].shape), i, j) for i, j in pairs)
        if size * 4 > whole and size > max(arrays[i].size, arrays[j].size):
            break
        joined = arrays[i] + arrays[j]
        arrays = [array for k, array in enumerate(arrays) if k not in (i, j)] + [joined]
    return sorted(arrays, key=lambda array: array.size)


def _union(left: tuple[int, ...], right: tuple[int, ...]) -> float:
    return float(np.prod([max(a, b) for a, b in zip(left, right, strict=True)], dtype=float))


def _fill(arrays: list[np.ndarray], size: int, out: np.ndarray) -> None:
    if out.size > 4 * BLOCK and out.shape[0] > 1:
        step = max(1, out.shape[0] * BLOCK // out.size)
        for start in range(0, out.shape[0], step):
            piece = slice(start, start + step)
            _fill([a if a.shape[1] == 1 else a[:, piece] for a in arrays], size, out[piece])
        return
    if out.size > 4 * BLOCK and out.ndim > 1:
        _fill([a[:, 0] for a in arrays], size, out[0])
        return
    step = max(1, BLOCK // max(1, out.size))
    for start in range(0, size, step):
        piece = slice(start, start + step)
        total = _total([a if a.shape[0] == 1 else a[piece] for a in arrays])
        least = total.min(axis=0) if total.shape[0] > 1 else total[0]
        if start == 0:
            out[...] = least
        else:
            np.minimum(out, least, out=out)
