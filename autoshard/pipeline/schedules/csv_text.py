"""Schedules as comma-separated text, a row per rank: the files that `torch.distributed.pipelining` reads and writes.

Cells are actions (`2F0`), pairs that share a slot (`(0F3;7B1)OVERLAP_F_B`), or empty where a rank waits. torch loads
the text with `_PipelineScheduleRuntime._load_csv(path, format="compute_only")` if it has no sends and receives.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence

from autoshard.pipeline.schedules.action import Action
from autoshard.pipeline.schedules.schedule import Schedule
from autoshard.pipeline.schedules.validity import check
from autoshard.util.errors import ScheduleError
from autoshard.util.files import FilePath, read_text, write_atomically

_PAIR = re.compile(r"\(([^;()]*);([^;()]*)\)OVERLAP_F_B")
_NOT_HELD = re.compile(r"\d+(UNSHARD|RESHARD|REDUCE_GRAD)")


def csv_text(schedule: Schedule) -> str:
    """The text of a schedule; `read_schedule` of it is the schedule.

    >>> from autoshard.pipeline.schedules import make_schedule
    >>> csv_text(make_schedule("gpipe", ranks=2, micro_batches=1))
    '0F0,0B0\\n1F0,1B0\\n'
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for rank in range(schedule.ranks):
        writer.writerow(schedule.cells(rank))
    return text.getvalue()


def read_schedule(text: str, where: str = "the text", name: str = "") -> Schedule:
    """The schedule that text says, checked; stages lie on the ranks whose rows name them.

    Args:
        where: what the text is from, for messages.

    Raises:
        ScheduleError: a cell is no action, or the schedule cannot be run (see `check`).
    """
    rows = _rows(text, where)
    overlapped: set[Action] = set()
    orders = tuple(
        tuple(
            action
            for place, cell in enumerate(row)
            for action in _actions(cell.strip(), f"{where}, row {rank + 1}, cell {place + 1}", overlapped)
        )
        for rank, row in enumerate(rows)
    )
    places = _ranks_of_stages(orders, where)
    micro_batches = 1 + max(action.micro for order in orders for action in order)
    try:
        return check(Schedule(places, orders, micro_batches, frozenset(overlapped), name))
    except ScheduleError as error:
        raise ScheduleError(f"{where}: {error}") from None


def load_schedule(path: FilePath) -> Schedule:
    """The schedule that a file says, checked.

    Raises:
        ScheduleError: the file cannot be read, or see `read_schedule`.
    """
    return read_schedule(read_text(path, "schedule", ScheduleError), str(path), str(path))


def save_schedule(schedule: Schedule, path: FilePath) -> None:
    """Write a schedule as a file that `load_schedule` and torch read.

    Raises:
        ScheduleError: the file cannot be written.
    """
    write_atomically(path, csv_text(schedule), ScheduleError)


def _rows(text: str, where: str) -> list[list[str]]:
    try:
        rows = list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise ScheduleError(f"{where} is no comma-separated text: {error}") from None
    while rows and not any(cell.strip() for cell in rows[-1]):
        rows.pop()
    if not rows:
        raise ScheduleError(f"{where} has no rows; a schedule has one for each rank, of cells such as 0F0")
    return rows


def _actions(cell: str, where: str, overlapped: set[Action]) -> Sequence[Action]:
    if not cell:
        return ()
    if _NOT_HELD.fullmatch(cell):
        raise ScheduleError(
            f"{where}: {cell} gathers, drops or reduces parameters, which no schedule says: it follows from the plan; "
            f"write actions that compute, send and receive"
        )
    pair = _PAIR.fullmatch(cell)
    try:
        actions = tuple(Action.parse(part.strip()) for part in (pair.groups() if pair else (cell,)))
    except ScheduleError as error:
        raise ScheduleError(f"{where}: {error}") from None
    if pair:
        overlapped.add(actions[0])
    return actions


def _ranks_of_stages(orders: Sequence[Sequence[Action]], where: str) -> tuple[int, ...]:
    owners: dict[int, int] = {}
    for rank, order in enumerate(orders):
        if not order:
            raise ScheduleError(f"{where}: row {rank + 1} is empty: rank {rank} has nothing to do")
        for action in order:
            owners.setdefault(action.stage, rank)
    missing = next(stage for stage in range(len(owners) + 1) if stage not in owners)
    if missing < len(owners):
        raise ScheduleError(f"{where}: no rank has an action of stage {missing}; the last stage is {max(owners)}")
    return tuple(owners[stage] for stage in range(len(owners)))
