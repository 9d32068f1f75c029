"""When each action of a schedule begins and ends: the longest path through its dependences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import chain
from typing import NamedTuple, TypeAlias

from autoshard.pipeline.schedules.action import BACKWARD, FORWARD, INPUT_GRADIENT, SEND_FORWARD, WEIGHT_GRADIENT, Action
from autoshard.pipeline.schedules.dependences import waits
from autoshard.pipeline.schedules.schedule import Schedule
from autoshard.util.errors import ScheduleError

Seconds: TypeAlias = float | Fraction
"""Fractions where results shall be exact."""
# Steps after which ranks go on at one pace at the latest.
_STEPS = 64


@dataclass(frozen=True)
class Durations:
    """Seconds of the actions of each stage for one micro batch, and of a message from rank to rank.

    A whole backward takes the sum of both gradients. Where messages take different times, `forward_transfers` has those
    that each stage sends to the next, `backward_transfers` those to the one before; else all take `transfer`.
    """

    forward: tuple[Seconds, ...]
    input_gradient: tuple[Seconds, ...]
    weight_gradient: tuple[Seconds, ...]
    transfer: Seconds = 0.0
    forward_transfers: tuple[Seconds, ...] = ()
    backward_transfers: tuple[Seconds, ...] = ()

    def __post_init__(self) -> None:
        parts = [self.forward, self.input_gradient, self.weight_gradient]
        parts += [part for part in (self.forward_transfers, self.backward_transfers) if part]
        if len({len(part) for part in parts}) != 1:
            raise ScheduleError(f"durations are given for {', '.join(str(len(part)) for part in parts)} stages")
        negative = min((*chain.from_iterable(parts), self.transfer))
        if not negative >= 0:
            raise ScheduleError(f"a duration is {negative}; none is below zero")

    @classmethod
    def equal(
        cls, stages: int, forward: Seconds = 1, backward: tuple[Seconds, Seconds] = (1, 1), transfer: Seconds = 0
    ) -> Durations:
        """Of stages that are alike; `backward` is the seconds of the gradients of inputs and of weights."""
        return cls((forward,) * stages, (backward[0],) * stages, (backward[1],) * stages, transfer)

    def message(self, action: Action) -> Seconds:
        """Seconds of the message that brings what an action made to another rank."""
        each = self.forward_transfers if action.kind in (FORWARD, SEND_FORWARD) else self.backward_transfers
        return each[action.stage] if each else self.transfer

    def of(self, action: Action) -> Seconds:
        """Seconds for which an action occupies its rank; sends and receives do not."""
        stage = action.stage
        if action.kind == FORWARD:
            return self.forward[stage]
        backward = self.input_gradient[stage], self.weight_gradient[stage]
        by_kind = {BACKWARD: sum(backward), INPUT_GRADIENT: backward[0], WEIGHT_GRADIENT: backward[1]}
        return by_kind.get(action.kind, 0)


@dataclass(frozen=True)
class ScheduleTimeline:
    """A simulated step of these durations: `starts` and `ends` of all actions in seconds from the first one on.

    >>> from autoshard.pipeline.schedules import make_schedule
    >>> simulate(make_schedule("1f1b", ranks=4, micro_batches=8)).bubble_share
    0.2727272727272727
    """

    schedule: Schedule
    durations: Durations
    starts: Mapping[Action, Seconds]
    ends: Mapping[Action, Seconds]

    @cached_property
    def makespan(self) -> Seconds:
        """Seconds from the begin of the step until the last rank is done: what a step with a barrier takes."""
        return max(self.ends.values())

    @cached_property
    def busy(self) -> tuple[Seconds, ...]:
        """Seconds for which each rank computes."""
        return tuple(sum(self.ends[one] - self.starts[one] for one in order if one.computes) for order in self.orders)

    @property
    def orders(self) -> Sequence[Sequence[Action]]:
        """The actions of each rank."""
        return self.schedule.orders

    @property
    def idle(self) -> tuple[Seconds, ...]:
        """Seconds of the step for which each rank waits."""
        return tuple(self.makespan - busy for busy in self.busy)

    @property
    def bubble_share(self) -> float:
        """The part of all ranks' time in which they wait, from 0 to 1."""
        return float(1 - sum(self.busy) / (self.schedule.ranks * self.makespan)) if self.makespan else 0.0


