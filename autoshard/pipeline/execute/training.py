"""StagedSession: a planned pipeline on its ranks, with the parameters in the blocks that the last step left.

It is to `PlannedPipeline` what `engines.session.Session` is to `Planned`. Each group keeps the parameters that its
stages read. One that several groups read (a tied table) goes from the group that updates it to the others after each
step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from autoshard.engines.session import from_first_rank
from autoshard.ir.graph import DATA, Value
from autoshard.layout.layout import Layout
from autoshard.partition.program import Register
from autoshard.pipeline.execute.group import BlockKey, GroupRun, block_key
from autoshard.pipeline.execute.session import PipelineSession
from autoshard.pipeline.planned.data import PipelineData
from autoshard.pipeline.stages.whole import runs_per_micro_batch
from autoshard.runtime.array import array_dtype, cut, join
from autoshard.runtime.checkpoint import LocalBlocks, Placed
from autoshard.runtime.checkpoint.agree import together
from autoshard.runtime.comm import Comm
from autoshard.runtime.interpret import Parts
from autoshard.runtime.stored import Stored
from autoshard.trace.parameter import Parameter
from autoshard.util.errors import RuntimeSetupError

P = TypeVar("P", bound=PipelineData)


@dataclass(frozen=True)
class Reading:
    """A group that reads a parameter, and the register in which it does."""

    group: int
    register: Register


class StagedSession(Generic[P]):
    """Runs the steps of a pipeline over `comm`, feeding back what each updates.

    `load` cuts the parameters' present values into blocks, `step` and `call` run the stages, `store` puts the updated
    parameters together again. Under MPI all ranks call each of them together. `steps` is what runs them, where it is
    there already.
    """

    def __init__(self, planned: P, comm: Comm, steps: PipelineSession | None = None) -> None:
        self.planned, self.traced, self.comm = planned, planned.traced, comm
        self.steps = steps or PipelineSession(planned, comm)
        graph = planned.graph
        known = {value: self.traced.parameters.get(value) for value in self.traced.graph.inputs}
        pairs = zip(graph.inputs, known.values(), strict=True)
        self._parameters: dict[Value, Parameter] = {value: one for value, one in pairs if one is not None}
        self._data = tuple(value for value, role in zip(graph.inputs, graph.roles, strict=True) if role == DATA)
        self._updated = {graph.inputs[into]: planned.whole.outputs[out] for out, into in graph.updates.items()}
        self._readings = readings(planned, self._parameters)
        rows = {whole for whole, _ in planned.whole.pipeline.step.body.slices.values()}
        self._everywhere = [one for one in self._parameters if one in rows or not self._readings[one]]
        self._runs = {one.number: one for one in self.steps.groups}
        self._held: dict[int, dict[BlockKey, Parts]] = {number: {} for number in self._runs}
        self._whole: dict[Value, np.ndarray] = {}
        self._stepped = False

    @property
    def reading(self) -> Comm:
        """The ranks of a group that is here: data is divided between those of each group alike."""
        return self.steps.groups[0].comm

    # -- parameters

    def load(self) -> None:
        """Take the parameters' values; under MPI rank 0's, for others may have drawn other random numbers."""
        self.drop()
        stored = {}
        for value, parameter in self._parameters.items():
            if isinstance(parameter.pending, Stored) and value not in self._everywhere:
                stored[value] = parameter.pending
                continue
            kind = array_dtype(value.type.dtype)
            self._give(value, from_first_rank(self.comm, np.asarray(parameter.asnumpy(), kind)))
        together(self.comm, "cannot load parameters", lambda: self._read(stored))

    def _read(self, stored: Mapping[Value, Stored]) -> None:
        """Parameters of a checkpoint, of which a rank reads no more than its blocks."""
        for value, one in stored.items():
            for run, register in self._here(value):
                placed = Placed(register.true, register.layout, register.whole.shape)
                self._held[run.number][block_key(value, register)] = one.reader.blocks(one.name, placed, run.comm)

    def _give(self, value: Value, array: np.ndarray) -> None:
        """Cut a whole array for all groups that read it and are here."""
        if value in self._everywhere:
            self._whole[value] = array
        for run, register in self._here(value):
            parts = cut(array, register.layout, run.comm.ranks, register.whole.shape)
            self._held[run.number][block_key(value, register)] = parts

    def _here(self, value: Value) -> Iterator[tuple[GroupRun, Register]]:
        for one in self._readings[value]:
            if one.group in self._runs:
                yield self._runs[one.group], one.register

    def drop(self) -> None:
        """Forget the parameters' blocks; what steps updated since `load` and did not `store` is lost."""
        self._held, self._whole, self._stepped = {number: {} for number in self._runs}, {}, False

    def store(self) -> None:
        """Write what the steps since `load` updated to the parameters, whole, on every rank."""
        if not self._stepped:
            return
        for value, parameter in self._parameters.items():
            # Cells may point to the checkpoint that they were loaded from, which may go.
            if value in self._updated or isinstance(parameter.pending, Stored):
                parameter.set_data(self._joined(value))
        self._stepped = False

    def _joined(self, value: Value) -> np.ndarray:
        if value in self._everywhere:
            return self._whole[value]
        home = self._readings[value][0]
        array = None
        if home.group in self._runs:
            comm, register, parts = self._runs[home.group].comm, home.register, self._blocks(value, home)
            array = join(parts, register.layout, register.true.shape, comm, register.whole.shape)
        return self.steps.from_group(home.group, array, value.type)

    def _blocks(self, value: Value, reading: Reading) -> Parts:
        parts = self._held[reading.group].get(block_key(value, reading.register))
        if parts is None:
            raise RuntimeSetupError(
                f"{self.planned.graph.name!r} has no values of {value.name}: they were never loaded, or a run that "
                "failed has used them up; call load() first"
            )
        return parts

    def blocks(self) -> Iterator[tuple[Parameter, LocalBlocks]]:
        """The parameters as they stand now, in the blocks of the group that has them; others have none of these."""
        for value, parameter in self._parameters.items():
            if not self._readings[value]:
                yield parameter, self._unread(value)
                continue
            home = self._readings[value][0]
            register, ranks = home.register, self.planned.groups[home.group].ranks
            parts = self._blocks(value, home) if home.group in self._runs else []
            yield parameter, LocalBlocks(parts, Placed(register.true, register.layout, register.whole.shape, ranks))

    def _unread(self, value: Value) -> LocalBlocks:
        """A parameter that no stage reads in blocks: the first group has it whole."""
        group = self.planned.groups[0]
        count = len(self._runs[0].comm.ranks) if 0 in self._runs else 0
        placed = Placed(value.type, Layout.replicated(group.mesh, value.type.rank), None, group.ranks)
        return LocalBlocks([self._whole[value]] * count, placed)

    # -- steps

    def step(self, data: Sequence[np.ndarray]) -> float:
        """One step on whole arrays, and the loss that it leaves, the first output: the mean over its elements."""
        arrays = self._run(data)
        loss = self._result(0, arrays)
        return float(np.mean(loss, dtype=np.float64)) if loss.ndim else float(loss)

    def results(self, data: Sequence[np.ndarray]) -> Any:
        """One step on whole arrays, and what the model returns, whole, on every rank."""
        arrays = self._run(data)
        updates = self.planned.graph.updates
        count = len(self.planned.graph.outputs)
        return self.traced.unpack([self._result(i, arrays) for i in range(count) if i not in updates])

    def call(self, *inputs: Any) -> Any:
        """Whole arrays in, what the model returns (in whole arrays) out; parameters keep what it updates."""
        given = self.traced.inputs(*inputs)
        roles = self.planned.graph.roles
        self.load()
        found = self.results([one for one, role in zip(given, roles, strict=True) if role == DATA])
        self.store()
        return found

    def _run(self, data: Sequence[np.ndarray]) -> dict[Value, np.ndarray]:
        """A step; what it updates is kept for the next. The whole arrays that it began with."""
        arrays = {**self.steps.arrays(dict(zip(self._data, data, strict=True))), **self._whole}
        self.steps.play(arrays, {number: self._taken(number) for number in self._runs})
        for value, made in self._updated.items():
            self._keep(value, made, arrays)
        self._stepped = bool(self._updated)
        return arrays

    def _taken(self, number: int) -> dict[BlockKey, Parts]:
        """The blocks of a group for a step, which gives up those that it replaces."""
        held, given = self._held[number], {}
        for value, readings_ in self._readings.items():
            for one in readings_:
                if one.group != number:
                    continue
                key = block_key(value, one.register)
                given[key] = self._blocks(value, one)
                if value in self._updated:
                    del held[key]
        return given

    def _keep(self, value: Value, made: Value, arrays: Mapping[Value, np.ndarray]) -> None:
        """A parameter's new values: in the blocks in which they were made, where these are all that is read."""
        if made in arrays or value in self._everywhere or not self._stays(value, made):
            self._give(value, self.steps.result(made, arrays))
            return
        for run, read in self._here(value):
            assert run.state is not None
            self._held[run.number][block_key(value, read)] = run.state.made[made][0]

    def _stays(self, value: Value, made: Value) -> bool:
        """Whether each group that reads a parameter makes its new values, and leaves them as it reads them."""
        left = registers_left(self.planned, made)
        return all(
            one.group in left and block_key(value, left[one.group]) == block_key(value, one.register)
            for one in self._readings[value]
        )

    def _result(self, i: int, arrays: Mapping[Value, np.ndarray]) -> np.ndarray:
        value = self.planned.whole.outputs[i]
        return self._joined(value) if value in self._parameters else self.steps.result(value, arrays)


