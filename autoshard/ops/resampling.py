"""Which old places the new ones of a dim of another length come from: numbers alone, for whatever resamples."""

from __future__ import annotations

from typing import Any

import numpy as np


def scale(new: int, old: int, corners: bool, factor: float | None) -> float:
    """How far a step in the result goes in the source."""
    if corners:
        return (old - 1) / (new - 1) if new > 1 else 0.0
    return 1 / factor if factor else old / new


def taps(new: int, old: int, corners: bool, factor: float | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each new place the two old ones that it lies between, and how far it is from the first."""
    step, places = scale(new, old, corners, factor), np.arange(new)
    at = places * step if corners else np.maximum((places + 0.5) * step - 0.5, 0)
    low = np.minimum(at.astype(np.int64), old - 1)
    return low, np.minimum(low + 1, old - 1), (at - low).astype(np.float32)


def lies_over(new: int, old: int, factor: float | None, kind: Any = np.float32) -> np.ndarray:
    """The element that each place looks up: its number divided by the factor (new / old if none was given), rounded
    down; reckoned in the digits of `kind`, of which it depends on which side of a border a place lies."""
    step = kind(1 / factor if factor else kind(old) / kind(new))
    return np.minimum(np.floor(np.arange(new, dtype=kind) * step).astype(np.int64), old - 1)


def windows(new: int, old: int) -> list[range]:
    """Of adaptive pooling: window i reaches from i * old / new, rounded down, to (i + 1) * old / new, rounded up."""
    return [range(i * old // new, -(-(i + 1) * old // new)) for i in range(new)]


def averaging(new: int, old: int) -> np.ndarray:
    """The matrix [new, old] that takes the mean of each window."""
    matrix = np.zeros((new, old))
    for row, window in zip(matrix, windows(new, old), strict=True):
        row[window.start : window.stop] = 1 / len(window)
    return matrix
