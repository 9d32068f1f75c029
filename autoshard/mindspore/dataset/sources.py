"""Where the rows of datasets come from: functions, rows by number, arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, cast

import numpy as np

from autoshard.mindspore.dataset.datasets import Dataset
from autoshard.mindspore.dataset.rows import DataError, Row, arrays_of
from autoshard.util.checks import positive


class GeneratorDataset(Dataset):
    """Rows from a generator function, an iterable, or an object with `__getitem__` and `__len__`.

    Args:
        source: a row is a tuple of arrays (or numbers), one per column; a single array where there is one
            column.
        column_names: names of the columns.
        shuffle: whether rows come in a random order, as of `Dataset.shuffle`. By default they do where rows can be had
            by number (`__getitem__` and `__len__`: lists, too), as in MindSpore; of generators and other iterables they
            come as they are.
        num_shards, shard_id: of rows that can be had by number every num_shards-th in that order, from number shard_id
            on: those of one rank, where each feeds its own. The first rows come again until all shards have as many.
        num_samples: only so many rows, the first in the order.
        num_parallel_workers, python_multiprocessing, max_rowsize: MindSpore's; they make no difference.

    Raises:
        DataError: no such source, or no such shard of it.
    """

    def __init__(
        self,
        source: Any,
        column_names: Sequence[str],
        *,
        shuffle: bool | None = None,
        num_shards: int | None = None,
        shard_id: int | None = None,
        num_samples: int | None = None,
        num_parallel_workers: int = 1,
        python_multiprocessing: bool = True,
        max_rowsize: Any = None,
    ) -> None:
        if isinstance(column_names, str):
            column_names = [column_names]
        readable = callable(source) or isinstance(source, Iterable) or hasattr(source, "__getitem__")
        if not readable or isinstance(source, Iterator):
            raise DataError(
                f"GeneratorDataset: source is {type(source).__name__}; give a generator function (not what "
                "it returns, which can be read only once), a list, or an object with __getitem__ and __len__"
            )
        size = len(source) if isinstance(source, Sized) else None
        by_number = hasattr(source, "__getitem__") and isinstance(source, Sized)
        shuffle = by_number if shuffle is None else shuffle
        in_order = Dataset(lambda iteration: self._read(source), column_names, size)
        found = in_order.shuffle() if shuffle else in_order
        if (num_shards, shard_id) != (None, None):
            found = _shard(found, num_shards, shard_id, by_number)
        found = found if num_samples is None else found.take(num_samples)
        super().__init__(found._rows, column_names, found._size)

    def _read(self, source: Any) -> Iterator[Row]:
        return (self._row(row, i) for i, row in enumerate(_items(source)))

    def _row(self, row: Any, place: int) -> Row:
        items = row if isinstance(row, tuple | list) else (row,)
        return arrays_of(items, self.column_names, f"GeneratorDataset: row {place}")


def _shard(dataset: Dataset, count: Any, number: Any, by_number: bool) -> Dataset:
    """Every `count`-th row from `number` on, as many as of any other number."""
    if positive(count) is None or isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < count:
        raise DataError(
            f"num_shards is {count!r} and shard_id {number!r}; give both: a whole number of at least 1, and one "
            "from 0 to below it"
        )
    if not by_number:
        raise DataError(
            "num_shards: rows of a generator cannot be had by number; give a list, or a source of __getitem__"
        )

    def rows(iteration: int) -> Iterator[Row]:
        held = list(dataset._rows(iteration))
        return (held[(number + i * count) % len(held)] for i in range(-(-len(held) // count)))

    return Dataset(rows, dataset.column_names, None if dataset._size is None else -(-dataset._size // count))


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
        shuffle, num_shards, shard_id, num_samples: as of GeneratorDataset.

    Raises:
        DataError: arrays of unequal length, or no such shard.
    """

    def __init__(
        self,
        data: Any,
        column_names: Sequence[str] | None = None,
        *,
        shuffle: bool | None = None,
        num_shards: int | None = None,
        shard_id: int | None = None,
        num_samples: int | None = None,
        num_parallel_workers: int = 1,
    ) -> None:
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
        rows = [tuple(array[i] for array in arrays) for i in range(len(arrays[0]))]
        sharded: dict[str, Any] = {"num_shards": num_shards, "shard_id": shard_id, "num_samples": num_samples}
        super().__init__(rows, names, shuffle=shuffle, **sharded)
