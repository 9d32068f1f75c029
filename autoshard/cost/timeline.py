"""When the pieces of a program run on a rank: its operators, its collectives, and what overlaps of them.

A collective that is not started apart holds the rank up until it is over. Each outermost level of links that groups
reach is a stream of its own. A loop or a branch is one piece, as long as its own timeline. Where the hardware has a
host that starts the pieces (`Device.host_seconds`), they wait for it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from autoshard.cost.instructions import Costs
from autoshard.partition.program import (
    Bundle,
    Collective,
    Instruction,
    ManualCollective,
    Nest,
    Program,
    Start,
    Wait,
    communicates,
    walk,
)
from costmodel.timeline import Task, Timeline, simulate

_COMPUTE = ""


def step_seconds(program: Program, costs: Costs) -> float:
    """The seconds of `timeline(program, costs)`."""
    return _seconds(program.instructions, costs, True)


def waiting_seconds(program: Program, costs: Costs) -> float:
    """Those of them in which the device has nothing to do because its host has started nothing."""
    if not costs.has_host:
        return 0.0
    return step_seconds(program, costs) - step_seconds(program, costs.without_host)


def timeline(program: Program, costs: Costs, overlap: bool = True) -> Timeline:
    """The timeline of one step of a program."""
    return _timeline(program.instructions, costs, overlap)


class Scheduled(NamedTuple):
    """An instruction of a program and when it runs, in seconds from the start of the step.

    `moment` is its place in the program, `exposed` the seconds of a communication during which nothing is computed.
    """

    instruction: Instruction
    moment: int
    start: float
    end: float
    exposed: float
    communicates: bool


def scheduled(program: Program, costs: Costs) -> Iterator[Scheduled]:
    """The pieces of `timeline(program, costs)`, each with its instruction; what takes no engine is left out."""
    moments, tasks = _tasks(program.instructions, costs, True)
    found = simulate(tasks)
    rows = list(zip(tasks, found.starts, found.ends, strict=True))
    busy = [(start, end) for task, start, end in rows if not task.communicates]
    begins = [start for start, _ in busy]
    for moment, (task, start, end) in zip(moments, rows, strict=True):
        exposed = end - start - _covered(busy, begins, start, end) if task.communicates else 0.0
        yield Scheduled(program.instructions[moment], moment, start, end, max(0.0, exposed), task.communicates)


def _covered(busy: Sequence[tuple[float, float]], begins: Sequence[float], start: float, end: float) -> float:
    """The seconds from start to end that spans cover; they are in order and do not overlap."""
    found = 0.0
    for begin, stop in busy[max(0, bisect_right(begins, start) - 1) :]:
        if begin >= end:
            break
        found += max(0.0, min(end, stop) - max(start, begin))
    return found


def _timeline(instructions: Sequence[Instruction], costs: Costs, overlap: bool) -> Timeline:
    return simulate(_tasks(instructions, costs, overlap)[1], overlap)


def _tasks(instructions: Sequence[Instruction], costs: Costs, overlap: bool) -> tuple[list[int], list[Task]]:
    """The pieces of a program that take time, and the place of each among the instructions."""
    moments: list[int] = []
    tasks: list[Task] = []
    started: dict[Start, int] = {}
    over: dict[str, int] = {}  # the last task of each engine that what follows waits for
    for moment, one in enumerate(instructions):
        if isinstance(one, Wait):
            place = started[one.start]
            over[tasks[place].stream] = max(place, over.get(tasks[place].stream, -1))
            continue
        if isinstance(one, Collective) and not one.step.communicates:
            continue
        talks = communicates(one) and not isinstance(one, Nest)
        seconds = _nested(one, costs, overlap) if isinstance(one, Nest) else costs.of(one).seconds
        stream = _stream(one, costs) if talks else _COMPUTE
        moments.append(moment)
        tasks.append(Task(seconds, talks, tuple(sorted(over.values())), _name(one), stream, costs.host(one)))
        if isinstance(one, Start):
            started[one] = len(tasks) - 1
        else:
            over[stream] = len(tasks) - 1
    return moments, tasks


def _seconds(instructions: Sequence[Instruction], costs: Costs, overlap: bool) -> float:
    """The seconds of a timeline, which need none where no collective is started apart and nothing waits for a host: one
    follows the other."""
    if costs.has_host or any(isinstance(one, Start) for one in walk(instructions)):
        return _timeline(instructions, costs, overlap).seconds
    return costs.total(instructions).seconds


def _nested(nest: Nest, costs: Costs, overlap: bool) -> float:
    """All bodies of a loop as often as it runs, or all branches: each counts as if it were always taken."""
    return sum(_seconds(body.instructions, costs, overlap) for body in nest.bodies) * nest.trips


def _stream(one: Instruction, costs: Costs) -> str:
    """The outermost links that a collective needs."""
    whole = one.of if isinstance(one, Start) else one
    first = whole.parts[0] if isinstance(whole, Bundle) else whole
    assert isinstance(first, Collective | ManualCollective)
    levels = costs.links.levels(first.step.groups)
    return levels[-1][1].name if levels else ""


def _name(one: Instruction) -> str:
    named = one.results or one.operands
    return named[0].name if named else ""
