"""The Lagrangian bound: prices for bytes that make the limit's violation cost what it should.

Cutting planes (Kelley, 1960; Cheney and Goldstein, 1959), stabilized by stepping part of the way from the best prices
to the model's. Every evaluation is one minimization of the tables with priced bytes; any prices give a valid bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

# prices -> (a choice, its cost, its excess per row, a lower bound of min over choices of cost + prices . excess)
Evaluate = Callable[[np.ndarray], "CuttingPlane | None"]


@dataclass(frozen=True, eq=False)
class CuttingPlane:
    """cost + prices . excess is above the dual function everywhere; `bound` is below it at the prices tried."""

    cost: float
    excess: np.ndarray
    bound: float


@dataclass
class DualBound:
    """The best prices so far and the bound they give."""

    prices: np.ndarray
    bound: float
    planes: list[CuttingPlane]


def ascend(
    evaluate: Evaluate,
    first: CuttingPlane,
    start: np.ndarray,
    *,
    box: np.ndarray,
    simplex: bool,
    rounds: int,
    done: Callable[[float], bool],
) -> DualBound:
    """Raise the bound by choosing prices in 0..box (or on the simplex), at most `rounds` evaluations.

    `done(bound)` says that the bound suffices; evaluate returns None when time is over.
    """
    dual = DualBound(start, first.bound, [first])
    box = box.copy()
    for round_ in range(rounds):
        target, height = model(dual.planes, box, simplex)
        grown = not simplex and bool((target >= 0.999 * box).any())
        if grown:
            box = np.where(target >= 0.999 * box, 4 * box, box)
        elif height - dual.bound <= 1e-7 * max(abs(height), abs(dual.bound)):
            break
        step = 1.0 if len(target) == 1 or grown or round_ % 4 == 3 else 0.5
        tried = dual.prices + step * (target - dual.prices)
        plane = evaluate(tried)
        if plane is None:
            break
        dual.planes.append(plane)
        if plane.bound > dual.bound:
            dual.bound, dual.prices = plane.bound, tried
        if done(dual.bound):
            break
    return dual


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
