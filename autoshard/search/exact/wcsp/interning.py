"""Tables that exist once: equal contents are one object, and what was computed from them is remembered.

Tables hold whole numbers (a fixed unit of cost) as float64, with inf for what is forbidden, and their least entry is
0. Sums of them are exact as long as they stay below 2**53, in any order; so equal layers of a model, and also the
messages that a long chain of layers settles into, become equal tables and cost nothing the second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

# Min-plus products: the sum of arrays over named dims, minimized over one of them, in blocks that stay in cache.


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


Part = tuple["InternedTable", tuple[int, ...]]


class InternedTable:
    """An interned array: `serial` numbers it, `data` has least entry 0 and must not be written."""

    __slots__ = ("serial", "data", "finite")

    def __init__(self, serial: int, data: np.ndarray):
        self.serial = serial
        self.data = data
        self.finite: list[np.ndarray] | None = None

    def supports(self) -> list[np.ndarray]:
        """For each dim, which positions have a finite entry."""
        if self.finite is None:
            known = np.isfinite(self.data)
            dims = range(self.data.ndim)
            self.finite = [np.asarray(known.any(axis=tuple(d for d in dims if d != dim))) for dim in dims]
        return self.finite


class TableInterner:
    """Interns tables and remembers the results of sums, restrictions and minimizations by the serials that went in."""

    def __init__(self, cap: float = np.inf):
        self.cap = cap
        self._contents: dict[tuple, InternedTable] = {}
        self._memo: dict[tuple, tuple[InternedTable, float]] = {}
        self.largest = 0
        self.computed = 0

    def intern(self, data: np.ndarray) -> tuple[InternedTable, float]:
        """The table of these numbers less their minimum, and that minimum; entries beyond the cap become inf.

        Takes the array over: the caller must not use it again.
        """
        least = float(data.min()) if data.size else np.inf
        if np.isfinite(least) and least != 0:
            data = data - least
        if np.isfinite(self.cap):
            data = np.where(data > self.cap, np.inf, data)
        data = np.ascontiguousarray(data)
        key = (data.shape, blake2b(data.data, digest_size=16).digest())
        table = self._contents.get(key)
        if table is None:
            table = self._contents[key] = InternedTable(len(self._contents), data)
            self.largest = max(self.largest, data.size)
        return table, least

    def add(self, left: InternedTable, right: InternedTable) -> tuple[InternedTable, float]:
        """The sum of two tables of one scope."""
        first, second = sorted((left, right), key=lambda table: table.serial)
        key = ("add", first.serial, second.serial)
        if key not in self._memo:
            self._memo[key] = self.intern(first.data + second.data)
        return self._memo[key]

    def subtract(self, left: InternedTable, right: InternedTable) -> InternedTable:
        """left - right, inf where left is; the constant part is dropped."""
        key = ("less", left.serial, right.serial)
        if key not in self._memo:
            known = np.isfinite(left.data)
            less = np.where(known, left.data, 0.0) - np.where(known, right.data, 0.0)
            self._memo[key] = self.intern(np.where(known, less, np.inf))
        return self._memo[key][0]

    def transpose(self, table: InternedTable, order: tuple[int, ...]) -> InternedTable:
        key = ("turn", table.serial, order)
        if key not in self._memo:
            self._memo[key] = self.intern(table.data.transpose(order))
        return self._memo[key][0]

    def restrict(self, table: InternedTable, keeps: tuple[np.ndarray | None, ...]) -> tuple[InternedTable, float]:
        """The table at the kept positions of each dim (None keeps all)."""
        key = ("keep", table.serial, *(None if keep is None else keep.tobytes() for keep in keeps))
        if key not in self._memo:
            index = np.ix_(*(np.arange(n) if k is None else k for k, n in zip(keeps, table.data.shape, strict=True)))
            self._memo[key] = self.intern(table.data[index])
        return self._memo[key]

    def minimize(self, parts: tuple[Part, ...], count: int) -> tuple[InternedTable, float]:
        """The sum of tables, minimized over label 0; dims of the result are labels 1..count.

        Each part is a table and the labels of its dims, ascending except that label 0 may stand anywhere.
        """
        key = ("min", count, *((table.serial, labels) for table, labels in parts))
        if key not in self._memo:
            self.computed += 1
            self._memo[key] = self.intern(min_out([(table.data, labels) for table, labels in parts], count))
        return self._memo[key]
