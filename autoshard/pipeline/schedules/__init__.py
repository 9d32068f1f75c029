"""Schedules of pipelines as data: made by name, read from a file, checked, simulated, printed.

>>> line = simulate(make_schedule("zb_h1", ranks=4, micro_batches=8), Durations.equal(4, 1, (1, 1)))
>>> line.makespan, period(line.schedule), peak_activations(line.schedule)
(27, 27, (4, 4, 4, 4))
"""

from typing import Any

from autoshard.pipeline.schedules.action import Action
from autoshard.pipeline.schedules.csv_text import csv_text, load_schedule, read_schedule, save_schedule
from autoshard.pipeline.schedules.memory import Activations, live_activations, peak_activations
from autoshard.pipeline.schedules.named import SCHEDULES, make_schedule, schedule_kind
from autoshard.pipeline.schedules.schedule import Schedule
from autoshard.pipeline.schedules.simulate import Durations, ScheduleTimeline, period, simulate
from autoshard.pipeline.schedules.transfers import with_transfers
from autoshard.pipeline.schedules.validity import check
from autoshard.util.moved import former

__all__ = [
    "SCHEDULES",
    "Action",
    "Activations",
    "Durations",
    "Schedule",
    "ScheduleTimeline",
    "check",
    "csv_text",
    "live_activations",
    "load_schedule",
    "make_schedule",
    "peak_activations",
    "period",
    "read_schedule",
    "save_schedule",
    "schedule_kind",
    "simulate",
    "with_transfers",
]


def __getattr__(name: str) -> Any:
    return former(__name__, name)
