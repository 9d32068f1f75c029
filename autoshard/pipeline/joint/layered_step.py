"""A pipeline of equal groups and equal layers: layers dealt out to its stages, its step simulated, its memory."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from autoshard.layout.mesh import Mesh
from autoshard.pipeline.joint.layer_prices import LayerPrices, PartPrice
from autoshard.pipeline.schedules import make_schedule, schedule_kind
from autoshard.pipeline.schedules.memory import Activations, peak_activations
from autoshard.pipeline.schedules.schedule import Schedule
from autoshard.pipeline.schedules.simulate import Durations, simulate
from autoshard.util.errors import ScheduleError
from costmodel import format_bytes, format_seconds

NONE, FULL = "none", "full"
DATA_PARALLEL, ZERO1, ZERO3 = "data_parallel", "zero1", "zero3"
WARM = 2
"""Micro batches for each group that are simulated at most, and as many again as there are groups: from there on a
schedule goes on at one pace."""


@dataclass(frozen=True)
class LayeredChoice:
    """A pipeline of equal groups.

    Attributes:
        groups: how many there are, each of `data` x `tensor` devices.
        rows: of the batch in a micro batch of each replica.
        plan: the named plan of each stage.
        recompute: what layers make again, "none" or "full".
    """

    groups: int
    data: int
    tensor: int
    rows: int
    micro_batches: int
    plan: str
    recompute: str = NONE
    schedule: str = "1f1b"
    chunks: int = 1

    @property
    def mesh(self) -> Mesh:
        """That of a group."""
        return mesh_of(self.data, self.tensor)

    def __str__(self) -> str:
        again = ", layers made again" if self.recompute == FULL else ""
        chunks = f" of {self.chunks} chunks" if self.chunks > 1 else ""
        return (
            f"pp={self.groups} dp={self.data} tp={self.tensor}, {self.micro_batches} micro batches of {self.rows} a "
            f"replica, {self.plan}, {self.schedule}{chunks}{again}"
        )


def mesh_of(data: int, tensor: int) -> Mesh:
    """The mesh of a group; axes of one device are left out."""
    axes = [(name, size) for name, size in (("dp", data), ("tp", tensor)) if size > 1]
    return Mesh(axes or [("dp", 1)])


def plan_name(data_plan: str, tensor_plan: str, data: int, tensor: int) -> str:
    """The named plan of a group's mesh."""
    if data > 1 and tensor > 1:
        return f"{data_plan}(dp) + {tensor_plan}(tp)"
    return tensor_plan if tensor > 1 else data_plan if data > 1 else DATA_PARALLEL


@dataclass(frozen=True)
class LayeredPrice:
    """What a choice takes.

    Attributes:
        layers: of each stage.
        seconds: of a step.
        busy: seconds of each group's own work in the schedule.
        nbytes: of one device of each group.
    """

    choice: LayeredChoice
    layers: tuple[int, ...]
    seconds: float
    busy: tuple[float, ...]
    nbytes: tuple[float, ...]

    @property
    def idle(self) -> float:
        """The part of a step, from 0 to 1, for which groups wait or update, in the mean."""
        return 1 - sum(self.busy) / len(self.busy) / self.seconds

    def __str__(self) -> str:
        most = format_bytes(int(max(self.nbytes)))
        counts = f"{min(self.layers)} to {max(self.layers)}" if len(set(self.layers)) > 1 else f"{self.layers[0]}"
        return f"{format_seconds(self.seconds)}, {most}: {self.choice}; {counts} layers a stage"


@lru_cache(maxsize=1 << 12)
def dealt_to_ranks(parts: LayerPrices, layers: int, groups: int, last: int) -> tuple[int, ...]:
    """Layers of each group, one at least, so that the slowest is as fast as can be; logits lie on group `last`."""
    dealt, middle = [1] * groups, parts.stage(1, False, False).seconds
    load = [
        rank_part(parts, dealt, rank, groups, last).seconds if rank in (0, last) else middle for rank in range(groups)
    ]
    waiting = [(seconds + parts.layer.seconds, rank) for rank, seconds in enumerate(load)]
    heapq.heapify(waiting)
    for _ in range(layers - groups):
        seconds, rank = waiting[0]
        dealt[rank] += 1
        heapq.heapreplace(waiting, (seconds + parts.layer.seconds, rank))
    return tuple(dealt)


def rank_part(parts: LayerPrices, dealt: Sequence[int], rank: int, groups: int, last: int) -> PartPrice:
    """What a group of so many layers takes; logits lie on group `last`."""
    return parts.stage(dealt[rank], rank == 0, rank == last)


