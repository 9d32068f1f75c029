"""How many activations each rank of a pipeline holds at its fullest moment, from its order of actions alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autoshard.pipeline.schedules.action import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Action
from autoshard.pipeline.schedules.schedule import Schedule
from autoshard.util.errors import ScheduleError


@dataclass(frozen=True)
class Activations:
    """What the forward of one micro batch leaves in each stage, in bytes or any other unit.

    Attributes:
        until_input_gradient: what the gradient of the input was the last to read.
        until_weight_gradient: what the gradient of the weights reads as well: inputs of products, and their gradients.
    """

    until_input_gradient: tuple[float, ...]
    until_weight_gradient: tuple[float, ...]

    @classmethod
    def equal(cls, stages: int, size: float = 1) -> Activations:
        """Of stages that are alike and keep all until the gradient of their weights is there."""
        return cls((0,) * stages, (size,) * stages)

    def __post_init__(self) -> None:
        if len(self.until_input_gradient) != len(self.until_weight_gradient):
            raise ScheduleError(
                f"activations of {len(self.until_input_gradient)} and {len(self.until_weight_gradient)} stages"
            )

    def change(self, action: Action) -> float:
        """By how much an action lets what its rank holds grow."""
        first, second = self.until_input_gradient[action.stage], self.until_weight_gradient[action.stage]
        by_kind = {FORWARD: first + second, BACKWARD: -first - second, INPUT_GRADIENT: -first, WEIGHT_GRADIENT: -second}
        return by_kind.get(action.kind, 0)


def live_activations(schedule: Schedule, rank: int, of: Activations | None = None) -> Iterator[float]:
    """What a rank holds after each of its actions."""
    of = of or Activations.equal(schedule.stages)
    if len(of.until_input_gradient) != schedule.stages:
        raise ScheduleError(f"activations of {len(of.until_input_gradient)} stages for a schedule of {schedule.stages}")
    held: float = 0
    for action in schedule.orders[rank]:
        held += of.change(action)
        yield held


def peak_activations(schedule: Schedule, of: Activations | None = None) -> Sequence[float]:
    """For each rank the most that it holds at once; by default counted in stages x micro batches.

    >>> from autoshard.pipeline.schedules import make_schedule
    >>> peak_activations(make_schedule("1f1b", ranks=4, micro_batches=8))
    (4, 3, 2, 1)
    """
    return tuple(max(live_activations(schedule, rank, of), default=0) for rank in range(schedule.ranks))
