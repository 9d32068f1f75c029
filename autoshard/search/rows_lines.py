"""A linear program in whole numbers while it is collected, column by column and line by line, for HiGHS."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoshard.search.exact import highs


@dataclass(frozen=True)
class LinearSolution:
    """What HiGHS says: columns (None: nothing found), a bound, whether nothing is possible."""

    columns: np.ndarray | None
    bound: float
    impossible: bool


class Lines:
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


class LinearProgram:
    """Columns with a cost each, from 0 to `upper`; `equal` and `below` are the lines over them.

    The first `choices` columns are whole numbers. `constant` is paid whatever is chosen; inf: nothing is possible.
    """

    def __init__(self) -> None:
        self.cost: list[float] = []
        self.upper: list[float] = []
        self.constant, self.choices = 0.0, 0
        self.equal, self.below = Lines(), Lines()

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

    def solved(self, upper: np.ndarray, seconds: float) -> LinearSolution:
        """The least cost.

        Args:
            upper: per column, in place of `upper`.
        """
        from scipy.optimize import LinearConstraint  # only here: the import takes long

        if math.isinf(self.constant):
            return LinearSolution(None, math.inf, True)
        # HiGHS stops within 1e-6 of its objective: the largest cost as 1000 puts that at 1e-9 of it.
        scale, width = (max(map(abs, self.cost)) or 1.0) / 1000, self.size
        equal, below = np.array(self.equal.right), np.array(self.below.right)
        limits = [LinearConstraint(self.equal.matrix(width), equal, equal)]  # pyright: ignore[reportArgumentType]
        if self.below.right:
            matrix = self.below.matrix(width)
            limits.append(LinearConstraint(matrix, -np.inf, below))  # pyright: ignore[reportArgumentType]
        found = highs.least(np.array(self.cost) / scale, np.arange(width) < self.choices, upper, limits, seconds)
        if found.status == 2:
            return LinearSolution(None, math.inf, True)
        bound = -math.inf if found.mip_dual_bound is None else float(found.mip_dual_bound) * scale + self.constant
        return LinearSolution(found.x, bound, False)
