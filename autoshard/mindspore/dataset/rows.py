"""A row of data, and functions that make others of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from autoshard.util.errors import AutoshardError

Row = tuple[np.ndarray, ...]
Rows = Callable[[int], Iterator[Row]]


class DataError(AutoshardError):
    """Rows that cannot be read, batched or fed to a program."""


def arrays_of(items: Sequence[Any], names: Sequence[str], what: str) -> Row:
    """Items as a row.

    Raises:
        DataError: other than one per column, or one that holds no numbers.
    """
    if len(items) != len(names):
        raise DataError(f"{what} has {len(items)} values, but there are {len(names)} columns ({', '.join(names)})")
    arrays = tuple(np.asarray(item) for item in items)
    for name, array in zip(names, arrays, strict=True):
        if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
            raise DataError(f"{what} of column {name!r} holds {array.dtype}, not numbers")
    return arrays


def columns_of(given: Any, known: Sequence[str], what: str) -> tuple[str, ...]:
    """Names of columns, one or several.

    Raises:
        DataError: names that there are not.
    """
    names = (given,) if isinstance(given, str) else tuple(given)
    unknown = [name for name in names if name not in known]
    if unknown or len(set(names)) < len(names):
        raise DataError(f"{what}: columns {list(names)}; the dataset has {', '.join(known)}, each once")
    return names


class Mapping:
    """Functions applied to columns of rows, one behind the other, as `Dataset.map` does."""

    def __init__(self, operations: Any, inputs: Any, outputs: Any, known: Sequence[str]) -> None:
        self.operations = tuple(operations) if isinstance(operations, list | tuple) else (operations,)
        if not self.operations or not all(map(callable, self.operations)):
            raise DataError(f"map: operations are {operations!r}; a function of arrays, or a list of such")
        self.inputs = columns_of(known[:1] if inputs is None else inputs, known, "map: input_columns")
        self.outputs = self.inputs if outputs is None else (outputs,) if isinstance(outputs, str) else tuple(outputs)
        kept = [name for name in known if name not in self.inputs]
        in_place = dict(zip(self.inputs, self.outputs, strict=False))
        alike = len(self.inputs) == len(self.outputs)
        self.columns = tuple(in_place.get(name, name) for name in known) if alike else (*self.outputs, *kept)
        self.known = tuple(known)
        if len(set(self.columns)) < len(self.columns):
            raise DataError(f"map: output_columns {list(self.outputs)} make columns {self.columns}; each has one name")

    def __call__(self, row: Row) -> Row:
        held = dict(zip(self.known, row, strict=True))
        taken = tuple(held.pop(name) for name in self.inputs)
        for one in self.operations:
            found = one(*taken)
            taken = found if isinstance(found, tuple) else (found,)
        held.update(zip(self.outputs, arrays_of(taken, self.outputs, "map: what it gives"), strict=True))
        return tuple(held[name] for name in self.columns)


def padded(arrays: Sequence[np.ndarray], shape: Sequence[Any] | None, value: Any, what: str) -> list[np.ndarray]:
    """Arrays with a number behind each dim, up to a shape (None: of the largest).

    Raises:
        DataError: one is larger than that, or has other dims.
    """
    ranks = {array.ndim for array in arrays}
    wanted = [None] * arrays[0].ndim if shape is None else list(shape)
    if ranks != {len(wanted)}:
        raise DataError(f"{what}: arrays have {sorted(ranks)} dims, the shape to pad to is {tuple(wanted)}")
    sizes = [max(array.shape[i] for array in arrays) if one is None else one for i, one in enumerate(wanted)]
    if any(size > most for array in arrays for size, most in zip(array.shape, sizes, strict=True)):
        shapes = sorted({array.shape for array in arrays})
        raise DataError(f"{what}: arrays {shapes} are larger than {tuple(sizes)}, to which they are to be padded")
    pads = [[(0, most - size) for size, most in zip(array.shape, sizes, strict=True)] for array in arrays]
    return [np.pad(array, pad, constant_values=value) for array, pad in zip(arrays, pads, strict=True)]
