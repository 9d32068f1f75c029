"""What choices are expected to take: their schedules simulated with what blocks take on one device, shared by the
devices of their groups, times what groups of as many devices took more where they were planned.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from autoshard.pipeline.joint.space import BlockWork, StageChoice, shared_seconds
from autoshard.pipeline.planned.price import PipelinePrice
from autoshard.pipeline.schedules.schedule import Schedule
from autoshard.pipeline.schedules.simulate import Durations, simulate

Devices = tuple[int, int]
"""How many devices, and of which kind."""


class Slowdowns:
    """How many times longer groups of so many devices of a kind took for so many micro batches than if they shared all
    evenly."""

    def __init__(self) -> None:
        self._sums: defaultdict[Devices, dict[int, tuple[float, float]]] = defaultdict(dict)

    def learn(self, devices: Devices, micro_batches: int, took: float, shared: float) -> None:
        """Add what a group took."""
        before = self._sums[devices].get(micro_batches, (0.0, 0.0))
        self._sums[devices][micro_batches] = before[0] + took, before[1] + shared

    def of(self, devices: Devices, micro_batches: int) -> float:
        """That of groups of as many devices, with the next number of micro batches that is known; 1 where none is."""
        known = self._sums.get(devices)
        if not known:
            return 1.0
        took, shared = known[min(known, key=lambda one: abs(one - micro_batches))]
        return took / shared if shared else 1.0


class StageEstimates:
    """Expected seconds of choices.

    Args:
        work: what blocks take, by micro batches.
        orders: the schedules of a choice.
    """

    def __init__(self, work: Mapping[int, BlockWork], orders: Callable[[StageChoice], Sequence[Schedule]]) -> None:
        self.work, self.orders = work, orders
        self._of_micro, self._of_update = Slowdowns(), Slowdowns()

    def seconds(self, choice: StageChoice) -> float:
        """Seconds of a step by the fastest schedule."""
        stages, updates = self._stages(choice), self._updates(choice)
        devices = list(zip(choice.devices, choice.kind_of, strict=True))
        parts = [self._of_micro.of(devices[group], choice.micro_batches) for group in choice.places]
        times = [tuple(one * part for one, part in zip(kind, parts, strict=True)) for kind in stages]
        durations = Durations(times[0], times[1], times[2], 0.0, *self._transfers(choice))
        tails = [
            one * self._of_update.of(some, choice.micro_batches) for one, some in zip(updates, devices, strict=True)
        ]
        return min(_seconds(order, durations, tails) for order in self.orders(choice))

    def learn(self, choice: StageChoice, price: PipelinePrice) -> None:
        """Expect of groups of as many devices what those of a planned pipeline take."""
        devices = list(zip(choice.devices, choice.kind_of, strict=True))
        line, shared = price.durations, list(map(sum, zip(*self._stages(choice), strict=True)))
        took = map(sum, zip(line.forward, line.input_gradient, line.weight_gradient, strict=True))
        for group, one, least in zip(choice.places, took, shared, strict=True):
            self._of_micro.learn(devices[group], choice.micro_batches, float(one), least)
        for some, one, least in zip(devices, price.updates, self._updates(choice), strict=True):
            self._of_update.learn(some, choice.micro_batches, one, least)

    def _stages(self, choice: StageChoice) -> tuple[list[float], list[float], list[float]]:
        """Seconds of each stage forward, for gradients of its input and of its weights, shared evenly. The first one
        sends nothing back: all its backward pass is the gradient of weights."""
        work, edges = self.work[choice.micro_batches], choice.edges(len(self.work[choice.micro_batches].nbytes))
        found: tuple[list[float], list[float], list[float]] = [], [], []
        for (start, end), group in zip(pairwise(edges), choice.places, strict=True):
            own = work.on(choice.kind_of[group])
            whole = sum(own.whole[start:end])
            share = shared_seconds(own.whole[start:end], own.started[start:end], choice.devices[group])
            times = [sum(kind[start:end]) * share / whole if whole else 0.0 for kind in own.actions]
            if start == 0:
                times = [times[0], 0.0, times[1] + times[2]]
            for some, one in zip(found, times, strict=True):
                some.append(one)
        return found

    def _updates(self, choice: StageChoice) -> list[float]:
        """Seconds of each group's update, shared evenly."""
        work = self.work[choice.micro_batches]
        found = [0.0] * len(choice.devices)
        for (start, end), group in zip(pairwise(choice.edges(len(work.nbytes))), choice.places, strict=True):
            own = work.on(choice.kind_of[group])
            share = own.update[start:end], own.update_started[start:end], choice.devices[group]
            found[group] += shared_seconds(*share)
        return found

    def _transfers(self, choice: StageChoice) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Seconds of the messages of each stage to the next, and to the one before, if each device sends a part."""
        work, count = self.work[choice.micro_batches], len(choice.places)
        onward, back = [0.0] * count, [0.0] * count
        for stage, cut in enumerate(choice.cuts):
            parts = min(choice.devices[choice.places[one]] for one in (stage, stage + 1))
            onward[stage], back[stage + 1] = work.onward[cut - 1] / parts, work.back[cut - 1] / parts
        return tuple(onward), tuple(back)


def _seconds(order: Schedule, durations: Durations, tails: Sequence[float]) -> float:
    ends = simulate(order, durations).ends
    last = (max((float(ends[action]) for action in some), default=0.0) for some in order.orders)
    return max(end + tail for end, tail in zip(last, tails, strict=True))
