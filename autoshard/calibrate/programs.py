"""Training steps of small models as the engine numpy runs them: what whole steps take, and each operator in them.

What an operator takes depends on what is around it: whether its operands lie in caches, transposed, or in memory that a
result can be made in. So it is not timed by itself, but where it stands in a step, as the engine has written that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import numpy as np

from autoshard.api import plan
from autoshard.calibrate.models import training_steps
from autoshard.core.tensortype import TensorType
from autoshard.cost.instructions import Costs
from autoshard.engines.numpy_engine import NumpyRun
from autoshard.engines.session import Session
from autoshard.layout.mesh import Mesh
from autoshard.partition.program import Bundle, Compute, Program, timed
from autoshard.runtime.agree import label
from autoshard.runtime.array import cut
from autoshard.runtime.comm import Comm
from autoshard.runtime.local import LocalComm
from autoshard.search.planned import PlannedData
from autoshard.util.errors import PlanError
from costmodel import Hardware
from costmodel.measure import Agree, OperatorSample, ProgramSample, seconds_in_turn

SPLITS = ("data_parallel", "zero1", "megatron")
"""Plans by name that send and gather in different ways."""
_NOTED = 2
"""The run in which the engine writes a program: the first has loaded what there is to load."""
_QUARTER = 25.0
"""Of an operator's times the percentile that counts: others are longer by what else the machine does."""
_LEAST_RUNS = 12
_LEAST = 1e-9
"""Seconds, the clock's grain: what takes none, as a view does."""


@dataclass(frozen=True)
class PlannedStep:
    """A training step for some ranks; for one, each runs it by itself."""

    name: str
    planned: PlannedData
    ranks: int


def planned_steps(ranks: int, widths: Sequence[int]) -> tuple[PlannedStep, ...]:
    """The steps that so many ranks run: on each rank alone, and split in several ways."""
    return tuple(one for width in widths for one in _planned(ranks, width))


def _planned(ranks: int, width: int) -> Iterator[PlannedStep]:
    for step in training_steps(width, ranks):
        name = f"{step.traced.graph.name}, {width} wide"
        yield PlannedStep(name, plan(step, devices=1), 1)
        for how in SPLITS if ranks > 1 else ():
            with suppress(PlanError):  # convolutions have no pair of products for megatron, nor six ranks four heads
                yield PlannedStep(f"{name}, {how}", plan(step, devices=ranks, search=how), ranks)


def priced(programs: Sequence[PlannedStep], seconds: Sequence[float], hardware: Hardware) -> Iterator[ProgramSample]:
    """What the steps took beside what the hardware says of their operators and collectives."""
    costs = Costs(hardware)
    for one, took in zip(programs, seconds, strict=True):
        said = costs.total(one.planned.program.instructions)
        packed = sum(len(each.parts) for each, _ in timed(one.planned.program.instructions) if isinstance(each, Bundle))
        yield ProgramSample(one.name, said.computing, said.talking, said.collectives, packed, took)


def measure_steps(programs: Sequence[PlannedStep], comm: Comm, agree: Agree, budget: float, rounds: int) -> list[float]:
    """Seconds of each step, on all ranks at once."""
    runs = [_Run(one.planned, comm if one.ranks > 1 else LocalComm(1)) for one in programs]
    return seconds_in_turn(runs, agree, budget=budget, rounds=rounds)


def measure_operators(programs: Sequence[PlannedStep], comm: Comm, budget: float) -> Iterator[OperatorSample]:
    """Each operator of the steps that ranks run by themselves, on all ranks at once."""
    for one in programs:
        if one.ranks == 1:
            yield from _operators(one.planned, comm, budget)


def _operators(planned: PlannedData, comm: Comm, budget: float) -> Iterator[OperatorSample]:
    """Of operators that do the same work the mean: where their operands lie makes it more or less."""
    watched = _Watched()
    run, mesh = _Run(planned, watched), Mesh.flat(comm.world)
    comm.barrier()
    times = watched.timed(run, budget)
    own = [np.percentile(times, _QUARTER, axis=0) * 1e-9] * len(comm.ranks)
    seconds = comm.all_reduce(own, mesh.groups(mesh.all_axes))[0] / comm.world
    alike: dict[tuple[str, str, float, int], list[float]] = {}
    for place, operators in _places(planned.program, watched).items():
        for one in operators:
            alike.setdefault(Costs.measured(one), []).append(seconds[place] / len(operators))
    for work, found in alike.items():
        yield OperatorSample(*work, max(_LEAST, float(np.mean(found))))


def _places(program: Program, watched: _Watched) -> dict[int, list[Compute]]:
    """The operators that stand at each place; mostly one."""
    found: dict[int, list[Compute]] = {}
    for one in program.instructions:
        if isinstance(one, Compute) and one.results:
            found.setdefault(watched.place(label(one)), []).append(one)
    return found


class _Run:
    """A training step over and over, as a user's: what it updates is what the next one begins with."""

    def __init__(self, planned: PlannedData, comm: Comm) -> None:
        self.session = Session(planned, comm)
        self.session.executor = NumpyRun(planned.program, comm, noted=_NOTED)
        self.session.load()
        registers = self.session.data
        self.data = [cut(_array(one.whole), one.layout, comm.ranks, one.whole.shape) for one in registers]
        for _ in range(_NOTED + 1):
            self()

    def __call__(self) -> None:
        self.session.run(self.data)


def _array(of: TensorType) -> np.ndarray:
    """Values that every model takes: floats from 0.5 to 1.5, and numbers of the first eight rows."""
    random = np.random.default_rng(0)
    if of.dtype.numpy.kind in "iub":
        return random.integers(0, 8, of.shape).astype(of.dtype.numpy)
    return random.uniform(0.5, 1.5, of.shape).astype(of.dtype.numpy)


class _Watched(LocalComm):
    """One rank that sees when each operator begins."""

    def __init__(self) -> None:
        super().__init__(1)
        self._clock, self._numbers = _Clock(), dict[str, int]()

    def place(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers) + 1)

    @property
    def running(self) -> list[int]:
        return self._clock

    def at(self, place: int | None) -> None:
        self._clock[0] = place or 0

    def timed(self, run: Any, budget: float) -> np.ndarray:
        """Nanoseconds at each place (0 is nowhere) in each of some runs, which take about `budget` seconds."""
        end, rows = perf_counter_ns() + budget * 1e9, []
        while len(rows) < _LEAST_RUNS or perf_counter_ns() < end:
            self._clock.begun.clear()
            run()
            places, begun = np.array(self._clock.begun).T
            rows.append(np.bincount(places[:-1], np.diff(begun), len(self._numbers) + 1))
        return np.array(rows)


class _Clock(list):
    """Notes when a place is written to it."""

    def __init__(self) -> None:
        super().__init__([0])
        self.begun: list[tuple[int, int]] = []

    def __setitem__(self, _: Any, place: Any) -> None:
        self.begun.append((place, perf_counter_ns()))
