"""Arrays as Python text: numbers where they are few, else their bytes packed."""

from __future__ import annotations

import zlib
from base64 import b64encode

import numpy as np

_FEW = 16
"""Elements that are written one by one."""


def packed(array: np.ndarray) -> str:
    """`constant(kind, shape, bytes)` of exported code."""
    data = b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 9)).decode()
    return f"constant({array.dtype.name!r}, {array.shape!r}, {data!r})"


def is_short(array: np.ndarray) -> bool:
    """Whether its numbers are written one by one."""
    return array.size <= _FEW and array.dtype.kind in "biuf" and bool(np.all(np.isfinite(array)))
