"""A step in stages: what programs of few layers take, dealt out to the stages of a pipeline, and simulated.

    step = parameters brought to their users + the schedule with each stage's own seconds and transfers
           + each group's reduction of gradients, as soon as it is done + tied weights + the update, all at one time

Layers are alike: a stage takes what each of its layers takes, the first one the embedding besides, the last one what
follows the layers. Devices of a stage are neighbours, stages lie side by side (Megatron-LM's order). All wait for each
other before the update: a step in mixed precision looks at all gradients first (their norm, or whether one overflows).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from autoshard.core.tensortype import TensorType, dtype
from autoshard.ir.graph import PARAMETER, Graph
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh
from autoshard.partition.program import Compute, Instruction
from autoshard.pipeline.schedules.memory import peak_activations
from autoshard.pipeline.schedules.named import make_schedule
from autoshard.pipeline.schedules.schedule import Schedule
from autoshard.pipeline.schedules.simulate import Durations, simulate
from autoshard.pipeline.transfers.group import RankGroup
from autoshard.pipeline.transfers.price import cheapest_way
from autoshard.truth.rows import Row
from costmodel import Hardware, Task, grouped_seconds
from costmodel import simulate as run
from costmodel.host import HostTimes

EARLY, EACH, LATE, UPDATES = range(4)
ATTENTION, PRODUCTS, REST, LOSS, UPDATE = "attention", "products", "rest", "loss", "update"
SUMS, OUTSIDE, HOST, OVER, WAITING = "gradient sums", "outside", "host", "over ", "stages"
FIRST, LAYERS, LAST, TIED = "first", "layers", "last", "tied"
_LAYER = re.compile(r"(^|\.)layers\.\d+\.")
_OF_GRADIENTS = ("grad.", "update.")


Ledger = Mapping[str, float]
"""Seconds by part: the names above, and "over dp" and the like for what collectives take beside no operator; "stages"
is what waits for other stages and for their messages."""


class StepSlot(NamedTuple):
    """Where an instruction belongs: to bringing parameters, to each micro batch, to the reduction of gradients or to
    the update (`when`); to what comes before the layers, to these, to what follows, or to what both have (`home`); to
    the backward pass or not."""

    when: int
    home: str
    backward: bool


class ModelHomes:
    """The home of an instruction of a model's step, by the names of nodes and registers."""

    def __init__(self, graph: Graph) -> None:
        self.ahead: set[str] = set()
        for node in graph.nodes:
            if _LAYER.search(node.label):
                break
            self.ahead.add(node.label)
        parameters = [value for value in graph.inputs if graph.role_of[value] == PARAMETER]
        readers: dict[str, set[str]] = {value.name: set() for value in parameters}
        for node in graph.nodes:
            if not node.label.startswith(_OF_GRADIENTS):
                for value in node.uses:
                    if value.name in readers:
                        readers[value.name].add(self.of_name(node.label))
        self.tied = {name for name, homes in readers.items() if homes > {FIRST} or homes > {LAST}}
        self.ahead |= {name for name, homes in readers.items() if homes == {FIRST}}

    def of_name(self, name: str) -> str:
        """The home of what bears a name."""
        for prefix in _OF_GRADIENTS:
            name = name.removeprefix(prefix)
        if _LAYER.search(name):
            return LAYERS
        words = name.split(".")
        return FIRST if any(".".join(words[:count]) in self.ahead for count in range(len(words), 0, -1)) else LAST

    def of(self, one: Instruction) -> str:
        """The home of an instruction."""
        if isinstance(one, Compute):
            label = (one.composite or one.node).label
            tied = label.startswith("update.") and label.removeprefix("update.") in self.tied
            return TIED if tied else self.of_name(label)
        named = one.operands or one.results
        return self.of_name(named[0].name) if named else LAST

    def of_input(self, name: str) -> str:
        """The home of a parameter or a state."""
        return TIED if any(name == one or name.endswith(f".{one}") for one in self.tied) else self.of_name(name)


@dataclass(frozen=True)
class SlotWork:
    """Seconds by part of what belongs to one slot, and how many kernels and collectives it starts."""

    ledger: Ledger
    kernels: float
    collectives: float


@dataclass(frozen=True)
class StageShare:
    """What a stage does in one micro batch and once in a step.

    Attributes:
        dealt: by slot.
        adding: seconds of adding a micro batch's gradients to those before.
        states_bytes: parameters, states, and sums of gradients.
        activation_bytes: what a micro batch leaves for the backward pass.
    """

    dealt: Mapping[StepSlot, SlotWork]
    adding: float
    states_bytes: float
    activation_bytes: float


