"""How true predictions are: errors by source, and whether the plans of a table are ranked as they were measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from scipy.stats import rankdata

from autoshard.truth.predict import Prediction

LEAST_RANKED = 4
"""Rows from which on a rank correlation says something of a table."""
WELL_RANKED, OF_ROWS = 0.95, 7
"""Spearman's correlation of a table that is ranked well, and the rows from which on it is one in spite of a swap of
neighbours: one swap of n leaves 1 - 12 / (n^3 - n), 0.943 of 6 and 0.964 of 7."""
SMALL_REGRET = 0.03


@dataclass(frozen=True)
class Score:
    """Relative errors of the seconds of some predictions, and of their memory where it was measured."""

    name: str
    count: int
    median_error: float
    nine_of_ten: float
    """What nine of ten rows do not exceed."""
    worst: float
    bias: float
    """The median of predicted to measured."""
    memory_count: int
    memory_error: float


@dataclass(frozen=True)
class Ranking:
    """How the plans of one table are ranked: Spearman's correlation, and what the best predicted takes more than the
    best measured, relatively."""

    table: str
    count: int
    correlation: float
    regret: float


def score(name: str, found: Sequence[Prediction]) -> Score | None:
    """The score of predictions that are not refused; None if there are none."""
    ratios = [one.ratio for one in found if not one.refused]
    if not ratios:
        return None
    errors = sorted(abs(ratio - 1) for ratio in ratios)
    most = errors[min(len(errors) - 1, -(-9 * len(errors) // 10) - 1)]
    peaks = [
        abs(one.peak_bytes / 2**30 / one.row.measured.peak_gib - 1)
        for one in found
        if not one.refused and one.row.measured.peak_gib is not None
    ]
    memory = median(peaks) if peaks else 0.0
    return Score(name, len(ratios), median(errors), most, errors[-1], median(ratios), len(peaks), memory)


def scores(found: Sequence[Prediction], group: Callable[[Prediction], str]) -> tuple[Score, ...]:
    """Scores of the groups in order, then of all."""
    names = dict.fromkeys(group(one) for one in found)
    each = [score(name, [one for one in found if group(one) == name]) for name in names]
    return tuple(one for one in (*each, score("all", found)) if one is not None)


def rankings(found: Iterable[Prediction]) -> tuple[Ranking, ...]:
    """Of each table with enough rows that differ in their plan, how these are ranked."""
    tables: dict[str, list[Prediction]] = {}
    for one in found:
        if not one.refused:
            tables.setdefault(one.row.table, []).append(one)
    return tuple(_ranking(name, rows) for name, rows in tables.items() if len(rows) >= LEAST_RANKED)


def _ranking(name: str, rows: Sequence[Prediction]) -> Ranking:
    measured = [one.row.measured.seconds for one in rows]
    ranks = rankdata(measured), rankdata([one.seconds for one in rows])
    correlation = np.corrcoef(*ranks)[0, 1]
    chosen = min(rows, key=lambda one: one.seconds)
    return Ranking(name, len(rows), float(correlation), chosen.row.measured.seconds / min(measured) - 1)


def ranks_told(found: Sequence[Ranking]) -> str:
    """In how many tables plans are ranked well, in words."""
    well = [one for one in found if one.correlation >= WELL_RANKED]
    large, large_well = (sum(one.count >= OF_ROWS for one in some) for some in (found, well))
    near = sum(one.regret <= SMALL_REGRET for one in found)
    return (
        f"Spearman is {WELL_RANKED} or more in {len(well)} of {len(found)} tables of {LEAST_RANKED} rows or more, in "
        f"{large_well} of {large} of {OF_ROWS} or more (of fewer rows one swap of neighbours is too much); "
        f"{median(one.correlation for one in found):.3f} in the median. The best predicted is within "
        f"{100 * SMALL_REGRET:g} % of the best measured in {near}."
    )


def fit_told(found: Iterable[Prediction]) -> str:
    """How many steps are predicted to take more memory than the devices have that they ran on, in words."""
    known = [one.peak_bytes / one.device_bytes for one in found if not one.refused and one.device_bytes]
    above = sorted(share for share in known if share > 1)
    most = f", by up to {100 * (above[-1] - 1):.0f} %" if above else ""
    return f"Of {len(known)} steps that ran, {len(above)} are predicted to need more memory than there is{most}."


def refusals(found: Iterable[Prediction]) -> Counter[str]:
    """Why rows have no prediction, and how many each."""
    return Counter(one.refused for one in found if one.refused)
