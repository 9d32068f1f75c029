"""A planned pipeline on its ranks: all groups in this process, or under MPI the one that this rank is of."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from autoshard.core.tensortype import TensorType
from autoshard.engines.session import from_first_rank
from autoshard.ir.graph import Value
from autoshard.pipeline.execute.engine import group_executors
from autoshard.pipeline.execute.group import BlockKey, GroupMeasurement, GroupRun
from autoshard.pipeline.planned.data import PipelineData
from autoshard.pipeline.stages.cut import graph_of
from autoshard.runtime.array import array_dtype
from autoshard.runtime.comm import Comm
from autoshard.runtime.interpret import Parts
from autoshard.runtime.local import LocalComm
from autoshard.runtime.mail import Letter, LocalMail, Mail
from autoshard.runtime.mpi import MpiComm
from autoshard.trace.evaluate import evaluate
from autoshard.util.errors import RuntimeSetupError, ScheduleError


@dataclass(frozen=True)
class Ran:
    """What a step has led to.

    Attributes:
        outputs: those of the step's graph, in order, whole, on every rank.
        seconds: of the step, from the first action of this process to the last; on rank 0 of the slowest rank.
        measured: for each group that is here what it has done.
        busy: seconds of the step for which each of all ranks computed, on rank 0; where all are in one process, for
            which the group computed that the rank is of.
    """

    outputs: list[np.ndarray]
    seconds: float
    measured: Mapping[int, GroupMeasurement]
    busy: tuple[float, ...]

    @property
    def sent(self) -> tuple[int, ...]:
        """Bytes that each group that is here has sent, for all micro batches and the update."""
        return tuple(one.sent for one in self.measured.values())

    @property
    def peaks(self) -> tuple[int, ...]:
        """The most bytes of values of micro batches that a rank of each group that is here has held."""
        return tuple(one.peak for one in self.measured.values())


class PipelineSession:
    """Runs the steps of a planned pipeline over `comm`.

    `engine` is what runs the programs: numpy, torch or xla; `device` what torch's ranks compute on. What stages send
    each other goes over `comm` whatever the engine.

    Raises:
        UnknownNameError: there is no such engine, or device.
        RuntimeSetupError: the pipeline is for another number of ranks, or what the engine needs is not there.
        PlanError: the engine lacks an operator.
    """

    def __init__(self, planned: PipelineData, comm: Comm, engine: str = "numpy", device: str = "auto") -> None:
        if comm.world != planned.devices:
            raise RuntimeSetupError(
                f"pipeline {planned.graph.name!r} is for {planned.devices} ranks, but {comm.world} run; start it with: "
                f"autoshard run -n {planned.devices} ..."
            )
        self.planned, self.comm = planned, comm
        self.last: Ran | None = None
        executors = group_executors(planned, comm, engine, device)
        if isinstance(comm, MpiComm):
            number = next(i for i, group in enumerate(planned.groups) if comm.rank in group.ranks)
            self.mail: Mail = comm.mail()
            own = comm.part(planned.groups[number].ranks)
            self.groups = [GroupRun(planned, number, own, self.mail, executors)]
        else:
            self.mail = LocalMail()
            self.groups = [
                GroupRun(planned, i, LocalComm(one.mesh.devices), self.mail, executors)
                for i, one in enumerate(planned.groups)
            ]

    def run(self, inputs: Sequence[np.ndarray], seed: int | None = None) -> Ran:
        """Do a step.

        Args:
            inputs: an array per input of the step's graph, whole; under MPI rank 0's count.
            seed: where all ranks are here, by what of the groups that can go on the next is drawn; None: in turn.
        """
        arrays = self.arrays(dict(zip(self.planned.graph.inputs, inputs, strict=True)))
        seconds = self.play(arrays, seed=seed)
        outputs = [self.result(value, arrays) for value in self.planned.whole.outputs]
        measured = {one.number: one.state.measured for one in self.groups if one.state is not None}
        if isinstance(self.comm, MpiComm):
            (own,) = measured.values()
            found = self.comm.collect([np.array([own.busy, seconds])]) or []
            seconds = max((float(one[1]) for one in found), default=seconds)
            busy = tuple(float(one[0]) for one in found)
        else:
            busy = self._busy(measured)
        self.last = Ran(outputs, seconds, measured, busy)
        return self.last

    def play(
        self,
        arrays: Mapping[Value, np.ndarray],
        blocks: Mapping[int, dict[BlockKey, Parts]] | None = None,
        seed: int | None = None,
    ) -> float:
        """Let all groups that are here do their actions; the seconds that this took.

        Args:
            arrays: what `arrays` gave.
            blocks: by group inputs in the blocks that its programs take; used up.
        """
        given = blocks or {}
        runs = [one.run(arrays, given.get(one.number)) for one in self.groups]
        self.comm.barrier()
        begun = perf_counter()
        if isinstance(self.comm, MpiComm):
            for _ in runs[0]:
                pass  # the letters wait themselves when they are taken
        else:
            _play(runs, random.Random(seed) if seed is not None else None)
        self.mail.finish()
        return perf_counter() - begun

    def _busy(self, measured: Mapping[int, GroupMeasurement]) -> tuple[float, ...]:
        of_rank = {rank: measured[i].busy for i, group in enumerate(self.planned.groups) for rank in group.ranks}
        return tuple(of_rank[rank] for rank in range(self.comm.world))

    def arrays(self, given: Mapping[Value, np.ndarray]) -> dict[Value, np.ndarray]:
        """Whole inputs of the step, of which under MPI rank 0's count, and what follows from data alone."""
        part = graph_of(self.planned.graph.name, self.planned.whole.from_data)
        found = {
            value: from_first_rank(self.comm, np.asarray(array, array_dtype(value.type.dtype)))
            for value, array in given.items()
        }
        if part.nodes:
            found.update(zip(part.outputs, evaluate(part, [found[value] for value in part.inputs]), strict=True))
        return found

    def result(self, value: Value, arrays: Mapping[Value, np.ndarray]) -> np.ndarray:
        """What the last step made, whole, on every rank: one of `planned.whole.outputs`; all ranks call it together."""
        if value in arrays:
            return arrays[value]
        stage = min(self.planned.whole.makers[value])
        number = self.planned.schedule.ranks_of_stages[stage]
        group = next((one for one in self.groups if one.number == number), None)
        array = None if group is None else group.result(value)
        return self.from_group(number, array, self.planned.result_type(value))

    def from_group(self, number: int, array: np.ndarray | None, of: TensorType) -> np.ndarray:
        """On every rank the array that a group has whole; all ranks call it together."""
        if not isinstance(self.comm, MpiComm):
            assert array is not None
            return array
        root = self.planned.groups[number].ranks[0]
        own = np.asarray(array, order="C") if self.comm.rank == root else None
        return self.comm.broadcast(own, of.shape, array_dtype(of.dtype), root)[0]


def _play(runs: Sequence[Iterator[list[Letter]]], draw: random.Random | None) -> None:
    """All groups in turn, each as far as it comes.

    Raises:
        ScheduleError: all of them wait.
    """
    waiting: dict[int, list[Letter]] = {i: [] for i in range(len(runs))}
    while waiting:
        able = [i for i, letters in waiting.items() if all(one.is_there() for one in letters)]
        if not able:
            raise ScheduleError(f"the schedule deadlocks: groups {', '.join(map(str, waiting))} wait for each other")
        i = draw.choice(able) if draw else able[0]
        letters = next(runs[i], None)
        if letters is None:
            del waiting[i]
        else:
            waiting[i] = letters
