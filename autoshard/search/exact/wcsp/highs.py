"""HiGHS, asked for the least sum of whole numbers within a time that it keeps.

It looks at its clock while it branches, but not while it simplifies a program beforehand, which takes minutes where
rows are long: a program is simplified only where there is time for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

SIMPLIFIED = 20_000
"""Numbers of a matrix that HiGHS 1.12 simplifies per second, at least (measured: 840,000 in 264 rows in 50 s)."""
LEAST = 0.05
"""Seconds that it is given at least."""


def least(cost: np.ndarray, whole: np.ndarray, upper: np.ndarray, rows: Any, seconds: float) -> Any:
    """What `scipy.optimize.milp` finds for columns between 0 and `upper`.

    Args:
        cost: per column; HiGHS stops within 1e-6 of their sum.
        whole: per column, whether it is a whole number.
        rows: a `LinearConstraint`, or several.
        seconds: after which the best known is returned.
    """
    from scipy.optimize import Bounds, milp  # only here: the import takes long

    numbers = sum(one.A.nnz for one in (rows if isinstance(rows, list) else [rows]) if one.A is not None)
    return milp(
        cost,
        integrality=whole,
        bounds=Bounds(0, upper),  # pyright: ignore[reportArgumentType] scipy's stubs know numbers only
        constraints=rows,
        options={
            "time_limit": max(LEAST, seconds),
            "mip_rel_gap": 0.0,
            "presolve": numbers <= SIMPLIFIED * max(1.0, seconds),
        },
    )
