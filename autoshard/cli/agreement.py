"""How far results are from those wanted: outputs beside their largest element, updated tensors beside their step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from autoshard.cli.module_run import differences
from costmodel import format_count

_STEP_TOLERANCE, _NARROW_STEP_TOLERANCE, _TINY_STEP = 1e-3, 2e-2, 1e-5
_ROUNDINGS = 4
# Runs whose inputs are rounded otherwise show how far rounding moves an element, but not always all of it.
_LOOSE = 16
_SMALLEST = float(np.finfo(np.float64).tiny)

Arrays = Mapping[str, np.ndarray]
_NO_ARRAYS: Arrays = MappingProxyType({})


@dataclass(frozen=True)
class Agreement:
    """What comparing found.

    Attributes:
        wrong: for each thing that differs, in words how.
        outputs: how many outputs were compared, `difference` by how much they differ at most, as a share of the
            largest element of the output.
        updates: how many updated tensors were compared, `step_difference` by how much they differ at most: a thousandth
            of what may be (see `compare`), so mostly a share of the step that the tensor made.
        wrong_updates: names of the updated tensors that differ.
        loose: how many of their elements are far from what was wanted, but are so only by rounding.
    """

    wrong: tuple[str, ...]
    outputs: int
    difference: float
    updates: int
    step_difference: float
    wrong_updates: tuple[str, ...] = ()
    loose: int = 0

    def __str__(self) -> str:
        text = f"{format_count(self.outputs, 'output')} within {self.difference:.1e} of the largest element"
        if not self.updates:
            return text
        loose = f"; rounding decides {format_count(self.loose, 'element')} more" if self.loose else ""
        updates = format_count(self.updates, "updated tensor")
        return f"{text}, {updates} within {self.step_difference:.1e} of the step{loose}"


def compare(
    outputs: Sequence[np.ndarray],
    wanted: Sequence[np.ndarray],
    before: Arrays,
    after: Arrays,
    updated: Arrays,
    loose: Arrays = _NO_ARRAYS,
    narrow: bool = False,
) -> Agreement:
    """Compare outputs with those wanted, and what became of tensors with what they were to become.

    A tensor's step is the largest change of an element. It may be wrong by a thousandth of it, by a hundred thousandth
    of the largest step of all (gradients that should be zero are rounding noise), and by rounding.

    Args:
        before, after: tensors by name before and after the run.
        updated: what those that are compared were to become.
        loose: by name, element by element, how far rounding of the inputs moves the updated tensor; it may be wrong
            by a few times that, too.
        narrow: numbers of two bytes take part, so that a fiftieth of the step may be wrong.
    """
    steps = {name: _furthest(array, before[name]) for name, array in updated.items() if _is_float(array)}
    noise, share = _TINY_STEP * max(steps.values(), default=0.0), _NARROW_STEP_TOLERANCE if narrow else _STEP_TOLERANCE
    wrong, shares, excused = {}, [0.0], 0
    for name, array in updated.items():
        step = steps.get(name, 0.0)
        most = share * step + noise + (_rounding(array) if _is_float(array) else 0.0)
        close, far, apart = _parted(distances(after[name], array), most, loose.get(name))
        if far > most:
            wrong[name] = f"{name} after its update, by up to {far:.3g}; its step is {step:.3g}, {most:.3g} is rounding"
        shares.append(_STEP_TOLERANCE * max(close, far) / max(most, _SMALLEST))
        excused += apart
    disagreeing = (*differences(outputs, wanted, narrow), *wrong.values())
    difference = _difference(outputs, wanted)
    return Agreement(disagreeing, len(wanted), difference, len(updated), max(shares), tuple(wrong), excused)


def _parted(distances: np.ndarray, most: float, loose: np.ndarray | None) -> tuple[float, float, int]:
    """The largest distance that may be, the largest that may not, and how many of the latter rounding explains."""
    beyond = distances > most
    explained = beyond & (distances <= _LOOSE * loose) if loose is not None else np.zeros_like(beyond)
    close = np.max(np.where(beyond, 0.0, distances), initial=0.0)
    far = np.max(np.where(beyond & ~explained, distances, 0.0), initial=0.0)
    return float(close), float(far), int(np.sum(explained))


def _difference(outputs: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> float:
    sizes = [(_furthest(one, other), _furthest(other, 0)) for one, other in zip(outputs, wanted, strict=True)]
    return max((far / size if size else far for far, size in sizes), default=0.0)


def _is_float(array: np.ndarray) -> bool:
    return array.dtype.kind not in "biu"


def _furthest(one: np.ndarray, other: np.ndarray | int) -> float:
    return float(np.max(distances(one, other), initial=0.0))


def distances(one: np.ndarray, other: np.ndarray | int) -> np.ndarray:
    """Distances of elements, 0 between equal ones that are no numbers; else infinite with such."""
    a, b = _wide(np.asarray(one)), _wide(np.asarray(other))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        far = np.where(same, 0.0, np.abs(a - b))
    return np.where(np.isnan(far), np.inf, far)


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _rounding(array: np.ndarray) -> float:
    """How far a few roundings of its largest element lead."""
    size = array.dtype.itemsize // (2 if array.dtype.kind == "c" else 1)
    digits = {2: 2.0**-8, 8: 2.0**-53}.get(size, 2.0**-24)
    return _ROUNDINGS * digits * _furthest(array, 0)
