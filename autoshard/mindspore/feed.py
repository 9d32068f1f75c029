"""Feed: rows of a dataset, agreed on by all ranks, cut into the blocks that a program takes.

Ranks in one process share one dataset, whose rows are whole. Under MPI each rank reads its own: the block of
the layout that the dataset strategy gives (so the whole row for "full_batch").
"""

from __future__ import annotations

import inspect
import itertools
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from autoshard.core.tensortype import TensorType, type_of
from autoshard.engines.session import from_first_rank
from autoshard.layout.mesh import Mesh
from autoshard.mindspore.dataset.rows import DataError, Row
from autoshard.partition.program import Register
from autoshard.plan.data_layouts import DatasetStrategy, data_layout
from autoshard.runtime.array import cut, join
from autoshard.runtime.comm import Comm
from autoshard.runtime.interpret import Parts
from autoshard.runtime.padded import fit
from autoshard.trace.structure import flatten
from autoshard.util.errors import PlanError


class Feed:
    """Reads rows for the ranks that `comm` hosts, divided over `mesh`: that of all, or of each stage.

    `types` and `names` describe the last row: the whole tensors' types, and the columns' names. `when` is for
    messages ("epoch 2").
    """

    def __init__(
        self,
        comm: Comm,
        mesh: Mesh,
        strategy: DatasetStrategy,
        names: Sequence[str] | None = None,
        when: str = "data",
    ) -> None:
        self.comm, self.mesh, self.strategy, self.when = comm, mesh, strategy, when
        self.names: tuple[str, ...] = tuple(names or ())
        self.types: tuple[TensorType, ...] = ()
        self.step = 0
        self._kinds: dict[tuple, _Kind] = {}

    @property
    def separate(self) -> bool:
        """Whether ranks are processes that read their own data."""
        return len(self.comm.ranks) < self.comm.world

    @property
    def signature(self) -> tuple:
        """What programs for rows like the last one have in common."""
        return self.names, self.types

    def rows(self, dataset: Iterable) -> Iterator[Row]:
        """Rows as tuples of arrays.

        Raises:
            DataError: rows that hold no numbers or NaN; ranks whose rows differ in number, shape or type.
        """
        try:
            rows = iter(dataset)
        except TypeError:
            raise DataError(
                f"{self.when}: the dataset is {dataset!r} ({type(dataset).__name__}); it must give rows one after the "
                "other, tuples or dicts of arrays"
            ) from None
        for self.step in itertools.count(1):
            row = self._read(next(rows, None))
            if self.separate:
                row = self._agreed(row)
            if row is None:
                return
            self.types = self._kind(row).types
            yield row

    def blocks(self, registers: Sequence[Register], row: Row) -> list[Parts]:
        """The row in the blocks that the program's data registers take, one array per hosted rank."""
        return [self._blocks(i, register, row) for i, register in enumerate(registers)]

    def whole(self, row: Row, comm: Comm) -> list[np.ndarray]:
        """The row in whole arrays, put together of what ranks read of it.

        Args:
            comm: of those ranks between which data is divided, of which this process hosts some.
        """
        if not self.separate:
            return list(row)
        return [
            join([array], data_layout(self.mesh, self.strategy, i, array.ndim), self.types[i].shape, comm)
            for i, array in enumerate(row)
        ]

    def _blocks(self, i: int, register: Register, row: Row) -> Parts:
        array = row[i].astype(register.whole.dtype.numpy, copy=False)
        if self.separate and i not in self._kind(row).whole:
            return [np.asarray(fit(array, register.local.shape), order="C")]
        return cut(array, register.layout, self.comm.ranks, register.whole.shape)

    # -- one row

    def _read(self, row: Any) -> Row | None:
        if row is None:
            return None
        if isinstance(row, dict):
            self.names = self.names or tuple(row)
            row = tuple(row.values())
        arrays = tuple(np.asarray(item) for item in (row if isinstance(row, tuple | list) else (row,)))
        self.names = self.names or tuple(f"input{i}" for i in range(len(arrays)))
        if len(arrays) != len(self.names):
            raise DataError(
                f"{self._here()}: the row has {len(arrays)} arrays, the columns are {', '.join(self.names)}"
            )
        for i, array in enumerate(arrays):
            self._check_numbers(i, array)
        return arrays

    def _check_numbers(self, i: int, array: np.ndarray) -> None:
        label = self.names[i]
        if array.dtype.kind not in "biuf":
            raise DataError(f"{self._here()}: column {label} holds {array.dtype}, not numbers")
        if array.dtype.kind == "f" and _has_nan(array):
            place = tuple(int(k) for k in np.argwhere(np.isnan(array))[0])
            raise DataError(f"{self._here()}: column {label} {type_of(array)} has a NaN at {place}")

    def _here(self) -> str:
        rank = f" on rank {self.comm.ranks[0]}" if self.separate else ""
        return f"{self.when}, step {self.step}{rank}"

    def _kind(self, row: Row) -> _Kind:
        """What follows from the shapes and types of a row, told once for all that are alike."""
        key = tuple([(array.shape, array.dtype) for array in row])
        known = self._kinds.get(key)
        if known is None:
            read, parts = tuple(map(type_of, row)), self._parts(row)
            known = self._kinds[key] = _Kind(
                tuple(_scaled(of, counts) for of, counts in zip(read, parts, strict=True)),
                zlib.crc32(" ".join(map(str, read)).encode()),
                tuple(i for i, counts in enumerate(parts) if set(counts) <= {1}),
            )
        return known

    def _parts(self, row: Row) -> list[tuple[int, ...]]:
        """Into how many parts each dim of each column is split between the ranks that read them."""
        if not self.separate:
            return [(1,) * array.ndim for array in row]
        if not isinstance(self.strategy, str) and len(row) > len(self.strategy):
            raise PlanError(
                f"{self._here()}: dataset_strategy has {len(self.strategy)} entries, the row has more columns"
            )
        return [data_layout(self.mesh, self.strategy, i, array.ndim).parts for i, array in enumerate(row)]

    # -- agreement between processes

    def _agreed(self, row: Row | None) -> Row | None:
        """The row, after all ranks said what they have; rank 0's where they should be alike and are not."""
        table = self._exchange(row)
        if row is not None and (table == table[0]).all():
            return row
        self._require_alike(table[:, 0], "the data of ranks {0} goes on, that of ranks {1} has ended")
        if row is None:
            return None
        mine = ", ".join(map(str, map(type_of, row)))
        self._require_alike(
            table[:, 1], f"ranks {{0}} and {{1}} read data of different shapes or types; this rank has {mine}"
        )
        if self.comm.ranks[0] == 0:
            _say_once(
                "ranks read different data although every rank should read the whole batch (full_batch); "
                "rank 0's is used. Seed random data alike on all ranks, or set "
                "dataset_strategy='data_parallel'"
            )
        return tuple(
            from_first_rank(self.comm, array) if i in self._kind(row).whole else array for i, array in enumerate(row)
        )

    def _exchange(self, row: Row | None) -> np.ndarray:
        """A line per rank: whether it has a row, checksums of its types and of the columns it reads whole."""
        types = content = 0
        if row is not None:
            kind = self._kind(row)
            types = kind.checksum
            for i in kind.whole:
                content = checksum(row[i], content)
        line = np.array([[row is not None, types, content]], np.int64)
        members, gather = self._gathering
        table = np.empty((self.comm.world, 3), np.int64)
        table[members] = gather([line])[0]
        return table

    @cached_property
    def _gathering(self) -> tuple[np.ndarray, Callable[[list[np.ndarray]], list[np.ndarray]]]:
        """All ranks in the order in which they are gathered, and what gathers a line of each."""
        mesh = Mesh.flat(self.comm.world)  # which has the ranks of all stages, where `mesh` is that of one
        groups = mesh.groups(mesh.all_axes)
        gather = self.comm.prepared("all_gather", (1, 3), np.dtype(np.int64), groups)
        return groups.members(self.comm.ranks[0]), gather

    def _require_alike(self, column: np.ndarray, text: str) -> None:
        """Raise unless all ranks have the same number; {0} are the ranks with the largest, {1} the others."""
        first = column == column.max()
        if first.all():
            return
        ranks = [", ".join(map(str, np.flatnonzero(those))) for those in (first, ~first)]
        raise DataError(f"{self.when}, step {self.step}: {text.format(*ranks)}")


