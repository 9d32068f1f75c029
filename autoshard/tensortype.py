"""DType and TensorType: what a tensor is, before anything is said of where it lies. Text: `f32[64, 1024]`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autoshard.errors import ParseError, ShapeError


@dataclass(frozen=True)
class DType:
    """An element type: our short name, numpy's name and MindSpore's name."""

    name: str
    numpy_name: str
    long_name: str

    @cached_property
    def numpy(self) -> np.dtype:
        return np.dtype(self.numpy_name)

    @cached_property
    def itemsize(self) -> int:
        return self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        return self.numpy.kind == "f"

    def __str__(self) -> str:
        return self.name


_TABLE = [
    DType("f64", "float64", "Float64"),
    DType("f32", "float32", "Float32"),
    DType("f16", "float16", "Float16"),
    DType("i64", "int64", "Int64"),
    DType("i32", "int32", "Int32"),
    DType("i16", "int16", "Int16"),
    DType("i8", "int8", "Int8"),
    DType("u64", "uint64", "UInt64"),
    DType("u32", "uint32", "UInt32"),
    DType("u16", "uint16", "UInt16"),
    DType("u8", "uint8", "UInt8"),
    DType("bool", "bool", "Bool"),
]
_BY_NAME = {name: row for row in _TABLE for name in (row.name, row.numpy_name, row.long_name)}


def dtype(of: DType | str | np.dtype | type) -> DType:
    """The DType of a short, numpy or MindSpore name, or of anything numpy takes for a dtype.

    Raises:
        ShapeError: no such element type.
    """
    if isinstance(of, DType):
        return of
    if isinstance(of, str) and of in _BY_NAME:
        return _BY_NAME[of]
    try:
        return _BY_NAME[np.dtype(of).name]
    except (TypeError, KeyError):
        names = ", ".join(row.name for row in _TABLE)
        raise ShapeError(f"unknown element type {of!r}; known are {names}") from None


@dataclass(frozen=True)
class TensorType:
    """Shape and element type of a tensor."""

    shape: tuple[int, ...]
    dtype: DType

    @staticmethod
    def of(shape: Iterable[int], element: DType | str | np.dtype | type = "f32") -> TensorType:
        return TensorType(tuple(int(size) for size in shape), dtype(element))

    @staticmethod
    def parse(text: str) -> TensorType:
        """Read `f32[64, 1024]`."""
        match = re.fullmatch(r"\s*(\w+)\[([\d,\s]*)\]\s*", text)
        if match is None:
            raise ParseError(f"cannot read tensor type {text!r}; write e.g. 'f32[64, 1024]'")
        return TensorType.of((int(size) for size in match[2].split(",") if size.strip()), match[1])

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @cached_property
    def elements(self) -> int:
        return math.prod(self.shape)

    @cached_property
    def nbytes(self) -> int:
        return self.elements * self.dtype.itemsize

    def with_shape(self, shape: Iterable[int]) -> TensorType:
        return TensorType.of(shape, self.dtype)


def type_of(array: np.ndarray) -> TensorType:
    return TensorType.of(array.shape, array.dtype)
