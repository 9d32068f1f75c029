"""Integer programs while they are collected, column by column and line by line, and HiGHS, which solves them in time.

HiGHS looks at its clock while it branches, but not while it simplifies a program beforehand, which takes minutes where
rows are long: a program is simplified only where there is time for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from autoshard.util.clock import now

SIMPLIFIED = 20_000
"""Numbers of a matrix that HiGHS 1.12 simplifies per second, at least (measured: 840,000 in 264 rows in 50 s)."""
LEAST = 0.05
"""Seconds that it is given at least."""


CUT_OFF = 1
"""The status of an answer that the time limit ended."""
BUSY = 0.8
"""Below this share of the time that it may take, in processor seconds, other work on the machine cut it off."""


def least_of(cost: np.ndarray, whole: np.ndarray, upper: np.ndarray, rows: Sequence[Any], seconds: float) -> Any:
    """What `scipy.optimize.milp` finds for columns between 0 and `upper`.

    HiGHS goes by the wall clock. Where other work leaves it a part of a processor only, it is asked once more, with as
    much more time as that makes.

    Args:
        cost: per column; HiGHS stops within 1e-6 of their sum.
        whole: per column, whether it is a whole number.
        rows: of `LinearConstraint`.
        seconds: of processor time, after which the best known is returned.
    """
    began, wall = now(), perf_counter()
    found = _asked(cost, whole, upper, rows, seconds, seconds)
    took, passed = now() - began, perf_counter() - wall
    if found.status == CUT_OFF and took < BUSY * seconds:
        return _asked(cost, whole, upper, rows, seconds, (seconds - took) * passed / max(took, 1e-3))
    return found


def _asked(
    cost: np.ndarray, whole: np.ndarray, upper: np.ndarray, rows: Sequence[Any], seconds: float, wall: float
) -> Any:
    """One call, with a limit by the wall clock."""
    from scipy.optimize import Bounds, milp  # only here: the import takes long

    numbers = sum(one.A.nnz for one in rows)
    return milp(
        cost,
        integrality=whole,
        bounds=Bounds(0, upper),  # pyright: ignore[reportArgumentType] scipy's stubs know numbers only
        constraints=rows,
        options={
            "time_limit": max(LEAST, wall),
            "mip_rel_gap": 0.0,
            "presolve": numbers <= SIMPLIFIED * max(1.0, seconds),
        },
    )


@dataclass(frozen=True)
class IntegerSolution:
    """What HiGHS says: columns (None: nothing found), a bound, whether nothing is possible."""

    columns: np.ndarray | None
    bound: float
    impossible: bool


class SparseRows:
    """Rows of a sparse matrix while they are collected: sums of columns, and what these are to be."""

    def __init__(self) -> None:
        self.rows: list[np.ndarray] = []
        self.columns: list[np.ndarray] = []
        self.numbers: list[np.ndarray] = []
        self.right: list[float] = []

    def add(self, columns: Sequence[int] | np.ndarray, numbers: Sequence[float] | np.ndarray, right: float) -> None:
        self.rows.append(np.full(len(columns), len(self.right)))
        self.columns.append(np.asarray(columns, int))
        self.numbers.append(np.asarray(numbers, float))
        self.right.append(right)

    def matrix(self, width: int):
        from scipy.sparse import coo_array  # only here: the import takes long

        if not self.right:
            return None
        parts = (np.concatenate(one) for one in (self.numbers, self.rows, self.columns))
        numbers, rows, columns = parts
        return coo_array((numbers, (rows, columns)), shape=(len(self.right), width)).tocsr()


class IntegerProgram:
    """Columns with a cost each, from 0 to `upper`; `equal` and `below` are the lines over them.

    The first `choices` columns are whole numbers. `constant` is paid whatever is chosen; inf: nothing is possible.
    """

    def __init__(self) -> None:
        self.cost: list[float] = []
        self.upper: list[float] = []
        self.constant, self.choices = 0.0, 0
        self.equal, self.below = SparseRows(), SparseRows()

    @property
    def size(self) -> int:
        return len(self.cost)

    def columns(self, count: int, upper: float = 1.0) -> np.ndarray:
        """New columns that cost nothing yet."""
        start = len(self.cost)
        self.cost += [0.0] * count
        self.upper += [upper] * count
        return np.arange(start, start + count)

    def column(self) -> int:
        return int(self.columns(1)[0])

    def any_of(self, columns: Sequence[int]) -> int:
        """A column that is 1 if one of these is."""
        if len(set(columns)) == 1:
            return columns[0]
        column = self.column()
        for one in sorted(set(columns)):
            self.below.add([one, column], [1.0, -1.0], 0.0)
        return column

    def solved(self, seconds: float) -> IntegerSolution:
        """The least cost, as far as it is known after so many seconds of processor time."""
        from scipy.optimize import LinearConstraint  # only here: the import takes long

        if math.isinf(self.constant):
            return IntegerSolution(None, math.inf, True)
        # HiGHS stops within 1e-6 of its objective: the largest cost as 1000 puts that at 1e-9 of it.
        scale, width = (max(map(abs, self.cost)) or 1.0) / 1000, self.size
        limits = []
        for rows, least in ((self.equal, self.equal.right), (self.below, -np.inf)):
            if rows.right:
                bounds = np.array(least), np.array(rows.right)
                limits.append(LinearConstraint(rows.matrix(width), *bounds))  # pyright: ignore[reportArgumentType]
        upper = np.array(self.upper)
        found = least_of(np.array(self.cost) / scale, np.arange(width) < self.choices, upper, limits, seconds)
        if found.status == 2:
            return IntegerSolution(None, math.inf, True)
        bound = -math.inf if found.mip_dual_bound is None else float(found.mip_dual_bound) * scale + self.constant
        return IntegerSolution(found.x, bound, False)
