"""Bytes alive at once: the peak over a schedule and the curve behind it.

A row (first_step, last_step, nbytes) says that a value lies in memory at all steps first_step .. last_step,
both included. Rows come as an (n, 3) array or a sequence of triples.

>>> peak([(0, 2, 40), (1, 1, 100), (2, 4, 60)])
(140, 1)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Intervals = np.ndarray | Sequence[Sequence[int]]


def peak(intervals: Intervals) -> tuple[int, int]:
    """The most bytes alive at one step, and the first step where they are; (0, 0) for no rows.

    Sorting sweep over the ends, O(n log n) for n rows however many steps lie between. ValueError for bad
    rows.
    """
    rows = _checked(intervals)
    if not len(rows):
        return 0, 0
    first, last, nbytes = rows.T
    steps = np.concatenate([first, last + 1])
    change = np.concatenate([nbytes, -nbytes])
    order = np.argsort(steps, kind="stable")
    steps, alive = steps[order], np.cumsum(change[order])
    settled = np.append(steps[1:] != steps[:-1], True)  # a step counts after its last change
    at = int(np.argmax(alive[settled]))
    return int(alive[settled][at]), int(steps[settled][at])


def live_bytes(intervals: Intervals, steps: int) -> np.ndarray:
    """Bytes alive at each of the steps 0 .. steps-1, as int64[steps]; ValueError for a row outside."""
    rows = _checked(intervals)
    first, last, nbytes = rows.T
    outside = np.flatnonzero((first < 0) | (last >= steps))
    if outside.size:
        raise ValueError(f"{_row(rows, outside[0])} lies outside of the {steps} steps from 0 to {steps - 1}")
    change = np.zeros(steps + 1, np.int64)
    np.add.at(change, first, nbytes)
    np.subtract.at(change, last + 1, nbytes)
    return np.cumsum(change[:-1])


def _checked(intervals: Intervals) -> np.ndarray:
    given = np.asarray(intervals)
    if given.size == 0:
        return np.zeros((0, 3), np.int64)
    if given.ndim != 2 or given.shape[1] != 3 or given.dtype.kind not in "iuf":
        raise ValueError(
            "live ranges are rows of three numbers (first_step, last_step, nbytes); "
            f"got shape {given.shape} of {given.dtype}"
        )
    # Past 2**62 neither a step plus one nor a sum of bytes is sure to fit an int64.
    unfit = ~(np.abs(given.astype(np.float64)) < 2.0**62)
    _refuse(given, unfit.any(axis=1), "holds a number that is no finite integer below 2**62")
    rows = given.astype(np.int64)
    _refuse(given, np.not_equal(rows, given).any(axis=1), "holds a fraction; steps and bytes are whole numbers")
    _refuse(rows, rows[:, 1] < rows[:, 0], "ends before it begins")
    _refuse(rows, rows[:, 2] < 0, "has negative bytes")
    if rows[:, 2].sum(dtype=np.float64) >= 2.0**62:
        raise ValueError(f"the {len(rows)} live ranges sum to over 2**62 bytes; are the sizes in bytes?")
    return rows


def _refuse(rows: np.ndarray, bad: np.ndarray | np.bool, why: str) -> None:
    if np.any(bad):
        raise ValueError(f"{_row(rows, np.argmax(bad))} {why}")


def _row(rows: np.ndarray, index: np.intp) -> str:
    first, last, nbytes = rows[index].tolist()
    return f"live range {int(index)} (first_step={first}, last_step={last}, nbytes={nbytes})"
