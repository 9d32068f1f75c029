"""Element types under MindSpore's names: `from autoshard.mindspore import dtype as mstype`, then `mstype.float16`."""

from __future__ import annotations

from typing import Any

import numpy as np

from autoshard.core.tensortype import dtype as _element

_NAMES = {
    "float64": "f64", "double": "f64", "float32": "f32", "float": "f32", "float16": "f16", "half": "f16",
    "bfloat16": "bf16", "int64": "i64", "long": "i64", "int32": "i32", "int16": "i16", "short": "i16", "int8": "i8",
    "uint64": "u64", "uint32": "u32", "uint16": "u16", "uint8": "u8", "bool_": "bool", "complex64": "c64",
    "complex128": "c128",
}  # fmt: skip
globals().update({name: _element(short) for name, short in _NAMES.items()})


def dtype_to_nptype(type_: Any) -> Any:
    """Numpy's type of the elements.

    Example:
        >>> dtype_to_nptype(float16)
        <class 'numpy.float16'>
    """
    return np.dtype(_element(type_).numpy).type


__all__ = sorted([*_NAMES, "dtype_to_nptype"])  # noqa: PLE0605
