"""Data for training: rows of numpy arrays, as MindSpore's `mindspore.dataset` names them.

    data = GeneratorDataset(rows, ["input", "label"]).shuffle(seed=1).batch(32, drop_remainder=True)

Iterating gives tuples of arrays in the order of `column_names`. Every method returns a new dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, cast

import numpy as np

from autoshard.trace.initializer import get_seed
from autoshard.util.checks import positive
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

    def create_tuple_iterator(self, columns: Sequence[str] | None = None, num_epochs: int = -1) -> Epochs:
        """Rows, epoch by epoch: each loop over the iterator is one; after `num_epochs` of them it is empty (-1: never).

        Args:
            columns: the columns to give, in this order; None: all.
        """
        return Epochs(self, columns, num_epochs, as_dicts=False)

    def create_dict_iterator(self, num_epochs: int = -1) -> Epochs:
        """Rows as dicts by column name, epoch by epoch as `create_tuple_iterator` gives them."""
        return Epochs(self, None, num_epochs, as_dicts=True)

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

    def shuffle(self, buffer_size: int | None = None, *, seed: int | None = None) -> Dataset:
        """Rows in a random order, another one at each iteration, the same on all ranks for one seed.

        Args:
            buffer_size: how many rows are held; each that is given is drawn from them, and the next takes its place. As
                many as there are rows make every order as likely. None holds all rows.
            seed: by default what `set_seed` was given, else 0.

        Raises:
            DataError: buffer_size below 1.
        """
        if buffer_size is not None and (isinstance(buffer_size, bool) or buffer_size < 1):
            raise DataError(f"shuffle: buffer_size is {buffer_size!r}; it must be a whole number of at least 1")
        begin = seed if seed is not None else get_seed() or 0

        def rows(iteration: int) -> Iterator[Row]:
            draw = np.random.default_rng([begin, iteration])
            if buffer_size is not None:
                return _drawn(self._rows(iteration), buffer_size, draw)
            held = list(self._rows(iteration))
            return (held[i] for i in draw.permutation(len(held)))

        return Dataset(rows, self.column_names, self._size)

    def repeat(self, count: int | None = None) -> Dataset:
        """All rows `count` times in one iteration; without end, as MindSpore has it for None, is not offered."""
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise DataError(f"repeat: count is {count!r}; it must be a whole number of at least 1")

        def rows(iteration: int) -> Iterator[Row]:
            return (row for i in range(count) for row in self._rows(iteration * count + i))

        return Dataset(rows, self.column_names, None if self._size is None else self._size * count)


def _drawn(rows: Iterable[Row], size: int, draw: np.random.Generator) -> Iterator[Row]:
    """Rows through a buffer of so many, from which each is drawn."""
    held: list[Row] = []
    for row in rows:
        if len(held) < size:
            held.append(row)
            continue
        at = int(draw.integers(size))
        yield held[at]
        held[at] = row
    yield from (held[i] for i in draw.permutation(len(held)))


class Epochs:
    """What `create_tuple_iterator` and `create_dict_iterator` give: each loop over it is an epoch."""

    def __init__(self, dataset: Dataset, columns: Sequence[str] | None, num_epochs: int, as_dicts: bool) -> None:
        if isinstance(num_epochs, bool) or not isinstance(num_epochs, int) or num_epochs < -1 or num_epochs == 0:
            raise DataError(f"num_epochs is {num_epochs!r}; it is -1 or a whole number of at least 1")
        unknown = [name for name in columns or () if name not in dataset.column_names]
        if unknown:
            raise DataError(f"there is no column {unknown[0]!r}; columns are {', '.join(dataset.column_names)}")
        self.dataset, self.left, self.as_dicts = dataset, num_epochs, as_dicts
        self.columns = tuple(columns or dataset.column_names)
        self._going: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        if not self.left:
            return iter(())
        self.left -= self.left > 0
        return self._rows()

    def __next__(self) -> Any:
        self._going = self._going or iter(self)
        return next(self._going)

    def _rows(self) -> Iterator[Any]:
        at = [self.dataset.column_names.index(name) for name in self.columns]
        for row in self.dataset:
            taken = tuple(row[i] for i in at)
            yield dict(zip(self.columns, taken, strict=True)) if self.as_dicts else taken


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
        super().__init__(found._rows, column_names, found._size)

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
        shuffle, num_shards, shard_id: as of GeneratorDataset.

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
        super().__init__(rows, names, shuffle=shuffle, num_shards=num_shards, shard_id=shard_id)
