"""Blocks that are padded at the end of dims: brought to the size that is worked on, and cut to what is kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def fit(part: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """The array cut to `shape`, or padded, at the end of each dim."""
    shape = tuple(shape)
    if part.shape == shape:
        return part
    inside = tuple(slice(min(old, new)) for old, new in zip(part.shape, shape, strict=True))
    if all(old >= new for old, new in zip(part.shape, shape, strict=True)):
        return np.ascontiguousarray(part[inside])
    made = _blank(shape, part.dtype)
    made[inside] = part[inside]
    return made


def _blank(shape: tuple[int, ...], of: np.dtype) -> np.ndarray:
    """What padding is cut from. No operator may depend on what it holds; zeros make no infinities on the way."""
    return np.zeros(shape, of)