def readings(planned: PipelineData, parameters: Iterable[Value]) -> dict[Value, tuple[Reading, ...]]:
    """Who reads each parameter, and in which register; first the group that updates it."""
    found: dict[Value, dict[tuple[int, BlockKey], Reading]] = {value: {} for value in parameters}
    for (stage, _), ready in planned.programs.pieces.items():
        group = planned.schedule.ranks_of_stages[stage]
        for value, register in zip(ready.inputs, ready.program.inputs, strict=True):
            if value in found:
                found[value].setdefault((group, block_key(value, register)), Reading(group, register))
    graph = planned.graph
    for out, into in graph.updates.items():
        value = graph.inputs[into]
        makers, read = registers_left(planned, planned.whole.outputs[out]), found.get(value, {})
        first = [key for key, one in read.items() if one.group in makers]
        found[value] = {key: read[key] for key in (*first, *read)}
    return {value: tuple(those.values()) for value, those in found.items()}


def registers_left(planned: PipelineData, value: Value) -> dict[int, Register]:
    """The groups that make a value once in a step, and the register in which each leaves it."""
    found: dict[int, Register] = {}
    torn: set[int] = set()
    for stage, piece in planned.whole.makers.get(value, {}).items():
        ready, group = planned.programs.pieces[stage, piece.kind], planned.schedule.ranks_of_stages[stage]
        last = max(i for i, one in enumerate(ready.outputs) if one is value)
        register = ready.program.outputs[last]
        known = found.setdefault(group, register)
        if runs_per_micro_batch(piece.kind) or block_key(value, known) != block_key(value, register):
            torn.add(group)
    return {group: register for group, register in found.items() if group not in torn}
