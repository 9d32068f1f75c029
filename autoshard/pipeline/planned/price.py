"""The price of a planned pipeline: the seconds of a step by simulation, and the memory of each group's ranks.

    step = what is done once before + the schedule with each stage's own times and transfers + the update,
           each group as soon as it can

The seconds of an action are those of its program, by the one price of programs (`cost/evaluate.py`); the bytes of
activations are those of the values on their routes, by the very order in which ranks take and let them go.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from autoshard.cost.evaluate import program_seconds
from autoshard.cost.program_memory import program_peak
from autoshard.ir.graph import Value
from autoshard.pipeline.planned.data import PipelineData
from autoshard.pipeline.planned.programs import Place, Programs, Ready, Route
from autoshard.pipeline.schedules.action import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Action
from autoshard.pipeline.schedules.simulate import Durations, ScheduleTimeline, simulate
from autoshard.pipeline.stages.whole import ONCE, UPDATE, runs_per_micro_batch, update_rounds
from autoshard.pipeline.transfers.price import ValueMessages
from costmodel import format_bytes


@dataclass(frozen=True)
class StageMemory:
    """Bytes of one rank of a group at its fullest.

    Attributes:
        states: parameters, states of the optimizer, and data.
        accumulators: gradients that are added up.
        activations: the most of values of micro batches at once.
        transient: what a program takes at most besides what goes in and stays; of those that run once in a step what
            goes beyond the room of activations, as these are gone by then.
        largest: the largest of all these, by name.
    """

    states: int
    accumulators: int
    activations: int
    transient: int
    largest: tuple[tuple[str, int], ...]

    @property
    def nbytes(self) -> int:
        """All of it."""
        return self.states + self.accumulators + self.activations + self.transient

    def told(self, group: int, stages: Sequence[int]) -> str:
        """What a device of a group of these stages holds, the largest by name."""
        named = [*self.largest, ("what its operators take while they run", self.transient)]
        largest = ", ".join(f"{name} {format_bytes(size)}" for name, size in named if size)
        runs = f"stage{'s' if len(stages) > 1 else ''} {', '.join(map(str, stages))}"
        return f"a device of group {group}, which runs {runs}, holds {format_bytes(self.nbytes)} ({largest})"


class Busy(NamedTuple):
    """What a group of devices does for a while: the pieces of an action of the schedule, or those that run once in a
    step, before the micro batches (`kind` is ONCE) or after them (UPDATE); seconds from the begin of the step."""

    group: int
    kind: str
    start: float
    end: float
    places: tuple[Place, ...]
    action: Action | None = None

    @property
    def label(self) -> str:
        """In a word: `2F0`, the forward of stage 2 for micro batch 0."""
        return once_label(self.kind) if self.action is None else str(self.action)


def once_label(kind: str) -> str:
    """What pieces of a kind that run once in a step are called."""
    return "once before" if kind == ONCE else "update"


@dataclass(frozen=True)
class PipelinePrice:
    """What a step of a planned pipeline takes."""

    planned: PipelineData

    @cached_property
    def durations(self) -> Durations:
        """Seconds of each stage's actions and of its messages, by the plan's hardware."""
        count = self.planned.stages
        forward, first, second = (
            tuple(self._seconds((stage, kind)) for stage in range(count))
            for kind in (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)
        )
        onward, back = self._transfers
        return Durations(forward, first, second, 0.0, onward, back)

    @cached_property
    def started(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Of the seconds of each stage those of starting operators: of a micro batch, and of the update."""
        found = [[0.0] * self.planned.stages for _ in range(2)]
        for (stage, kind), ready in self.planned.programs.pieces.items():
            if kind != ONCE:
                hardware = self.planned.stage_hardware[stage]
                device = replace(hardware.device, launch_seconds=0.0, host_seconds=0.0)
                other = program_seconds(ready.program, replace(hardware, device=device))
                found[not runs_per_micro_batch(kind)][stage] += self._seconds((stage, kind)) - other
        each, update = map(tuple, found)
        return each, update

    @cached_property
    def _transfers(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Seconds of what a micro batch sends on from each stage, and back; what skips a stage counts where it ends."""
        onward, back = [0.0] * self.planned.stages, [0.0] * self.planned.stages
        for route in self.crossing:
            if route.is_repeated and route.stage != route.source[0]:
                forward = route.source[1] == FORWARD
                by = onward if forward else back
                by[
                    route.stage - 1 if forward else route.stage + 1 if route.stage < route.source[0] else route.stage
                ] += self.moving(route)
        return tuple(onward), tuple(back)

    @property
    def crossing(self) -> Iterator[Route]:
        """The routes on which something is sent from rank to rank."""
        return (route for route in self.planned.programs.routes if not route.stays)

    def moving(self, route: Route) -> float:
        """Seconds of bringing a value from group to group."""
        itemsize = route.value.type.dtype.itemsize
        messages = ValueMessages(route.before, route.after, itemsize, route.spans, route.relayed)
        return messages.seconds(self.planned.hardware)

    def _seconds(self, place: Place) -> float:
        ready = self.planned.programs.pieces.get(place)
        return 0.0 if ready is None else program_seconds(ready.program, self.planned.stage_hardware[place[0]])

    @cached_property
    def timeline(self) -> ScheduleTimeline:
        """The schedule, simulated."""
        return simulate(self.planned.schedule, self.durations)

    @cached_property
    def before(self) -> tuple[float, ...]:
        """Seconds of what each group does once before the micro batches."""
        chunks = map(self.planned.schedule.chunks, range(self.planned.schedule.ranks))
        return tuple(sum(self._seconds((stage, ONCE)) for stage in stages) for stages in chunks)

    @cached_property
    def updates(self) -> tuple[float, ...]:
        """Seconds of the update of each group, with what it is sent for it."""
        found = [0.0] * self.planned.schedule.ranks
        groups = self.planned.schedule.ranks_of_stages
        for place in update_rounds(self.planned.programs.pieces):
            found[groups[place[0]]] += self._seconds(place)
        for route in self.crossing:
            if not route.is_repeated and route.source[1] != ONCE:
                found[groups[route.stage]] += self.moving(route)
        return tuple(found)

    @cached_property
    def busy(self) -> tuple[Busy, ...]:
        """What each group does when, group by group in order; without actions that have nothing to do."""
        return tuple(one for group in range(self.planned.schedule.ranks) for one in self._busy(group))

    def _busy(self, group: int) -> Iterator[Busy]:
        line, begin = self.timeline, max(self.before)
        once = [place for place, micro in self.planned.pieces_of(group) if micro is None]
        before, end = tuple(place for place in once if place[1] == ONCE), begin
        if self.before[group]:
            yield Busy(group, ONCE, 0.0, self.before[group], before)
        for action in line.orders[group]:
            if places := self.planned.programs.places(action):
                end = begin + float(line.ends[action])
                yield Busy(group, action.kind, begin + float(line.starts[action]), end, places, action)
        if self.updates[group]:
            yield Busy(group, UPDATE, end, end + self.updates[group], tuple(once[len(before) :]))

    @cached_property
    def held(self) -> tuple[tuple[tuple[float, int], ...], ...]:
        """For each group the bytes of activations of a device from the begin of each action on, and when that is."""
        return tuple(tuple(self._held(group)) for group in range(self.planned.schedule.ranks))

    def _held(self, group: int) -> Iterator[tuple[float, int]]:
        most: dict[Action, int] = {}
        for action, size, _ in live_activations(self.planned, group):
            most[action] = max(size, most.get(action, 0))
        for action, size in most.items():
            yield max(self.before) + float(self.timeline.starts[action]), size

    @cached_property
    def seconds(self) -> float:
        """Seconds of a step."""
        line = self.timeline
        ends = (max((line.ends[action] for action in order), default=0.0) for order in self.planned.schedule.orders)
        return max(self.before) + max(float(end) + tail for end, tail in zip(ends, self.updates, strict=True))

    @cached_property
    def bound(self) -> float:
        """Seconds that the micro batches take at least, in whatever order the groups do their actions.

        No group begins before its first stage has been reached, and each does all its work; and the first micro batch
        goes there and back.
        """
        line, schedule = self.durations, self.planned.schedule
        heads = [0.0]
        for stage in range(schedule.stages - 1):
            hop = 0.0 if self._is_near(stage) else float(line.forward_transfers[stage])
            heads.append(heads[-1] + float(line.forward[stage]) + hop)
        work = [
            float(sum(times)) for times in zip(line.forward, line.input_gradient, line.weight_gradient, strict=True)
        ]
        groups = [schedule.chunks(group) for group in range(schedule.ranks)]
        busy = (
            min(heads[one] for one in stages) + schedule.micro_batches * sum(work[one] for one in stages)
            for stages in groups
        )
        back = sum(0.0 if self._is_near(i) else float(line.backward_transfers[i + 1]) for i in range(len(heads) - 1))
        round_trip = heads[-1] + float(line.forward[-1]) + float(sum(line.input_gradient)) + back
        return max(*busy, round_trip + float(line.weight_gradient[0]))

    def _is_near(self, stage: int) -> bool:
        """Whether a stage and the next lie on one group."""
        places = self.planned.schedule.ranks_of_stages
        return places[stage] == places[stage + 1]

    @cached_property
    def idle(self) -> tuple[float, ...]:
        """The part of a step, from 0 to 1, for which the ranks of each group wait for other groups."""
        parts = zip(self.timeline.busy, self.before, self.updates, strict=True)
        return tuple(1 - (float(busy) + before + update) / self.seconds for busy, before, update in parts)

    # -- memory

    @cached_property
    def memory(self) -> tuple[StageMemory, ...]:
        """Of a rank of each group."""
        return tuple(map(self._memory, range(self.planned.schedule.ranks)))

    def fullness(self, limits: Sequence[int | None]) -> float:
        """How many times what a device of its group may need the fullest one needs."""
        return max(times_limit(one.nbytes, limit) for one, limit in zip(self.memory, limits, strict=True))

    def _memory(self, number: int) -> StageMemory:
        programs, stages = self.planned.programs, self.planned.schedule.chunks(number)
        pieces = [ready for place, ready in programs.pieces.items() if place[0] in stages]
        step = self.planned.whole.pipeline.step
        given: dict[tuple, tuple[str, int]] = {}
        sums: dict[Value, int] = {}
        transient = [0, 0]
        for ready in pieces:
            arriving = programs.arriving[ready.place]
            for value, register in zip(ready.inputs, ready.program.inputs, strict=True):
                if value not in arriving and value not in step.body.slices:
                    given[value, register.layout, register.whole.shape] = value.name, register.local.nbytes
            for value, register in zip(ready.outputs, ready.program.outputs, strict=True):
                if value in step.body.terms and runs_per_micro_batch(ready.piece.kind):
                    sums[value] = register.local.nbytes * max(1, 4 // value.type.dtype.itemsize)
            each = runs_per_micro_batch(ready.piece.kind)
            transient[each] = max(transient[each], transient_bytes(programs, ready))
        moments = live_activations(self.planned, number)
        _, live, held = max(moments, key=lambda one: one[1], default=(None, 0, Counter()))
        named = [*given.values(), *((f"the gradient {value.name}", size) for value, size in sums.items())]
        named += [(f"{count} x {name}", size * count) for (name, size), count in held.items()]
        largest = tuple(sorted(named, key=lambda one: -one[1])[:5])
        states = sum(size for _, size in given.values())
        once, each = transient
        return StageMemory(states, sum(sums.values()), live, max(0, each, once - live), largest)


def times_limit(nbytes: float, limit: int | None) -> float:
    """How many times the limit so many bytes are; 0 where there is none."""
    return 0.0 if limit is None else nbytes / limit if limit > 0 else math.inf


def transient_bytes(programs: Programs, ready: Ready) -> int:
    """Bytes that a piece takes at its fullest, without what goes in and what it leaves for others of its stage."""
    taken = sum(register.local.nbytes for register in ready.program.inputs)
    leaving = {programs.held_as(one) for one in programs.leaving[ready.place] if one.stays and one.is_repeated}
    return program_peak(ready.program) - taken - sum(size for _, size in leaving)


def live_activations(planned: PipelineData, number: int) -> Iterator[tuple[Action, int, Counter[tuple[str, int]]]]:
    """What a rank of a group holds of micro batches after each piece: the action, bytes, and how many values of each
    name and size.

    It is what `execute.group` holds, by the same order: a value from its making, or its arrival where it is needed, to
    its last use.
    """
    programs = planned.programs
    held: dict[tuple[int, int], tuple[str, object, int]] = {}
    left: Counter[tuple[int, int]] = Counter()

    def hold(route: Route, micro: int) -> None:
        held[route.number, micro] = route.value.name, *programs.held_as(route)
        left[route.number, micro] = len(route.readers)

    for action in planned.schedule.orders[number]:
        for place in programs.places(action):
            arriving = [route for route in programs.arriving[place].values() if route.is_repeated]
            for route in arriving:
                if (route.number, action.micro) not in held:
                    hold(route, action.micro)
            for route in programs.leaving[place]:
                if route.is_repeated and route.stays:
                    hold(route, action.micro)
            blocks = {(what, micro): size for (_, micro), (_, what, size) in held.items()}
            yield action, sum(blocks.values()), Counter((name, size) for name, _, size in held.values())
            for route in arriving:
                left[route.number, action.micro] -= 1
                if not left[route.number, action.micro]:
                    del held[route.number, action.micro]
