"""A schedule as a picture (SVG): a lane per group of devices, a box per action from its begin to its end."""

from __future__ import annotations

from autoshard.pipeline.schedules.action import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Action
from autoshard.pipeline.schedules.simulate import ScheduleTimeline
from autoshard.util.errors import ScheduleError
from autoshard.util.svg import CHARACTER, SIZE, Svg

MOST_ACTIONS = 20_000
"""Actions of a picture at most: it is to be looked at."""
_WIDTH, _LANE, _GAP = 1000, 26, 6
_HUES = {FORWARD: 208, BACKWARD: 28, INPUT_GRADIENT: 28, WEIGHT_GRADIENT: 130}
_WORDS = {
    FORWARD: "forward",
    BACKWARD: "backward",
    INPUT_GRADIENT: "input gradient",
    WEIGHT_GRADIENT: "weight gradient",
}


def schedule_svg(line: ScheduleTimeline, title: str = "") -> str:
    """When each group of devices does what; a number is the micro batch, a darker box a later stage of the group.

    Args:
        title: above the picture; by default the schedule's name and what it idles.

    Raises:
        ScheduleError: more actions than a picture can show.

    >>> from autoshard.pipeline.schedules import make_schedule, simulate
    >>> schedule_svg(simulate(make_schedule("1f1b", ranks=2, micro_batches=3))).count("<title>")
    12
    """
    schedule = line.schedule
    count = sum(map(len, schedule.orders))
    if count > MOST_ACTIONS:
        raise ScheduleError(f"{schedule.name} has {count} actions; a picture shows {MOST_ACTIONS} at most")
    picture, y = Svg(), SIZE + 2.0
    picture.words(0, y, title or f"{schedule.name}: {100 * line.bubble_share:.1f} % of the groups' time is idle")
    y += 12
    labels = [f"group {rank}" for rank in range(schedule.ranks)]
    left = (max(map(len, labels)) + 1) * CHARACTER
    scale = _WIDTH / float(line.makespan or 1)
    for rank, order in enumerate(schedule.orders):
        picture.words(0, y + _LANE / 2 + 4, labels[rank], kind="faint")
        picture.line(left, y + _LANE, left + _WIDTH, y + _LANE, stroke="#d5d9de")
        chunks = sorted({action.stage for action in order})
        for action in order:
            if action.computes:
                _box(picture, line, action, chunks.index(action.stage), (left, y, scale))
        y += _LANE + _GAP
    _legend(picture, line, left, y + 4)
    return picture.text()


def _box(picture: Svg, line: ScheduleTimeline, action: Action, chunk: int, at: tuple[float, float, float]) -> None:
    left, y, scale = at
    start, end = float(line.starts[action]) * scale, float(line.ends[action]) * scale
    fill = f"hsl({_HUES[action.kind]}, 60%, {max(45, 76 - 12 * chunk)}%)"
    told = f"{_WORDS[action.kind]} of micro batch {action.micro} in stage {action.stage}"
    picture.box(left + start, y, max(end - start, 0.5), _LANE, fill=fill, stroke="#ffffff", title=told)
    number = str(action.micro)
    if len(number) * CHARACTER < end - start:
        picture.words(left + (start + end) / 2, y + _LANE / 2 + 4, number, anchor="middle", kind="ink")


def _legend(picture: Svg, line: ScheduleTimeline, x: float, y: float) -> None:
    kinds = {action.kind for order in line.schedule.orders for action in order if action.computes}
    for kind in (one for one in _WORDS if one in kinds):
        picture.box(x, y, SIZE, SIZE, fill=f"hsl({_HUES[kind]}, 60%, 76%)", stroke="#ffffff")
        picture.words(x + SIZE + 5, y + SIZE - 2, _WORDS[kind], kind="faint")
        x += SIZE + 20 + len(_WORDS[kind]) * CHARACTER
