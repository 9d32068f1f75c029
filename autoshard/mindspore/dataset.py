"""Data for training: rows of numpy arrays, as MindSpore's `mindspore.dataset` names them.

    data = GeneratorDataset(rows, ["input", "label"]).shuffle(seed=1).batch(32, drop_remainder=True)

Iterating gives tuples of arrays in the order of `column_names`. Every method returns a new dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, cast

import numpy as np

from autoshard.util.errors import AutoshardError

Row = tuple[np.ndarray, ...]


class DataError(AutoshardError):
    """Rows that cannot be read, batched or fed to a program."""


class Dataset:
    """Rows of `column_names`, made anew by `rows()` at every iteration.

    Args:
        rows: called once per iteration with its number (0, 1, ...), gives tuples of arrays.
        size: how many rows there are; None if that has to be counted.
    """

    def __init__(self, rows: Callable[[int], Iterable[Row]], column_names: Sequence[str], size: int | None) -> None:
        self.column_names = tuple(column_names)
        self._rows, self._size = rows, size
        self._iterations = 0

    def __iter__(self) -> Iterator[Row]:
        self._iterations += 1
        return iter(self._rows(self._iterations - 1))

    def get_dataset_size(self) -> int:
        """How many rows an iteration gives. Where only the source knows, this runs through it once."""
        if self._size is None:
            self._size = sum(1 for _ in self._rows(0))
        return self._size

    def __len__(self) -> int:
        return self.get_dataset_size()

    def create_tuple_iterator(self, num_epochs: int = 1) -> Iterator[Row]:
        """All rows, `num_epochs` times."""
        return (row for _ in range(num_epochs) for row in self)

    def create_dict_iterator(self, num_epochs: int = 1) -> Iterator[dict[str, np.ndarray]]:
        """All rows as dicts by column name, `num_epochs` times."""
        return (dict(zip(self.column_names, row, strict=True)) for row in self.create_tuple_iterator(num_epochs))

    def batch(self, batch_size: int, drop_remainder: bool = False) -> Dataset:
        """`batch_size` rows stacked to one along a new first dim; the last batch may be shorter.

        Raises:
            DataError: batch_size below 1; when iterating, rows of unequal shapes.
        """
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise DataError(f"batch: batch_size is {batch_size!r}; it must be a whole number of at least 1")

        def rows(iteration: int) -> Iterator[Row]:
            held: list[Row] = []
            for row in self._rows(iteration):
                held.append(row)
                if len(held) == batch_size:
                    yield self._stack(held)
                    held = []
            if held and not drop_remainder:
                yield self._stack(held)

        size = self._size
        if size is not None:
            size = size // batch_size if drop_remainder else -(-size // batch_size)
        return Dataset(rows, self.column_names, size)

    def _stack(self, rows: Sequence[Row]) -> Row:
        stacked = []
        for name, column in zip(self.column_names, zip(*rows, strict=True), strict=True):
            shapes = {array.shape for array in column}
            if len(shapes) > 1:
                raise DataError(
                    f"batch: rows of column {name!r} have unequal shapes {sorted(shapes)}; pad or crop them first"
                )
            stacked.append(np.stack(column))
        return tuple(stacked)

    def shuffle(self, seed: int) -> Dataset:
        """All rows in a random order, another one at each iteration, the same on all ranks for one seed.

        Holds all rows in memory.
        """

        def rows(iteration: int) -> Iterator[Row]:
            held = list(self._rows(iteration))
            order = np.random.default_rng([seed, iteration]).permutation(len(held))
            return (held[i] for i in order)

        return Dataset(rows, self.column_names, self._size)

    def repeat(self, count: int) -> Dataset:
        """All rows `count` times in one iteration."""
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise DataError(f"repeat: count is {count!r}; it must be a whole number of at least 1")

        def rows(iteration: int) -> Iterator[Row]:
            return (row for i in range(count) for row in self._rows(iteration * count + i))

        return Dataset(rows, self.column_names, None if self._size is None else self._size * count)


class GeneratorDataset(Dataset):
    """Rows from a generator function, an iterable, or an object with `__getitem__` and `__len__`.

    Args:
        source: a row is a tuple of arrays (or numbers), one per column; a single array where there is one
            column.
        column_names: names of the columns.
    """

    def __init__(self, source: Any, column_names: Sequence[str]) -> None:
        if isinstance(column_names, str):
            column_names = [column_names]
        readable = callable(source) or isinstance(source, Iterable) or hasattr(source, "__getitem__")
        if not readable or isinstance(source, Iterator):
            raise DataError(
                f"GeneratorDataset: source is {type(source).__name__}; give a generator function (not what "
                "it returns, which can be read only once), a list, or an object with __getitem__ and __len__"
            )
        size = len(source) if isinstance(source, Sized) else None
        super().__init__(lambda iteration: self._read(source), column_names, size)

    def _read(self, source: Any) -> Iterator[Row]:
        return (self._row(row, i) for i, row in enumerate(_items(source)))

    def _row(self, row: Any, place: int) -> Row:
        items = row if isinstance(row, tuple | list) else (row,)
        if len(items) != len(self.column_names):
            raise DataError(
                f"GeneratorDataset: row {place} has {len(items)} values, but there are "
                f"{len(self.column_names)} columns ({', '.join(self.column_names)})"
            )
        arrays = tuple(np.asarray(item) for item in items)
        for name, array in zip(self.column_names, arrays, strict=True):
            if array.dtype.kind not in "biuf":
                raise DataError(f"GeneratorDataset: row {place} of column {name!r} holds {array.dtype}, not numbers")
        return arrays


def _items(source: Any) -> Iterable:
    """All rows of a source that the constructor has let pass, read anew."""
    if isinstance(source, Iterable):
        return source
    if callable(source):
        return cast(Iterable, source())
    return (source[i] for i in range(len(source)))


class NumpySlicesDataset(GeneratorDataset):
    """Rows are the slices of arrays along dim 0.

    Args:
        data: an array, a tuple of arrays of equal length, or a dict from column name to array.
        column_names: names of the columns; default the dict's keys, or column_0, column_1, ...

    Raises:
        DataError: arrays of unequal length.
    """

    def __init__(self, data: Any, column_names: Sequence[str] | None = None) -> None:
        names = list(data) if isinstance(data, Mapping) else None
        given = list(data.values()) if isinstance(data, Mapping) else list(data) if isinstance(data, tuple) else [data]
        arrays = [np.asarray(one) for one in given]
        names = list(column_names or names or [f"column_{i}" for i in range(len(arrays))])
        lengths = {len(array) if array.ndim else None for array in arrays}
        if len(lengths) != 1 or None in lengths:
            shapes = ", ".join(str(array.shape) for array in arrays)
            raise DataError(
                f"NumpySlicesDataset: arrays must have the same length along dim 0; their shapes are {shapes}"
            )
        if len(names) != len(arrays):
            raise DataError(f"NumpySlicesDataset: {len(arrays)} arrays, but {len(names)} column names {names}")
        super().__init__([tuple(array[i] for array in arrays) for i in range(len(arrays[0]))], names)
