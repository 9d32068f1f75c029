"""Datasets: rows of numpy arrays.

    data = GeneratorDataset(rows, ["input", "label"]).shuffle(seed=1).batch(32, drop_remainder=True)

Iterating gives tuples of arrays in the order of `column_names`. Every method returns a new dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count, islice
from typing import Any

import numpy as np

from autoshard.mindspore.dataset.rows import DataError, Row, arrays_of, columns_of, padded
from autoshard.mindspore.dataset.rows import Mapping as Mapped
from autoshard.mindspore.ops.primitive import as_tensors
from autoshard.trace.initializer import get_seed
from autoshard.util.checks import positive

_pairs = partial(zip, strict=True)


class Dataset:
    """Rows of `column_names`, made anew by `rows()` at every iteration.

    Args:
        rows: called once per iteration with its number (0, 1, ...), gives tuples of arrays.
        size: how many rows there are; None if that has to be counted.
    """

    def __init__(self, rows: Callable[[int], Iterable[Row]], column_names: Sequence[str], size: int | None) -> None:
        self.column_names = tuple(column_names)
        self._rows, self._size = rows, size
        self._iterations, self._batch = 0, 1

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

    def create_tuple_iterator(
        self,
        columns: Sequence[str] | None = None,
        num_epochs: int = -1,
        output_numpy: bool = False,
        do_copy: bool = False,
    ) -> Epochs:
        """Rows, epoch by epoch: each loop over the iterator is one; after `num_epochs` of them it is empty (-1: never).

        Args:
            columns: the columns to give, in this order; None: all.
            output_numpy: arrays of numpy, not Tensors (which are such arrays, too).
            do_copy: MindSpore's; it makes no difference.
        """
        return Epochs(self, columns, num_epochs, as_dicts=False, output_numpy=output_numpy)

    def create_dict_iterator(self, num_epochs: int = -1, output_numpy: bool = False, do_copy: bool = False) -> Epochs:
        """Rows as dicts by column name, epoch by epoch as `create_tuple_iterator` gives them."""
        return Epochs(self, None, num_epochs, as_dicts=True, output_numpy=output_numpy)

    def get_col_names(self) -> list[str]:
        """Names of the columns."""
        return list(self.column_names)

    def output_shapes(self) -> list[list[int]]:
        """The shapes of the columns of the first row."""
        return [list(array.shape) for array in next(iter(self._rows(0)))]

    def output_types(self) -> list[np.dtype]:
        """The element types of the columns of the first row."""
        return [array.dtype for array in next(iter(self._rows(0)))]

    def get_batch_size(self) -> int:
        """How many rows `batch` puts together; 1 without it."""
        return self._batch

    def map(
        self,
        operations: Any,
        input_columns: str | Sequence[str] | None = None,
        output_columns: str | Sequence[str] | None = None,
        num_parallel_workers: int | None = None,
        **settings: Any,
    ) -> Dataset:
        """Rows with columns that functions make of theirs.

        Args:
            operations: a function of arrays, or several, each of what the one before gives (an array, or a tuple).
            input_columns: what the first one takes; by default the first column.
            output_columns: names of what the last one gives; by default those of the input. As many as there are of
                the input stand in its place, more or fewer stand before all other columns.
            num_parallel_workers, settings: MindSpore's; they make no difference.

        Raises:
            DataError: no such columns; when iterating: results that are other columns, or no numbers.
        """
        each = Mapped(operations, input_columns, output_columns, self.column_names)
        return self._made(lambda rows: map(each, rows), each.columns, self._size)

    def project(self, columns: str | Sequence[str]) -> Dataset:
        """Rows of these columns, in this order. Raises DataError: there are none of that name."""
        names = columns_of(columns, self.column_names, "project")
        at = [self.column_names.index(name) for name in names]
        return self._made(lambda rows: (tuple(row[i] for i in at) for row in rows), names, self._size)

    def rename(self, input_columns: str | Sequence[str], output_columns: str | Sequence[str]) -> Dataset:
        """Rows of columns with other names. Raises DataError: there are none of that name, or not as many new ones."""
        old = columns_of(input_columns, self.column_names, "rename: input_columns")
        new = (output_columns,) if isinstance(output_columns, str) else tuple(output_columns)
        names = tuple(dict(zip(old, new, strict=False)).get(name, name) for name in self.column_names)
        if len(old) != len(new) or len(set(names)) < len(names):
            raise DataError(f"rename: {list(old)} to {list(new)} makes columns {names}; as many, each name once")
        return self._made(lambda rows: rows, names, self._size)

    def filter(
        self,
        predicate: Callable[..., Any],
        input_columns: str | Sequence[str] | None = None,
        num_parallel_workers: int | None = None,
    ) -> Dataset:
        """The rows of which a function of columns (by default of all) is true. Raises DataError: no such columns."""
        names = columns_of(self.column_names if input_columns is None else input_columns, self.column_names, "filter")
        at = [self.column_names.index(name) for name in names]
        return self._made(
            lambda rows: (row for row in rows if bool(predicate(*(row[i] for i in at)))), self.column_names, None
        )

    def take(self, count: int = -1) -> Dataset:
        """The first `count` rows; all for -1. Raises DataError: no such count."""
        if count == -1:
            return self
        _check_count(count, "take")
        size = None if self._size is None else min(count, self._size)
        return self._made(lambda rows: islice(rows, count), self.column_names, size)

    def skip(self, count: int) -> Dataset:
        """All but the first `count` rows. Raises DataError: no such count."""
        if count != 0:
            _check_count(count, "skip")
        size = None if self._size is None else max(0, self._size - count)
        return self._made(lambda rows: islice(rows, count, None), self.column_names, size)

    def split(self, sizes: Sequence[int] | Sequence[float], randomize: bool = True) -> list[Dataset]:
        """Datasets of so many rows, or of such shares of them, one behind the other; `randomize` deals them out in one
        random order, that of the seed.

        Raises:
            DataError: sizes that are not all rows.
        """
        total, given = self.get_dataset_size(), list(sizes)
        shares = all(isinstance(one, float) for one in given)
        counts = [round(one * total) if shares else int(one) for one in given]
        if shares and counts:
            counts[-1] += total - sum(counts) if abs(sum(given) - 1) < 1e-9 else 0
        if not counts or sum(counts) != total or min(counts) < 1:
            raise DataError(f"split: sizes are {given}, which are {counts} of {total} rows; they are all, each above 0")
        order = np.random.default_rng(get_seed() or 0).permutation(total) if randomize else np.arange(total)
        ends = np.cumsum(counts)

        def part(first: int, last: int) -> Dataset:
            def rows(iteration: int) -> Iterator[Row]:
                held = list(self._rows(0))  # in one order for all parts
                return (held[i] for i in order[first:last])

            return Dataset(rows, self.column_names, last - first)

        return [part(int(end) - count, int(end)) for end, count in _pairs(ends, counts)]

    def concat(self, datasets: Any) -> Dataset:
        """The rows of this dataset, then those of another, or of others. Raises DataError: other columns."""
        others = list(datasets) if isinstance(datasets, list | tuple) else [datasets]
        for one in others:
            if one.column_names != self.column_names:
                raise DataError(f"concat: columns are {self.column_names} and {one.column_names}; they are the same")
        every = [self, *others]
        sizes = [one._size for one in every]
        return Dataset(
            lambda iteration: (row for one in every for row in one._rows(iteration)),
            self.column_names,
            None if None in sizes else sum(size for size in sizes if size is not None),
        )

    def __add__(self, other: Dataset) -> Dataset:
        return self.concat(other)

    def zip(self, datasets: Any) -> Dataset:
        """Rows of the columns of this dataset and of another, or of others, as many as the shortest has.

        Raises:
            DataError: a name of a column comes twice.
        """
        every = [self, *(datasets if isinstance(datasets, list | tuple) else [datasets])]
        names = tuple(name for one in every for name in one.column_names)
        if len(set(names)) < len(names):
            raise DataError(f"zip: columns are {names}; each has another name, see rename")
        sizes = [one._size for one in every]

        def rows(iteration: int) -> Iterator[Row]:
            return (sum(held, ()) for held in _rows_beside([one._rows(iteration) for one in every]))

        return Dataset(rows, names, None if None in sizes else min(size for size in sizes if size is not None))

    def batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        num_parallel_workers: int | None = None,
        *,
        per_batch_map: Callable[..., Any] | None = None,
        input_columns: str | Sequence[str] | None = None,
        output_columns: str | Sequence[str] | None = None,
        **settings: Any,
    ) -> Dataset:
        """`batch_size` rows stacked to one along a new first dim; the last batch may be shorter.

        Args:
            per_batch_map: a function of lists, one for each of `input_columns` (by default all), and a BatchInfo; it
                gives as many lists, or those of `output_columns`, which are stacked.
            num_parallel_workers, settings: MindSpore's; they make no difference.

        Raises:
            DataError: batch_size below 1; when iterating, rows of unequal shapes.
        """
        mapped = None
        if per_batch_map is not None:
            names = self.column_names if input_columns is None else input_columns
            mapped = Mapped(per_batch_map, names, output_columns, self.column_names)
        columns = self.column_names if mapped is None else mapped.columns

        def joined(held: list[Row], info: BatchInfo) -> Row:
            lists = dict(_pairs(self.column_names, map(list, _pairs(*held))))
            if mapped is not None:
                taken = [lists.pop(name) for name in mapped.inputs]
                found = mapped.operations[0](*taken, info)
                found = found if isinstance(found, tuple) else (found,)
                if len(found) != len(mapped.outputs):
                    raise DataError(
                        f"batch: per_batch_map gives {len(found)} lists for columns {', '.join(mapped.outputs)}"
                    )
                lists.update(_pairs(mapped.outputs, found))
            return _stacked([lists[name] for name in columns], columns)

        return self._batched(batch_size, drop_remainder, columns, joined)

    def padded_batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        num_parallel_workers: int | None = None,
        pad_info: Mapping[str, Any] | None = None,
    ) -> Dataset:
        """Batches of rows that are padded at the end of each dim.

        Args:
            pad_info: of columns (by default of all) the shape to pad to, in which None is the largest of the batch,
                and the number to pad with: {"tokens": ([16], 0)}; None for a shape is the largest in all dims.

        Raises:
            DataError: as `batch`; rows that are larger.
        """
        known = {name: (None, 0) for name in self.column_names} if pad_info is None else dict(pad_info)
        columns_of(tuple(known), self.column_names, "padded_batch: pad_info")

        def joined(held: list[Row], info: BatchInfo) -> Row:
            columns = []
            for name, column in _pairs(self.column_names, _pairs(*held)):
                shape, value = known[name] if name in known and known[name] is not None else (None, 0)
                what = f"padded_batch: column {name!r}"
                columns.append(padded(column, shape, value, what) if name in known else list(column))
            return _stacked(columns, self.column_names)

        return self._batched(batch_size, drop_remainder, self.column_names, joined)

    def _batched(
        self, size: int, drop: bool, columns: Sequence[str], joined: Callable[[list[Row], BatchInfo], Row]
    ) -> Dataset:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise DataError(f"batch: batch_size is {size!r}; it must be a whole number of at least 1")

        def rows(iteration: int) -> Iterator[Row]:
            given = iter(self._rows(iteration))
            for number in count():
                held = list(islice(given, size))
                if not held or drop and len(held) < size:
                    return
                yield joined(held, BatchInfo(iteration, number))

        whole = self._size
        if whole is not None:
            whole = whole // size if drop else -(-whole // size)
        made = Dataset(rows, columns, whole)
        made._batch = size
        return made

    def _made(
        self, change: Callable[[Iterator[Row]], Iterable[Row]], columns: Sequence[str], size: int | None
    ) -> Dataset:
        """A dataset of what is made of all rows."""
        made = Dataset(lambda iteration: change(iter(self._rows(iteration))), columns, size)
        made._batch = self._batch
        return made

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


class BatchInfo:
    """Where a batch stands: what a `per_batch_map` is told."""

    def __init__(self, epoch: int, batch: int) -> None:
        self._epoch, self._batch = epoch, batch

    def get_epoch_num(self) -> int:
        """The number of the iteration, from 0 on."""
        return self._epoch

    def get_batch_num(self) -> int:
        """The number of the batch in it, from 0 on."""
        return self._batch


def _check_count(count: Any, what: str) -> None:
    if positive(count) is None:
        raise DataError(f"{what}: count is {count!r}; it is a whole number of at least 1")


def _rows_beside(every: Sequence[Iterable[Row]]) -> Iterator[tuple[Row, ...]]:
    return zip(*every, strict=False)


def _stacked(columns: Sequence[Sequence[Any]], names: Sequence[str]) -> Row:
    stacked = []
    for name, column in _pairs(names, columns):
        shapes = {np.shape(array) for array in column}
        if len(shapes) > 1:
            raise DataError(
                f"batch: rows of column {name!r} have unequal shapes {sorted(shapes)}; pad or crop them first"
            )
        stacked.append(np.stack([np.asarray(one) for one in column]))
    return arrays_of(stacked, names, "batch")


class Epochs:
    """What `create_tuple_iterator` and `create_dict_iterator` give: each loop over it is an epoch."""

    def __init__(
        self,
        dataset: Dataset,
        columns: Sequence[str] | None,
        num_epochs: int,
        as_dicts: bool,
        output_numpy: bool = False,
    ) -> None:
        if isinstance(num_epochs, bool) or not isinstance(num_epochs, int) or num_epochs < -1 or num_epochs == 0:
            raise DataError(f"num_epochs is {num_epochs!r}; it is -1 or a whole number of at least 1")
        unknown = [name for name in columns or () if name not in dataset.column_names]
        if unknown:
            raise DataError(f"there is no column {unknown[0]!r}; columns are {', '.join(dataset.column_names)}")
        self.dataset, self.left, self.as_dicts, self.output_numpy = dataset, num_epochs, as_dicts, output_numpy
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
            taken = taken if self.output_numpy else as_tensors(taken)
            yield dict(_pairs(self.columns, taken)) if self.as_dicts else taken
