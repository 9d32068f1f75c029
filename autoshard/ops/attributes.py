"""Values of attributes: constants, and numbers that depend on the rank; and the place that a local call runs at."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from autoshard.core.tensortype import TensorType, type_of
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import AxisRef, Mesh
from autoshard.ops.windows import Varying

Types = tuple[TensorType, ...]


class Literal:
    """A constant array as a hashable attribute value, compared by content; large ones of one content share an array."""

    def __init__(self, array: object) -> None:
        given = np.asarray(array)
        self._key = (given.shape, str(given.dtype), _content(given))
        known = _LARGE.get(self._key)
        if known is None:
            known = np.array(array)
            known.setflags(write=False)
            if known.nbytes > _SMALL:
                _LARGE[self._key] = known
        self.array = known

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"Literal({type_of(self.array)})"


def _content(array: np.ndarray) -> bytes:
    """What two arrays of a shape and type are equal by: their bytes, of large ones the digest of these."""
    if array.nbytes <= _SMALL:
        return array.tobytes()
    return hashlib.blake2b(np.ascontiguousarray(array).view(np.uint8).data).digest()


_SMALL = 4096
"""Bytes of arrays that are compared as they are."""
_LARGE: WeakValueDictionary[tuple, np.ndarray] = WeakValueDictionary()
"""Arrays of the Literals that there are: layers read the same tables of positions and masks, which lie there once."""


@dataclass(frozen=True)
class Offset:
    """An attribute value that depends on the rank: where its block starts, `index along axes * chunk`."""

    mesh: Mesh
    axes: tuple[AxisRef, ...]
    chunk: int

    def at(self, rank: int) -> int:
        return self.mesh.index(rank, self.axes) * self.chunk

    def __str__(self) -> str:
        return f"{'.'.join(map(self.mesh.show_ref, self.axes)) or '-'}*{self.chunk}"


@dataclass(frozen=True)
class Valid:
    """An attribute value that depends on the rank: how much of its block of `chunk` lies inside a dim of `size`."""

    mesh: Mesh
    axes: tuple[AxisRef, ...]
    chunk: int
    size: int

    def at(self, rank: int) -> int:
        return min(max(self.size - self.mesh.index(rank, self.axes) * self.chunk, 0), self.chunk)

    def __str__(self) -> str:
        return f"{self.size} in {'.'.join(map(self.mesh.show_ref, self.axes)) or '-'}*{self.chunk}"


@dataclass(frozen=True)
class OperatorPlacement:
    """Where one operator runs split: global types and layouts of its operands and results, for `localize`.

    The types are the true ones. Where a layout does not divide one, blocks are those of a larger shape:
    `padded_operands` and `padded_results` (None: the true shapes).
    """

    operands: Types
    results: Types
    operand_layouts: tuple[Layout, ...]
    result_layouts: tuple[Layout, ...]
    padded_operands: tuple[tuple[int, ...], ...] | None = None
    padded_results: tuple[tuple[int, ...], ...] | None = None

    def local_operand(self, i: int) -> tuple[int, ...]:
        shape = self.operands[i].shape if self.padded_operands is None else self.padded_operands[i]
        return self.operand_layouts[i].local_shape(shape)

    def local_result(self, i: int = 0) -> tuple[int, ...]:
        shape = self.results[i].shape if self.padded_results is None else self.padded_results[i]
        return self.result_layouts[i].local_shape(shape)

    def operand_valid(self, i: int, dim: int) -> Valid:
        """How much of the rank's block of operand i in `dim` is no padding."""
        layout = self.operand_layouts[i]
        return Valid(layout.mesh, layout.dims[dim], self.local_operand(i)[dim], self.operands[i].shape[dim])

    def operand_offset(self, i: int, dim: int) -> Offset:
        """Where the rank's block of operand i starts in `dim`."""
        layout = self.operand_layouts[i]
        return Offset(layout.mesh, layout.dims[dim], self.local_operand(i)[dim])

    def result_offset(self, dim: int, i: int = 0) -> Offset:
        layout = self.result_layouts[i]
        return Offset(layout.mesh, layout.dims[dim], self.local_result(i)[dim])


def resolve(value: Any, rank: int) -> Any:
    """The attribute value on one rank: every Offset, Valid and Varying in it becomes a number."""
    if isinstance(value, Offset | Valid | Varying):
        return value.at(rank)
    if isinstance(value, tuple):
        return tuple(resolve(item, rank) for item in value)
    return value


def hashable(value: Any) -> Any:
    """The value as attributes hold it: arrays as literals, sequences as tuples, numpy numbers as plain ones."""
    if isinstance(value, np.ndarray):
        return Literal(value)
    if isinstance(value, list | tuple):
        return tuple(hashable(item) for item in value)
    if isinstance(value, np.generic):
        return value.item()
    return value