@dataclass(frozen=True)
class _Kind:
    """Of rows of one kind: the types of the whole tensors, a checksum of what a rank reads, and the columns that every
    rank reads whole."""

    types: tuple[TensorType, ...]
    checksum: int
    whole: tuple[int, ...]


def _scaled(of: TensorType, parts: Sequence[int]) -> TensorType:
    return of.with_shape(size * count for size, count in zip(of.shape, parts, strict=True))


def _has_nan(array: np.ndarray) -> bool:
    if array.dtype.char in "fd" and array.flags.c_contiguous:
        # No square is negative, so that their sum is NaN only if one of them is; a product needs no second array.
        return bool(np.isnan(np.vdot(array, array)))
    return bool(np.isnan(array).any())


_WIDTH = 512


def checksum(array: np.ndarray, start: int = 0) -> int:
    """A number of 32 bits that tells arrays apart that differ by chance; `start` is that of what came before.

    The array's memory is read as rows of words. The sum of each row and the exclusive or of each column are what a CRC
    is made of: at the speed of memory, ten times that of a CRC of all, and yet no change of order goes unseen.
    """
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    words = raw[: raw.size // (8 * _WIDTH) * 8 * _WIDTH].view(np.uint64).reshape(-1, _WIDTH)
    for part in (np.add.reduce(words, 1), np.bitwise_xor.reduce(words, 0), raw[words.nbytes :]):
        start = zlib.crc32(part.data, start)
    return start


_said: set[str] = set()


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        print(f"autoshard: {text}", file=sys.stderr)


def signature(inputs: Any) -> tuple:
    """The types of the arrays among nested arguments, hashable."""
    leaves, structure = flatten(inputs, lambda part: hasattr(part, "dtype"))
    return repr(structure), tuple(str(type_of(np.asarray(one))) for _, one in leaves)


def named_columns(function: Callable, network: Any, names: Sequence[str]) -> Callable:
    """The function of columns under the network's name, its arguments under those of the columns."""
    function.__name__ = type(network).__name__.lower()
    if all(name.isidentifier() for name in names) and len(set(names)) == len(names):
        kind = inspect.Parameter.POSITIONAL_ONLY
        function.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # type: ignore[attr-defined]
    return function