def simulate(schedule: Schedule, durations: Durations | None = None) -> ScheduleTimeline:
    """The times of a step in which each action begins as soon as its rank and what it reads are there.

    Args:
        schedule: one that `check` accepts.
        durations: a second for each kind of action by default, transfers at once.

    Raises:
        ScheduleError: the durations are of another number of stages, or the schedule deadlocks.
    """
    durations = durations or Durations.equal(schedule.stages)
    order = _ordered(schedule)
    starts, ends = order.run(order.seconds(durations), [0] * schedule.ranks)
    pairs = (dict(zip(order.actions, one, strict=True)) for one in (starts, ends))
    return ScheduleTimeline(schedule, durations, *pairs)


def period(schedule: Schedule, durations: Durations | None = None) -> Seconds:
    """Seconds from step to step if a rank begins the next one when it has ended its own part, without a barrier.

    Papers on zero bubbles mean this: the last ranks of a step are still at work while the first ones begin the next.

    Raises:
        ScheduleError: as for `simulate`.
    """
    order = _ordered(schedule)
    seconds = order.seconds(durations or Durations.equal(schedule.stages))
    free: list[Seconds] = [0] * schedule.ranks
    for _ in range(_STEPS):
        begun, (_, ends) = free, order.run(seconds, free)
        free = [0] * schedule.ranks
        for rank, end in zip(order.ranks, ends, strict=True):
            free[rank] = max(free[rank], end)
        took = [end - begin for end, begin in zip(free, begun, strict=True)]
        if math.isclose(min(took), max(took), rel_tol=1e-12):
            break
    return max(took)


class _Seconds(NamedTuple):
    """Of all actions of an order: what each takes, and the message with what it makes."""

    actions: tuple[Seconds, ...]
    messages: tuple[Seconds, ...]


@dataclass(frozen=True, eq=False)
class _Order:
    """All actions of a schedule, each after those that it waits for.

    `waits` are, for each, the places of these, and whether a message brings what they made.
    """

    stages: int
    actions: tuple[Action, ...]
    ranks: tuple[int, ...]
    waits: tuple[tuple[tuple[int, bool], ...], ...]

    def seconds(self, durations: Durations) -> _Seconds:
        """What actions and messages take."""
        if len(durations.forward) != self.stages:
            raise ScheduleError(f"durations of {len(durations.forward)} stages for a schedule of {self.stages}")
        alike = {(kind, stage): Action(kind, stage, micro) for kind, stage, micro in self.actions}
        took = {key: (durations.of(action), durations.message(action)) for key, action in alike.items()}
        return _Seconds(*zip(*(took[kind, stage] for kind, stage, _ in self.actions), strict=True))

    def run(self, seconds: _Seconds, free: Sequence[Seconds]) -> tuple[list[Seconds], list[Seconds]]:
        """Begin and end of each action, if each rank begins no earlier than it is `free`."""
        starts: list[Seconds] = []
        ends: list[Seconds] = []
        messages = seconds.messages
        for rank, took, some in zip(self.ranks, seconds.actions, self.waits, strict=True):
            begin = free[rank]
            for before, crosses in some:
                ready = ends[before] + messages[before] if crosses else ends[before]
                begin = max(begin, ready)
            starts.append(begin)
            ends.append(begin + took)
        return starts, ends


@lru_cache(maxsize=256)
def _ordered(schedule: Schedule) -> _Order:
    waiting = waits(schedule)
    actions = _in_order(waiting)
    if len(actions) < len(waiting):
        raise ScheduleError("the schedule deadlocks; check() tells where")
    place = {action: i for i, action in enumerate(actions)}
    return _Order(
        schedule.stages,
        actions,
        tuple(map(schedule.rank_of, actions)),
        tuple(tuple((place[before], crosses) for before, crosses in waiting[action]) for action in actions),
    )


def _in_order(waiting: Mapping[Action, Sequence[tuple[Action, bool]]]) -> tuple[Action, ...]:
    """The actions, each after all that it waits for, as far as there is such an order."""
    left = {action: len(some) for action, some in waiting.items()}
    followers: dict[Action, list[Action]] = {action: [] for action in waiting}
    for action, some in waiting.items():
        for before, _ in some:
            followers[before].append(action)
    found = [action for action, count in left.items() if not count]
    for action in found:  # grows
        for after in followers[action]:
            left[after] -= 1
            if not left[after]:
                found.append(after)
    return tuple(found)
