"""A picture of a step in text: a row per rank, a column per unit of time.

>>> from autoshard.pipeline.schedules import make_schedule, simulate
>>> print(grid(simulate(make_schedule("1f1b", ranks=2, micro_batches=2))))
rank 0  F0 F1 .  .  B0 -- .  B1 --
rank 1  .  F0 B0 -- F1 B1 -- .  .
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

from autoshard.pipeline.schedules.action import Action
from autoshard.pipeline.schedules.simulate import ScheduleTimeline
from autoshard.util.errors import ScheduleError

MOST_COLUMNS = 512
"""Columns of a picture at most."""


def grid(line: ScheduleTimeline) -> str:
    """Draw when each rank does what: `F0` forward, `B0` backward, `I0` and `W0` its halves, `--` goes on, `.` waits.

    A column is the longest time that fits a whole number of times into all that happens. Where that needs more than
    MOST_COLUMNS, it is the shortest action, and begins and ends are rounded to columns, which a last line says. Where a
    rank has several stages, each action names its own, as in `4F0`.

    Raises:
        ScheduleError: the picture would be wider than MOST_COLUMNS, or nothing takes any time.
    """
    if not line.makespan:
        raise ScheduleError("all actions take 0 s, of which there is no picture")
    unit = _unit(line)
    rounded = line.makespan / unit > MOST_COLUMNS
    if rounded:
        unit = _shortest(line) or unit
    columns = _column(line.makespan, unit)
    if columns > MOST_COLUMNS:
        raise ScheduleError(f"a picture of {columns} columns is too wide: at most {MOST_COLUMNS}")
    rows = [_row(line, rank, unit, columns) for rank in range(line.schedule.ranks)]
    width = max(len(cell) for row in rows for cell in row)
    head = len(f"rank {line.schedule.ranks - 1}")
    lines = [
        f"{f'rank {rank}':<{head}}  {' '.join(cell.ljust(width) for cell in row)}".rstrip()
        for rank, row in enumerate(rows)
    ]
    note = [f"a column is {float(unit):g} s; times are rounded to columns"] if rounded else []
    return "\n".join([*lines, *note])


def _unit(line: ScheduleTimeline) -> Fraction:
    times = {Fraction(time).limit_denominator(10**6) for time in (*line.starts.values(), *line.ends.values())}
    whole = math.lcm(*(time.denominator for time in times))
    return Fraction(math.gcd(*(int(time * whole) for time in times)) or 1, whole)


def _shortest(line: ScheduleTimeline) -> Fraction:
    """The time of the shortest action that takes any, 0 if none does."""
    took = (line.ends[action] - line.starts[action] for order in line.orders for action in order if action.computes)
    return Fraction(min((one for one in took if one > 0), default=0))


def _column(time: Fraction | float, unit: Fraction) -> int:
    """The column that a time rounds to. Halves go up, so that no action of a unit or more vanishes."""
    return math.floor(Fraction(time) / unit + Fraction(1, 2))


def _row(line: ScheduleTimeline, rank: int, unit: Fraction, columns: int) -> list[str]:
    row = ["."] * columns
    for begin, end, label in _spans(line, rank, unit):
        row[begin:end] = [label] + ["-" * len(label)] * (end - begin - 1) if end > begin else []
    return row


def _spans(line: ScheduleTimeline, rank: int, unit: Fraction) -> Iterator[tuple[int, int, str]]:
    several = line.schedule.stages > line.schedule.ranks
    for action in line.orders[rank]:
        if action.computes:
            label = str(action) if several else _short(action)
            yield _column(line.starts[action], unit), _column(line.ends[action], unit), label


def _short(action: Action) -> str:
    return f"{action.kind}{action.micro}"
