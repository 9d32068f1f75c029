"""Constants of devices fitted on one half of the steps that others measured, and tried on the other half.

    python -m benchmarks.truth_halves [TABLE ...] [--every N] [--hosts]

Two numbers are fitted for each kind of device: the shares of the peak that products and attention reach. The time of a
step is linear in their inverses, but for what collectives hide. Rows of one source and model are in the same half, by
a hash of their names. `presets` says what the presets' own constants come to on that half.

With `--hosts` four numbers of hosts, and what hand-written kernels take longer, are fitted instead, to the rows of such
kernels that are in no stages.
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
from autoshard.truth.rates import OUTSIDE_SHARE, rates_of
from autoshard.truth.rows import Row
from autoshard.truth.score import Score, score
from autoshard.truth.stages import RowRates
from autoshard.truth.tables import load, shipped
from costmodel import Hardware, preset
from costmodel.host import HOSTS

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


HOST_CONSTANTS = ("forward", "backward", "collective", "crowd", "outside")
"""Four of `HostTimes`, and `RowRates.outside_share`."""
FAR_OUTLYING = 0.15
"""The same as `OUTLYING` of hosts, which differ as much from one measurement to the next."""


def with_hosts(times: Sequence[float]) -> Callable[[Row, Hardware], RowRates]:
    """Rates of rows' software whose constants are so many times those of `costmodel.host`."""

    def found(row: Row, hardware: Hardware) -> RowRates:
        known = rates_of(row, hardware)
        if row.fusion != "kernels":
            return known
        changed = {name: getattr(known.host, name) * by for name, by in zip(HOST_CONSTANTS[:-1], times, strict=False)}
        return replace(known, host=known.host._replace(**changed), outside_share=known.outside_share * times[-1])

    return found


def fit_hosts(predictor: Predictor, rows: Sequence[Row]) -> tuple[float, ...]:
    """The constants of hosts that suit the rows, in multiples of the present ones."""
    measured = np.array([row.measured.seconds for row in rows])

    def errors(logarithms: np.ndarray) -> np.ndarray:
        at = predictor.at(with_hosts(np.exp(logarithms)))
        return np.log([at(row).seconds for row in rows] / measured)

    start = np.zeros(len(HOST_CONSTANTS))
    found = least_squares(
        errors, start, bounds=(-2, 2), loss="soft_l1", f_scale=FAR_OUTLYING, diff_step=1e-3, xtol=1e-3
    )
    return tuple(np.exp(found.x))


def halves_of_hosts(rows: Sequence[tuple[str, Row]], predictor: Predictor) -> Table:
    """Hosts fitted on each half and tried on the other, by source."""
    rows = [(source, row) for source, row in rows if row.fusion == "kernels" and row.axes.pp == 1]
    shown = Table("rows tried", "rows", "median error", "9 of 10", "worst", ", ".join(HOST_CONSTANTS))
    for half in (0, 1):
        times = fit_hosts(predictor, [row for source, row in rows if half_of(source, row) == half])
        constants = " ".join(f"{value:.3g}" for value in host_values(times))
        for source in dict.fromkeys(source for source, _ in rows):
            other = [row for one, row in rows if one == source and half_of(one, row) != half]
            for name, at in ((f"half {1 - half} of {source}, fitted on {half}", times), ("the present ones", None)):
                found = [(predictor if at is None else predictor.at(with_hosts(at)))(row) for row in other]
                if (one := score(name, found)) is not None:
                    shown.add_row(*_numbers(one), constants if at is not None else "")
    return shown


def host_values(times: Sequence[float]) -> list[float]:
    """The constants themselves: microseconds, and a share."""
    host = HOSTS["kernels"]
    each = [1e6 * getattr(host, name) for name in HOST_CONSTANTS[:-1]]
    return [value * by for value, by in zip((*each, OUTSIDE_SHARE["kernels"]), times, strict=True)]


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
    return *_numbers(one), constants


def _numbers(one: Score) -> tuple[str, ...]:
    numbers = (100 * one.median_error, 100 * one.nine_of_ten, 100 * one.worst)
    return one.name, str(one.count), *(f"{number:.1f} %" for number in numbers)


def main() -> None:
    """Fit on each half, try on the other, and print both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tables", nargs="*", type=Path, metavar="TABLE", help="default: those shipped")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th row")
    parser.add_argument("--hosts", action="store_true", help="constants of hosts of hand-written kernels instead")
    asked = parser.parse_args()
    known = [load(path) for path in asked.tables or shipped()]
    predictor = Predictor()
    rows = [(one.source.name, row) for one in known for row in one.rows][:: asked.every]
    rows = predicted(rows, predictor)
    if asked.hosts:
        Console().print(halves_of_hosts(rows, predictor))
        return
    halves = [[row for source, row in rows if half_of(source, row) == half] for half in (0, 1)]
    shown = Table("rows tried", "rows", "median error", "9 of 10", "worst", "products, attention")
    for half, (own, other) in enumerate((halves, halves[::-1])):
        constants = fit(predictor, own)
        shown.add_row(*_line(f"half {1 - half}, fitted on {half}", tried(predictor, other, constants), constants))
        shown.add_row(*_line(f"half {1 - half}, presets", tried(predictor, other, {}), {}))
    Console().print(shown)


if __name__ == "__main__":
    main()
