"""HiGHS, asked for the least sum of whole numbers within a time that it keeps.

It looks at its clock while it branches, but not while it simplifies a program beforehand, which takes minutes where
rows are long: a program is simplified only where there is time for it.
"""

from __future__ import annotations

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


def least(cost: np.ndarray, whole: np.ndarray, upper: np.ndarray, rows: Any, seconds: float) -> Any:
    """What `scipy.optimize.milp` finds for columns between 0 and `upper`.

    HiGHS goes by the wall clock. Where other work leaves it a part of a processor only, it is asked once more, with as
    much more time as that makes.

    Args:
        cost: per column; HiGHS stops within 1e-6 of their sum.
        whole: per column, whether it is a whole number.
        rows: a `LinearConstraint`, or several.
        seconds: of processor time, after which the best known is returned.
    """
    began, wall = now(), perf_counter()
    found = _asked(cost, whole, upper, rows, seconds, seconds)
    took, passed = now() - began, perf_counter() - wall
    if found.status == CUT_OFF and took < BUSY * seconds:
        return _asked(cost, whole, upper, rows, seconds, (seconds - took) * passed / max(took, 1e-3))
    return found


def _asked(cost: np.ndarray, whole: np.ndarray, upper: np.ndarray, rows: Any, seconds: float, wall: float) -> Any:
    """One call, with a limit by the wall clock."""
    from scipy.optimize import Bounds, milp  # only here: the import takes long

    numbers = sum(one.A.nnz for one in (rows if isinstance(rows, list) else [rows]) if one.A is not None)
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