@dataclass(frozen=True)
class RowRates:
    """A row's host, what kernels move beside the graph to what its attention, loss and the rest besides products take,
    and how many ranks of a node share a collective of a micro batch."""

    host: HostTimes
    outside_share: float
    ranks: int = 1

    def with_outside(self, ledger: Ledger) -> Ledger:
        """A ledger with what is moved beside the graph."""
        return {**ledger, OUTSIDE: self.outside_share * sum(ledger.get(name, 0.0) for name in (ATTENTION, LOSS, REST))}

    def task(self, work: SlotWork, backward: bool) -> Task:
        """All of a slot, in equal pieces, for a device and its host."""
        each = self.host.backward if backward else self.host.forward
        host = work.kernels * each + work.collectives * self.host.collective_among(self.ranks)
        seconds = max(0.0, sum(self.with_outside(work.ledger).values()))
        return Task(seconds, host=max(0.0, host), pieces=max(1, round(work.kernels + work.collectives)))

    def done(self, forward: Sequence[SlotWork], backward: Sequence[SlotWork] = (), times: int = 1) -> StageWork:
        """Both passes one after the other, so many times; what the device waits for its host is told apart."""
        tasks = [self.task(one, False) for one in forward], [self.task(one, True) for one in backward]
        ledger: dict[str, float] = {}
        for one in (*forward, *backward):
            for name, seconds in self.with_outside(one.ledger).items():
                ledger[name] = ledger.get(name, 0.0) + times * seconds
        busy = times * sum(task.seconds for some in tasks for task in some)
        if self.host.waits:
            taken = times * sum(run(some).seconds for some in tasks)
        else:
            taken = run([*tasks[0], *tasks[1]] * times).seconds
        return StageWork({**ledger, HOST: max(0.0, taken - busy)})


@dataclass(frozen=True)
class StageWork:
    """Seconds by part, waiting for the host among them."""

    ledger: Ledger

    @property
    def seconds(self) -> float:
        """All of it."""
        return sum(self.ledger.values())


@dataclass(frozen=True)
class StageLoad:
    """The work of a stage: the two actions of a micro batch, and what is done once; its memory as `StageShare` says."""

    forward: StageWork
    backward: StageWork
    before: StageWork
    reduction: StageWork
    update: StageWork
    states_bytes: float
    activation_bytes: float

    def parts(self, micro_batches: int) -> dict[str, float]:
        """Seconds by part of all that the stage does in a step."""
        found: dict[str, float] = {}
        for name in ("forward", "backward", "before", "reduction", "update"):
            often = micro_batches if name in ("forward", "backward") else 1
            for part, seconds in getattr(self, name).ledger.items():
                found[part] = found.get(part, 0.0) + often * seconds
        return found


def load(row: Row, stage: StageShare, rates: RowRates) -> StageLoad:
    """The work of a row's stage: before each message and each wait for others all that its host started is done."""
    forward, backward, *once = in_order(row, stage)
    before, reduction, update = (rates.done(works) for works in once)
    slopes = StageWork({**rates.done((), backward).ledger, SUMS: stage.adding})
    ahead = rates.done(forward)
    return StageLoad(ahead, slopes, before, reduction, update, stage.states_bytes, stage.activation_bytes)


def in_order(row: Row, stage: StageShare) -> tuple[list[SlotWork], ...]:
    """What is done forward and backward for each micro batch; and once in a step, before, behind and at the update."""
    found: tuple[list[SlotWork], ...] = ([], [], [], [], [])
    often = row.reduced != "step"
    for slot in sorted(stage.dealt, key=_moment):
        repeated = {EARLY: 0 if often else 2, EACH: int(slot.backward), LATE: 1 if often else 3, UPDATES: 4}
        found[repeated[slot.when]].append(stage.dealt[slot])
    return found


def _moment(slot: StepSlot) -> tuple[int, int]:
    """Where it stands in a step: forward from the first part of the model to the last, backward the other way."""
    place = (FIRST, LAYERS, LAST, TIED).index(slot.home)
    return slot.when, -place if slot.backward else place - 4


