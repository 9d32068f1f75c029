"""Constants of devices fitted on one half of the steps that others measured, and tried on the other half.

    python -m benchmarks.truth_halves [TABLE ...] [--every N] [--by model] [--fit shares|hosts|all]

`shares`: two numbers are fitted for each kind of device, the shares of the peak that products and attention reach. The
time of a step is linear in their inverses, but for what collectives hide. `hosts`: four numbers of hosts, and what
hand-written kernels take longer, are fitted instead, to the rows of such kernels that are in no stages. `all`: the
first, and with these the second; tried on all rows of the other half that are in no stages, by source, with how many
tables of them are ranked well.

Halves are made by a hash: of a row's source and model (`--by model`), so that no model is in both, or of the row
itself (`--by row`), as where some rows of the same tables are kept back. `presets` and `present` say what the constants
that are shipped come to on that half.
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
from autoshard.truth.score import WELL_RANKED, Score, rankings, score
from autoshard.truth.stages import RowRates
from autoshard.truth.tables import load, shipped
from costmodel import Hardware, preset
from costmodel.host import HOSTS

COLUMNS = ("rows tried", "rows", "median error", "9 of 10", "worst")
CONSTANTS = ("compute_efficiency", "attention_efficiency")
KINDS = ("a100", "h100", "b200")
OUTLYING = 0.05
"""Relative error from which on a row counts less than by its square."""
Shares = tuple[float, float]


def kind_of(row: Row) -> str:
    return next(kind for kind in KINDS if row.hardware.startswith(kind))


def half_of(source: str, row: Row, by: str = "model") -> int:
    """0 or 1: the same for rows of one source and model, or for each row its own."""
    model = f"{source} {row.model.builder} {row.model.hidden} {row.model.layers}"
    name = model if by == "model" else f"{model} {row}"
    return hashlib.sha256(name.encode()).digest()[0] % 2


def with_shares(times: Mapping[str, Shares]) -> Callable[[str], Hardware]:
    """Presets whose shares of the peak are so many times their own, by the kind of device; of others as they are."""

    def found(name: str) -> Hardware:
        known = preset(name)
        by_kind = next((times[kind] for kind in times if name.startswith(kind)), (1.0, 1.0))
        shares = {one: min(1.0, getattr(known.device, one) * by) for one, by in zip(CONSTANTS, by_kind, strict=True)}
        return replace(known, device=replace(known.device, **shares))

    return found


NONE, STEP = (1.0, 1.0), 0.9
"""By what no constant is multiplied, and by what each constant is multiplied to see how seconds follow."""


class Lines:
    """Seconds of rows as a line in the inverses of both constants, which count in multiples of the presets'."""

    def __init__(self, predictor: Predictor, rows: Sequence[Row]) -> None:
        self.rows = rows
        at, first, second = (
            np.array([found(row).seconds for row in rows])
            for found in (
                predictor.on(with_shares(dict.fromkeys(KINDS, one))) for one in (NONE, (STEP, 1.0), (1.0, STEP))
            )
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
    return [*map(predictor.on(with_shares(known)), rows)]


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
        at = predictor.at(with_hosts(np.exp(logarithms).tolist()))
        return np.log([at(row).seconds for row in rows] / measured)

    start = np.zeros(len(HOST_CONSTANTS))
    found = least_squares(
        errors, start, bounds=(-2, 2), loss="soft_l1", f_scale=FAR_OUTLYING, diff_step=1e-3, xtol=1e-3
    )
    return tuple(np.exp(found.x).tolist())


class Halves:
    """Rows in two halves, what is fitted on each, and what that comes to on the other.

    Args:
        by: what decides which half a row is in, see `half_of`.
    """

    def __init__(self, rows: Sequence[tuple[str, Row]], predictor: Predictor, by: str) -> None:
        self.rows, self.predictor, self.by = rows, predictor, by
        self.told: list[str] = []

    def shares(self) -> Table:
        """Shares of the peak, whatever the source."""
        shown = Table(*COLUMNS, "products, attention")
        for half in (0, 1):
            other, known = [*map(_row, self._half(1 - half))], fit(self.predictor, [*map(_row, self._half(half))])
            shown.add_row(*_line(f"half {1 - half}, fitted on {half}", tried(self.predictor, other, known), known))
            shown.add_row(*_line(f"half {1 - half}, presets", tried(self.predictor, other, {}), {}))
        return shown

    def hosts(self) -> Table:
        """Hosts, by source; of the rows of hand-written kernels that are in no stages."""
        shown, hosted = (
            Table("rows tried", "rows", "median error", "9 of 10", "worst"),
            [*filter(_is_hosted, self.rows)],
        )
        for half in (0, 1):
            fitted = self._hosts_of(self.predictor, half)
            self._add(shown, half, hosted, fitted)
        return shown

    def all(self) -> Table:
        """Shares of the peak and then hosts, by source and of all rows in no stages."""
        shown, whole = Table(*COLUMNS), [*filter(_is_whole, self.rows)]
        for half in (0, 1):
            known = fit(self.predictor, [*map(_row, filter(_is_whole, self._half(half)))])
            self.told.append(f"fitted on {half}: products, attention {_told(known)}")
            self._add(shown, half, whole, self._hosts_of(self.predictor.on(with_shares(known)), half))
        return shown

    def _half(self, half: int) -> list[tuple[str, Row]]:
        return [(source, row) for source, row in self.rows if half_of(source, row, self.by) == half]

    def _hosts_of(self, predictor: Predictor, half: int) -> Predictor:
        """With what is fitted on a half."""
        times = fit_hosts(predictor, [*map(_row, filter(_is_hosted, self._half(half)))])
        values = zip(HOST_CONSTANTS, host_values(times), strict=True)
        self.told.append(f"fitted on {half}: " + ", ".join(f"{name} {value:.3g}" for name, value in values))
        return predictor.at(with_hosts(times))

    def _add(self, shown: Table, half: int, rows: Sequence[tuple[str, Row]], fitted: Predictor) -> None:
        """The lines of what was fitted on a half, tried on the other; by source, and of all."""
        others = [(source, row) for source, row in rows if half_of(source, row, self.by) != half]
        for name, predictor in ((f"fitted on {half}", fitted), ("present", self.predictor)):
            found = [(source, predictor(row)) for source, row in others]
            for source in (*dict.fromkeys(source for source, _ in rows), ""):
                some = [one for own, one in found if source in (own, "")]
                if (one := score(f"{source or 'all'}, half {1 - half}, {name}", some)) is not None:
                    shown.add_row(*_numbers(one))
            ranked = rankings([one for _, one in found])
            well = sum(one.correlation >= WELL_RANKED for one in ranked)
            self.told.append(f"half {1 - half}, {name}: {well} of {len(ranked)} tables are ranked by {WELL_RANKED}")


def _row(of: tuple[str, Row]) -> Row:
    return of[1]


def _is_whole(of: tuple[str, Row]) -> bool:
    return of[1].axes.pp == 1


def _is_hosted(of: tuple[str, Row]) -> bool:
    return of[1].fusion == "kernels" and _is_whole(of)


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
    return *_numbers(one), _told(known)


def _told(known: Mapping[str, Shares]) -> str:
    return "; ".join(
        f"{kind} {getattr(preset(kind).device, CONSTANTS[0]) * first:.3f} "
        f"{(preset(kind).device.attention_efficiency or math.nan) * second:.3f}"
        for kind, (first, second) in known.items()
    )


def _numbers(one: Score) -> tuple[str, ...]:
    numbers = (100 * one.median_error, 100 * one.nine_of_ten, 100 * one.worst)
    return one.name, str(one.count), *(f"{number:.1f} %" for number in numbers)


def main() -> None:
    """Fit on each half, try on the other, and print both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tables", nargs="*", type=Path, metavar="TABLE", help="default: those shipped")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th row")
    parser.add_argument("--by", choices=("model", "row"), default="model", help="what decides a row's half")
    parser.add_argument("--fit", choices=("shares", "hosts", "all"), default="shares", help="what is fitted")
    asked = parser.parse_args()
    known = [load(path) for path in asked.tables or shipped()]
    predictor = Predictor()
    rows = [(one.source.name, row) for one in known for row in one.rows][:: asked.every]
    halves = Halves(predicted(rows, predictor), predictor, asked.by)
    shown = {"shares": halves.shares, "hosts": halves.hosts, "all": halves.all}[asked.fit]()
    Console().print(shown, *halves.told, sep="\n")


if __name__ == "__main__":
    main()
