"""Cutting planes of the Lagrangian dual: multipliers of bytes that make a limit's violation cost what it should.

(Kelley, 1960; Cheney and Goldstein, 1959.) Every assignment is a plane that is nowhere below the dual function; the
multipliers where the least of the planes is highest promise the highest bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class CuttingPlane:
    """cost + prices . excess is above the dual function everywhere; `bound` is below it at the prices tried."""

    cost: float
    excess: np.ndarray
    bound: float


def model(planes: list[CuttingPlane], box: np.ndarray, simplex: bool) -> tuple[np.ndarray, float]:
    """The prices where the least of the planes is highest, and that height."""
    from scipy.optimize import linprog  # only here: the import takes longer than most searches

    count = len(box)
    size = max(1e-300, *(abs(plane.cost) for plane in planes), *(float(np.abs(p.excess * box).max()) for p in planes))
    left = np.array([[*(-plane.excess * box / size), 1.0] for plane in planes])
    right = np.array([plane.cost / size for plane in planes])
    equal = {"A_eq": np.array([[*([1.0] * count), 0.0]]), "b_eq": [1.0]} if simplex else {}
    bounds = [(0.0, 1.0)] * count + [(None, None)]
    found = linprog([*([0.0] * count), -1.0], A_ub=left, b_ub=right, bounds=bounds, **equal)
    if found.x is None:
        return box / count, np.inf
    return np.maximum(found.x[:-1], 0.0) * box, float(found.x[-1]) * size