@dataclass(frozen=True)
class StagedRow:
    """A row's step in stages, of these loads."""

    row: Row
    loads: tuple[StageLoad, ...]
    hardware: Hardware

    @cached_property
    def schedule(self) -> Schedule:
        """1F1B, over several chunks of layers in turn where the row has them."""
        return make_schedule("interleaved_1f1b", self.row.axes.pp, self.row.micro_batches, self.row.chunks)

    @cached_property
    def durations(self) -> Durations:
        """Seconds of all actions, and of the messages to the next stage and the one before."""
        axes, count = self.row.axes, len(self.loads)
        places, width = self.schedule.ranks_of_stages, axes.dp * axes.tp
        hops = [
            hop_seconds(self.row, places[i] * width, places[i + 1] * width, self.hardware) for i in range(count - 1)
        ]
        forward = tuple(load.forward.seconds for load in self.loads)
        backward = tuple(load.backward.seconds for load in self.loads)
        return Durations(forward, backward, (0.0,) * count, 0.0, (*hops, 0.0), (0.0, *hops))

    @cached_property
    def seconds(self) -> float:
        """Seconds of the step."""
        line = simulate(self.schedule, self.durations)
        ends = [max(float(line.ends[action]) for action in order) for order in line.orders]
        reduced = (end + self._once("reduction", rank) for rank, end in enumerate(ends))
        before, update = (max(self._once(name, rank) for rank in range(len(ends))) for name in ("before", "update"))
        tied = tied_seconds(self.row, self.hardware) if not self.row.model.is_llama else 0.0
        return before + max(reduced) + tied + update

    def _once(self, name: str, rank: int) -> float:
        """Seconds of what a group does once in a step."""
        return sum(getattr(self.loads[one], name).seconds for one in self.schedule.chunks(rank))

    @cached_property
    def parts(self) -> dict[str, float]:
        """Seconds by part of the group that works longest, and those for which it waits for others."""
        ranks = range(self.schedule.ranks)
        each = []
        for rank in ranks:
            found: dict[str, float] = {}
            for stage in self.schedule.chunks(rank):
                for part, seconds in self.loads[stage].parts(self.row.micro_batches).items():
                    found[part] = found.get(part, 0.0) + seconds
            each.append(found)
        most = max(each, key=lambda one: sum(one.values()))
        return {**most, WAITING: self.seconds - sum(most.values())}

    def peak_bytes(self, transient: float) -> float:
        """Bytes of the fullest device: states, what waits for the backward pass, and what one micro batch takes."""
        live = peak_activations(self.schedule)
        most = 0.0
        for rank, held in enumerate(live):
            loads = [self.loads[one] for one in self.schedule.chunks(rank)]
            waiting = max(load.activation_bytes for load in loads) * float(held)
            most = max(most, sum(load.states_bytes for load in loads) + waiting)
        return most + transient


def dealt_layers(layers: int, stages: int) -> tuple[int, ...]:
    """How many layers each stage has: as evenly as can be.

    >>> dealt_layers(30, 4)
    (7, 8, 7, 8)
    """
    ends = [layers * (i + 1) // stages for i in range(stages)]
    return tuple(end - start for start, end in zip((0, *ends), ends, strict=False))


def hop_seconds(row: Row, source: int, target: int, hardware: Hardware) -> float:
    """Seconds of bringing a micro batch's activations from the stage whose first rank is `source` to another."""
    shape = row.micro_batch, row.sequence, row.model.hidden
    split = row.plan.endswith("_sp")
    near = any(span is not None and source // span == target // span for span, _ in hardware.topology.levels)
    return _hop(shape, row.precision, row.axes.tp, split, row.axes.dp * row.axes.tp, near, hardware)


@lru_cache(maxsize=1 << 10)
def _hop(shape: tuple[int, ...], kind: str, ranks: int, split: bool, far: int, near: bool, hardware: Hardware) -> float:
    """Of one replica: all others send over links of their own."""
    mesh = Mesh(tp=ranks)
    layout = Layout(mesh, ((), (mesh.axis("tp"),) if split else (), ()))
    start = far
    if not near:
        start = max([far, *(span for span, _ in hardware.topology.levels if span is not None)])
    groups = RankGroup(mesh, tuple(range(ranks))), RankGroup(mesh, tuple(range(start, start + ranks)))
    return cheapest_way(TensorType(shape, dtype(kind)), layout, layout, groups, hardware).seconds


def tied_seconds(row: Row, hardware: Hardware) -> float:
    """Seconds of adding up the gradient of the embedding over first and last stage, which both have it."""
    axes = row.axes
    nbytes = row.model.vocabulary * row.model.hidden * dtype(row.precision).itemsize / axes.tp
    far, levels = axes.dp * axes.tp * (axes.pp - 1), hardware.topology.levels
    link = next((link for span, link in levels if span is not None and far < span), levels[-1][1])
    return float(grouped_seconds("all_reduce", nbytes, ((2, link),)))


def dealt_out(row: Row) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Of each stage how many layers it has, and the homes that it has besides."""
    count = row.axes.pp * row.chunks
    for number, layers in enumerate(dealt_layers(row.model.layers, count)):
        first, last = (FIRST,) * (number == 0), (LAST,) * (number == count - 1)
        yield layers, (*first, *last, *((TIED,) if first or last else ()))
