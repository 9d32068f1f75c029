"""How far results are from those wanted: outputs beside their largest element, updated tensors beside their step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autoshard.cli.module_run import differences
from costmodel import format_count

_STEP_TOLERANCE, _TINY_STEP = 1e-3, 1e-5
_ROUNDINGS = 4
_SMALLEST = float(np.finfo(np.float64).tiny)

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Agreement:
    """What comparing found.

    Attributes:
        wrong: for each thing that differs, in words how.
        outputs: how many outputs were compared, `difference` by how much they differ at most, as a share of the
            largest element of the output.
        updates: how many updated tensors were compared, `step_difference` by how much they differ at most: a thousandth
            of what may be (see `compare`), so mostly a share of the step that the tensor made.
    """

    wrong: tuple[str, ...]
    outputs: int
    difference: float
    updates: int
    step_difference: float

    def __str__(self) -> str:
        text = f"{format_count(self.outputs, 'output')} within {self.difference:.1e} of the largest element"
        if not self.updates:
            return text
        return f"{text}, {format_count(self.updates, 'updated tensor')} within {self.step_difference:.1e} of the step"


def compare(
    outputs: Sequence[np.ndarray], wanted: Sequence[np.ndarray], before: Arrays, after: Arrays, updated: Arrays
) -> Agreement:
    """Compare outputs with those wanted, and what became of tensors with what they were to become.

    A tensor's step is the largest change of an element. It may be wrong by a thousandth of it, by a hundred thousandth
    of the largest step of all (gradients that should be zero are rounding noise), and by rounding.

    Args:
        before, after: tensors by name before and after the run.
        updated: what those that are compared were to become.
    """
    steps = {name: _furthest(array, before[name]) for name, array in updated.items() if _is_float(array)}
    largest = max(steps.values(), default=0.0)
    wrong, shares = [], [0.0]
    for name, array in updated.items():
        far, step = _furthest(after[name], array), steps.get(name, 0.0)
        rounding = _rounding(array) if _is_float(array) else 0.0
        most = _STEP_TOLERANCE * step + _TINY_STEP * largest + rounding
        if not far <= most:
            wrong.append(f"{name} after its update, by up to {far:.3g}; its step is {step:.3g}, {most:.3g} is rounding")
        shares.append(_STEP_TOLERANCE * far / max(most, _SMALLEST))
    return Agreement(
        (*differences(outputs, wanted), *wrong), len(wanted), _difference(outputs, wanted), len(updated), max(shares)
    )


def _difference(outputs: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> float:
    sizes = [(_furthest(one, other), _furthest(other, 0)) for one, other in zip(outputs, wanted, strict=True)]
    return max((far / size if size else far for far, size in sizes), default=0.0)


def _is_float(array: np.ndarray) -> bool:
    return array.dtype.kind not in "biu"


def _furthest(one: np.ndarray, other: np.ndarray | int) -> float:
    """The largest distance of two elements, 0 between equal ones that are no numbers; else infinite with such."""
    a, b = _wide(one), _wide(np.asarray(other))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        far = np.max(np.where(same, 0.0, np.abs(a - b)), initial=0.0)
    return float("inf") if np.isnan(far) else float(far)


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _rounding(array: np.ndarray) -> float:
    """How far a few roundings of its largest element lead."""
    size = array.dtype.itemsize // (2 if array.dtype.kind == "c" else 1)
    digits = {2: 2.0**-8, 8: 2.0**-53}.get(size, 2.0**-24)
    return _ROUNDINGS * digits * _furthest(array, 0)