class LayeredStep:
    """A step of a choice: its stages, simulated.

    Args:
        spans: how many devices lie near each other, at each level.
    """

    def __init__(self, choice: LayeredChoice, parts: LayerPrices, layers: int, spans: Sequence[int]) -> None:
        self.choice, self.parts, self.spans = choice, parts, spans
        self.places = _places(choice)
        self.layers = self._dealt(layers)
        count = len(self.places)
        self.stages = [parts.stage(n, i == 0, i == count - 1) for i, n in enumerate(self.layers)]

    def _dealt(self, layers: int) -> tuple[int, ...]:
        """Layers of each stage: of a group's own as evenly as can be."""
        groups, chunks = self.choice.groups, self.choice.chunks
        most = [*dealt_to_ranks(self.parts, layers, groups, self.places[-1])]
        while any(short := [rank for rank in range(groups) if most[rank] < chunks]):
            most[short[0]] += 1  # each chunk has a layer
            most[max(range(groups), key=most.__getitem__)] -= 1
        seen = [0] * groups
        found = []
        for rank in self.places:
            i = seen[rank]
            found.append(most[rank] * (i + 1) // chunks - most[rank] * i // chunks)
            seen[rank] += 1
        return tuple(found)

    @cached_property
    def work(self) -> list[float]:
        """Seconds of each group's own work on a micro batch."""
        found = [0.0] * self.choice.groups
        for place, stage in zip(self.places, self.stages, strict=True):
            found[place] += stage.seconds
        return found

    def _once(self, name: str) -> list[float]:
        found = [0.0] * self.choice.groups
        for place, stage in zip(self.places, self.stages, strict=True):
            found[place] += getattr(stage, name)
        return found

    @property
    def _rare(self) -> list[float]:
        """Bytes that what is done once in a step takes besides: stages of a group do it in turn."""
        found = [0.0] * self.choice.groups
        for place, stage in zip(self.places, self.stages, strict=True):
            found[place] = max(found[place], stage.once)
        return found

    @cached_property
    def least(self) -> float:
        """Seconds at least: no group begins before its first stage is reached, and where a backward action is whole,
        those of the stages before follow its last one."""
        whole = self.choice.schedule in _WHOLE
        ahead = behind = 0.0
        seen: set[int] = set()
        most = 0.0
        updates = self._once("update")
        for place, stage in zip(self.places, self.stages, strict=True):
            if place not in seen:
                seen.add(place)
                own = self.choice.micro_batches * self.work[place]
                most = max(most, ahead + own + updates[place] + (behind if whole else 0.0))
            ahead += stage.forward
            behind += stage.input_gradient + stage.weight_gradient
        return most + max(self._once("before"))

    @property
    def least_bytes(self) -> float:
        """Bytes at least of the fullest device."""
        sizes = zip(self._once("states"), self._once("kept"), self._rare, strict=True)
        return max(own + max(kept + self.parts.transient, once) for own, kept, once in sizes)

    @cached_property
    def durations(self) -> Durations:
        """Seconds of all actions and messages."""
        onward, back = [0.0] * len(self.places), [0.0] * len(self.places)
        for i, (one, other) in enumerate(itertools.pairwise(self.places)):
            far = not self._near(one, other)
            onward[i], back[i + 1] = self.parts.onward[far], self.parts.back[far]
        forward, first, second = (
            tuple(getattr(stage, name) for stage in self.stages)
            for name in ("forward", "input_gradient", "weight_gradient")
        )
        return Durations(forward, first, second, 0.0, tuple(onward), tuple(back))

    def _near(self, one: int, other: int) -> bool:
        each = self.choice.data * self.choice.tensor
        return any(one * each // span == other * each // span for span in self.spans)

    @cached_property
    def price(self) -> LayeredPrice:
        """The step, simulated; of many micro batches as many as it takes until all groups go on at one pace."""
        choice, groups = self.choice, self.choice.groups
        count = choice.micro_batches
        few = count if count <= (WARM + 2) * groups else WARM * groups + count % groups
        ends, held = self._simulated(few)
        if few < count:
            later, more = self._simulated(few + groups)
            times = (count - few) / groups
            ends = [one + times * (other - one) for one, other in zip(ends, later, strict=True)]
            held = [one + times * (other - one) for one, other in zip(held, more, strict=True)]
        tails = zip(ends, self._once("update"), strict=True)
        seconds = max(self._once("before")) + max(end + update for end, update in tails)
        sizes = zip(self._once("states"), held, self._rare, strict=True)
        nbytes = tuple(own + max(most + self.parts.transient, once) for own, most, once in sizes)
        return LayeredPrice(choice, self.layers, seconds, tuple(count * one for one in self.work), nbytes)

    def _simulated(self, count: int) -> tuple[list[float], list[float]]:
        """When each group has ended, and the bytes of activations that it holds at most."""
        order = _schedule(self.choice.schedule, self.choice.groups, count, self.choice.chunks)
        line = simulate(order, self.durations)
        ends = [max(float(line.ends[action]) for action in some) for some in order.orders]
        kept = [(stage.kept, min(stage.for_weights, stage.kept)) for stage in self.stages]
        held = Activations(tuple(all_ - own for all_, own in kept), tuple(own for _, own in kept))
        return ends, [float(one) for one in peak_activations(order, held)]


_WHOLE = ("gpipe", "1f1b", "interleaved_1f1b", "looped_bfs")
"""Schedules in which the gradients of inputs and weights are one action."""


@lru_cache(maxsize=64)
def _schedule(name: str, groups: int, micro_batches: int, chunks: int) -> Schedule:
    return make_schedule(name, groups, micro_batches, chunks)


def schedule_exists(choice: LayeredChoice) -> bool:
    """Whether there is the schedule for so many groups, micro batches and chunks."""
    kind, groups, count = schedule_kind(choice.schedule), choice.groups, choice.micro_batches
    if kind.fixed and kind.chunks != choice.chunks or count < kind.fewest_per_rank * groups:
        return False
    return _exists(choice.schedule, groups, min(count, 2 * groups + count % groups), choice.chunks)


@lru_cache(maxsize=1 << 12)
def _exists(name: str, groups: int, micro_batches: int, chunks: int) -> bool:
    try:
        make_schedule(name, groups, micro_batches, chunks)
    except ScheduleError:
        return False
    return True


def _places(choice: LayeredChoice) -> tuple[int, ...]:
    """The group of each stage."""
    straight = tuple(range(choice.groups))
    if schedule_kind(choice.schedule).v_shaped:
        return (*straight, *reversed(straight))
    return straight * choice.chunks
