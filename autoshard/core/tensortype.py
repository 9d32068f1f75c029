"""DType and TensorType: what a tensor is, before anything is said of where it lies. Text: `f32[64, 1024]`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from autoshard.util.errors import ParseError, ShapeError
from autoshard.util.text import natural

_TEXT = re.compile(r"\s*([A-Za-z]\w*)\[\s*((?:[0-9]+\s*(?:,\s*[0-9]+\s*)*(?:,\s*)?)?)\]\s*", re.ASCII)


@dataclass(frozen=True)
class DType:
    """An element type: our short name, numpy's name and MindSpore's name."""

    name: str
    numpy_name: str
    long_name: str
    bits: int
    is_float: bool = False
    extended: bool = False

    @property
    def is_inexact(self) -> bool:
        """Whether it holds real or complex floating-point numbers; numpy's word for both."""
        return self.is_float or self.name in ("c64", "c128")

    @cached_property
    def numpy(self) -> np.dtype:
        """Numpy's dtype; ml_dtypes supplies those that numpy itself has not.

        Raises:
            ShapeError: ml_dtypes is needed and not installed, or the type has no values (a token).
        """
        if self is TOKEN:
            raise ShapeError("a token orders effects and has no value that could be held in an array")
        if not self.extended:
            return np.dtype(self.numpy_name)
        try:
            import ml_dtypes
        except ImportError:
            raise ShapeError(
                f"arrays of {self.name} need the package ml_dtypes, which the extra jax brings: "
                "pip install 'autoshard[jax]'"
            ) from None
        return np.dtype(getattr(ml_dtypes, self.numpy_name))

    @property
    def dtype(self) -> np.dtype:
        """The same as `numpy`, under the name by which numpy takes a DType where it takes a dtype."""
        return self.numpy

    @property
    def itemsize(self) -> int:
        """Bytes of one element as numpy holds it: types below 8 bits take a whole byte."""
        return -(-self.bits // 8)

    def __str__(self) -> str:
        return self.name


_F8 = ("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
_TABLE = [
    DType("f64", "float64", "Float64", 64, True),
    DType("f32", "float32", "Float32", 32, True),
    DType("f16", "float16", "Float16", 16, True),
    DType("bf16", "bfloat16", "BFloat16", 16, True, True),
    DType("i64", "int64", "Int64", 64),
    DType("i32", "int32", "Int32", 32),
    DType("i16", "int16", "Int16", 16),
    DType("i8", "int8", "Int8", 8),
    DType("i4", "int4", "Int4", 4, False, True),
    DType("i2", "int2", "Int2", 2, False, True),
    DType("u64", "uint64", "UInt64", 64),
    DType("u32", "uint32", "UInt32", 32),
    DType("u16", "uint16", "UInt16", 16),
    DType("u8", "uint8", "UInt8", 8),
    DType("u4", "uint4", "UInt4", 4, False, True),
    DType("u2", "uint2", "UInt2", 2, False, True),
    DType("c64", "complex64", "Complex64", 64),
    DType("c128", "complex128", "Complex128", 128),
    DType("f4e2m1fn", "float4_e2m1fn", "Float4E2M1FN", 4, True, True),
    *(DType(f"f8{kind}", f"float8_{kind}", f"Float8{kind.upper()}", 8, True, True) for kind in _F8),
    DType("bool", "bool", "Bool", 8),
]
# What orders side effects: a value without contents, only in imported graphs.
TOKEN = DType("token", "token", "Token", 0)
_TABLE.append(TOKEN)
# A size that is known at run time only, as MLIR marks it (ShapedType::kDynamic).
DYNAMIC = -(2**63)
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
        return _of_numpy(of if isinstance(of, np.dtype) else np.dtype(of))
    except (TypeError, KeyError, ValueError, SyntaxError):  # numpy reads texts such as "i4,f8" with a parser
        names = ", ".join(row.name for row in _TABLE)
        raise ShapeError(f"unknown element type {of!r}; known are {names}") from None


@cache
def _of_numpy(of: np.dtype) -> DType:
    # Numpy puts the name of a dtype together each time, in Python.
    return _BY_NAME[of.name]


@dataclass(frozen=True)
class TensorType:
    """Shape and element type of a tensor.

    >>> from autoshard import TensorType
    >>> of = TensorType.parse("f32[16, 12]")
    >>> of.shape, of.nbytes, str(of)
    ((16, 12), 768, 'f32[16, 12]')
    """

    shape: tuple[int, ...]
    dtype: DType

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Of numbers alone, which hash alike in every process: a pickled type keeps it."""
        return hash((self.shape, self.dtype.bits))

    @staticmethod
    def of(shape: Iterable[int], element: DType | str | np.dtype | type = "f32") -> TensorType:
        return TensorType(tuple(int(size) for size in shape), dtype(element))

    @staticmethod
    def parse(text: str) -> TensorType:
        """Read `f32[64, 1024]`."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ParseError(f"cannot read tensor type {text!r}; write e.g. 'f32[64, 1024]'")
        return TensorType.of((natural(size) for size in re.findall("[0-9]+", match[2])), match[1])

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join('?' if size == DYNAMIC else str(size) for size in self.shape)}]"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @cached_property
    def is_static(self) -> bool:
        """Whether all sizes are known. Only graphs read for propagation have tensors of which some are not."""
        return DYNAMIC not in self.shape

    @cached_property
    def elements(self) -> int:
        """Number of elements.

        Raises:
            ShapeError: a size is not known.
        """
        if not self.is_static:
            raise ShapeError(f"cannot count the elements of {self}: its shape is dynamic; every size has to be known")
        return math.prod(self.shape)

    @cached_property
    def nbytes(self) -> int:
        return self.elements * self.dtype.itemsize

    def with_shape(self, shape: Iterable[int]) -> TensorType:
        return TensorType.of(shape, self.dtype)


def type_of(array: np.ndarray) -> TensorType:
    return TensorType.of(array.shape, array.dtype)


def promote(dtypes: Sequence[DType]) -> DType:
    """The common element type: numpy's of the real and complex floats if there are any, else of all."""
    floats = [one for one in dtypes if one.is_inexact]
    kinds = {one.numpy for one in (floats or dtypes)}
    return dtype(np.result_type(*kinds)) if kinds else dtype("f32")
