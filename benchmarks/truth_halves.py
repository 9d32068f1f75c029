"""Constants of devices fitted on one half of the steps that others measured, and tried on the other half.

    python -m benchmarks.truth_halves [TABLE ...] [--every N]

Two numbers are fitted for each kind of device: the shares of the peak that products and attention reach. The time of a
step is linear in their inverses, but for what collectives hide. Rows of one source and model are in the same half, by
a hash of their names. `presets` says what the presets' own constants come to on that half.
"""

from __future__ import annotations

import argparse
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.optimize import least_squares

from autoshard.truth.predict import Prediction, Predictor, refusal
from autoshard.truth.rows import Row
from autoshard.truth.score import score
from autoshard.truth.tables import load, shipped
from costmodel import Hardware, preset

CONSTANTS = ("compute_efficiency", "attention_efficiency")
KINDS = ("a100", "h100", "b200")
OUTLYING = 0.05
"""Relative error from which on a row counts less than by its square."""
Shares = tuple[float, float]


def kind_of(row: Row) -> str:
    return next(kind for kind in KINDS if row.hardware.startswith(kind))


def half_of(source: str, row: Row) -> int:
    """0 or 1, the same for rows of one source and model."""
    name = f"{source} {row.model.builder} {row.model.hidden} {row.model.layers}"
    return hashlib.sha256(name.encode()).digest()[0] % 2


def with_shares(times: Shares) -> Callable[[str], Hardware]:
    """Presets whose shares of the peak are so many times their own."""

    def found(name: str) -> Hardware:
        known = preset(name)
        shares = {one: min(1.0, getattr(known.device, one) * by) for one, by in zip(CONSTANTS, times, strict=True)}
        return replace(known, device=replace(known.device, **shares))

    return found


STEP = 0.9
"""By what each constant is multiplied to see how seconds follow."""


class Lines:
    """Seconds of rows as a line in the inverses of both constants, which count in multiples of the presets'."""

    def __init__(self, predictor: Predictor, rows: Sequence[Row]) -> None:
        self.rows = rows
        at, first, second = (
            np.array([predictor.on(with_shares(one))(row).seconds for row in rows])
            for one in ((1.0, 1.0), (STEP, 1.0), (1.0, STEP))
        )
        slope = 1 / STEP - 1
        self.products, self.attention = (first - at) / slope, (second - at) / slope
        self.rest = at - self.products - self.attention
        self.measured = np.array([row.measured.seconds for row in rows])

    def errors(self, times: np.ndarray) -> np.ndarray:
        """Logarithms of predicted to measured."""
        found = self.rest + self.products / times[0] + self.attention / times[1]
        return np.log(np.maximum(found, 1e-9) / self.measured)

    def fitted(self) -> Shares:
        first, second = least_squares(
            self.errors, (1.0, 1.0), bounds=((0.3, 0.3), (3.0, 3.0)), loss="soft_l1", f_scale=OUTLYING
        ).x
        return float(first), float(second)


def fit(predictor: Predictor, rows: Sequence[Row]) -> dict[str, Shares]:
    """For each kind of device the constants that suit the rows, in multiples of the presets'."""
    by_kind = {kind: [row for row in rows if kind_of(row) == kind] for kind in KINDS}
    return {kind: Lines(predictor, some).fitted() for kind, some in by_kind.items() if some}


def tried(predictor: Predictor, rows: Sequence[Row], known: Mapping[str, Shares]) -> list[Prediction]:
    """Predictions with these constants; kinds that were not fitted stay as their presets."""
    return [predictor.on(with_shares(known.get(kind_of(row), (1.0, 1.0))))(row) for row in rows]


def predicted(rows: Sequence[tuple[str, Row]], predictor: Predictor) -> list[tuple[str, Row]]:
    """Those that can be."""
    return [(source, row) for source, row in rows if not refusal(row) and not predictor(row).refused]


def _line(name: str, found: Sequence[Prediction], known: Mapping[str, Shares]) -> tuple[str, ...]:
    one = score(name, found)
    assert one is not None
    constants = "; ".join(
        f"{kind} {getattr(preset(kind).device, CONSTANTS[0]) * first:.3f} "
        f"{(preset(kind).device.attention_efficiency or math.nan) * second:.3f}"
        for kind, (first, second) in known.items()
    )
    numbers = (100 * one.median_error, 100 * one.nine_of_ten, 100 * one.worst)
    return name, str(one.count), *(f"{number:.1f} %" for number in numbers), constants


def main() -> None:
    """Fit on each half, try on the other, and print both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tables", nargs="*", type=Path, metavar="TABLE", help="default: those shipped")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th row")
    asked = parser.parse_args()
    known = [load(path) for path in asked.tables or shipped()]
    predictor = Predictor()
    rows = [(one.source.name, row) for one in known for row in one.rows][:: asked.every]
    rows = predicted(rows, predictor)
    halves = [[row for source, row in rows if half_of(source, row) == half] for half in (0, 1)]
    shown = Table("rows tried", "rows", "median error", "9 of 10", "worst", "products, attention")
    for half, (own, other) in enumerate((halves, halves[::-1])):
        constants = fit(predictor, own)
        shown.add_row(*_line(f"half {1 - half}, fitted on {half}", tried(predictor, other, constants), constants))
        shown.add_row(*_line(f"half {1 - half}, presets", tried(predictor, other, {}), {}))
    Console().print(shown)


if __name__ == "__main__":
    main()
