"""Session: a planned model on its ranks, with the parameters in the blocks that the last step left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from autoshard.engines.executors import check_engine_device, executor_of
from autoshard.ir.graph import DATA
from autoshard.partition.program import Register
from autoshard.runtime.array import array_dtype, cut, cutter, join
from autoshard.runtime.checkpoint import LocalBlocks, Placed
from autoshard.runtime.comm import Comm
from autoshard.runtime.interpret import Parts
from autoshard.runtime.stored import Stored
from autoshard.search.planned import PlannedData
from autoshard.trace.parameter import Parameter
from autoshard.util.errors import RuntimeSetupError

P = TypeVar("P", bound=PlannedData)
S = TypeVar("S")


class Session(Generic[P]):
    """Runs a plan's program over `comm`, feeding back what each step updates.

    `load` cuts the parameters' present values into blocks, `step` and `call` run the program, `store` puts
    the updated parameters together again. Under MPI all ranks call each of them together. `engine` is what runs the
    program: numpy, torch or xla; `device` what torch's ranks compute on (`engines.placement.DEVICES`).
    """

    def __init__(self, planned: P, comm: Comm, engine: str = "numpy", device: str = "auto") -> None:
        self.planned, self.traced, self.comm = planned, planned.traced, comm
        self.executor = executor_of(planned.program, comm, engine, device)
        self.program = planned.program
        graph = planned.graph
        self._data = tuple(i for i, role in enumerate(graph.roles) if role == DATA)
        self._updates = dict(graph.updates)
        self._replaced = tuple(sorted({*graph.updates.values()}))
        self._parameters = {
            i: self.traced.parameters[value] for i, value in enumerate(graph.inputs) if value in self.traced.parameters
        }
        self._read = tuple(i for i in self._parameters if i not in self._replaced)
        self._held: dict[int, Parts] = {}
        self._stepped = False
        self.data: tuple[Register, ...] = tuple(self.program.inputs[i] for i in self._data)
        """The registers that data is fed to, in order."""
        self._cutters = tuple(cutter(one.layout, one.true.shape, comm.ranks, one.whole.shape) for one in self.data)
        self._loss_is_whole = _is_whole(self.program.outputs[0]) if self.program.outputs else False

    def load(self) -> None:
        """Take the parameters' values; under MPI rank 0's, for others may have drawn other random numbers."""
        self._held = {i: self._blocks(parameter, i) for i, parameter in self._parameters.items()}
        self._stepped = False

    def blocks(self) -> Iterator[tuple[Parameter, LocalBlocks]]:
        """The parameters as they stand now, in blocks."""
        for i, parameter in self._parameters.items():
            self._check_held(i)
            yield parameter, LocalBlocks(self._held[i], self._placed(i))

    def drop(self) -> None:
        """Forget the parameters' blocks; what steps updated since `load` and did not `store` is lost."""
        self._held, self._stepped = {}, False

    def store(self) -> None:
        """Write what the steps since `load` updated to the parameters, whole, on every rank."""
        if not self._stepped:
            return
        for i in sorted({*self._updates.values(), *self._unread()}):
            self._parameters[i].set_data(self._join(self._held[i], self.program.inputs[i]))
        self._stepped = False

    def _unread(self) -> Iterator[int]:
        """Parameters whose cells still point to the checkpoint that they were loaded from, which may go."""
        return (i for i, parameter in self._parameters.items() if isinstance(parameter.pending, Stored))

    def cut(self, arrays: Sequence[np.ndarray]) -> list[Parts]:
        """Whole arrays of data in the blocks that `run` and `step` take.

        Raises:
            RuntimeSetupError: not as many as the program takes, or of other shapes.
        """
        self._check_data(arrays)
        for array, register in zip(arrays, self.data, strict=True):
            if np.shape(array) != register.true.shape:
                raise RuntimeSetupError(
                    f"{self.program.name!r}: {register.name} is {register.true}, but got an array {np.shape(array)}"
                )
        return [cut_one(array) for cut_one, array in zip(self._cutters, arrays, strict=True)]

    def run(self, data: Sequence[Parts]) -> list[Parts]:
        """One run on blocks of the data; what it updates is kept for the next.

        Old values are let go as soon as nothing needs them: a run that fails leaves none.

        Raises:
            RuntimeSetupError: no values are loaded, or not as much data as the program takes.
        """
        self._check_data(data)
        held, inputs = self._held, [[]] * len(self.program.inputs)
        for i, parts in zip(self._data, data, strict=True):
            inputs[i] = parts
        try:
            for i in self._read:
                inputs[i] = held[i]
            for i in self._replaced:
                inputs[i] = held.pop(i)
        except KeyError as missing:
            self._check_held(missing.args[0])
        outputs = self.executor.consume(inputs)
        for out, into in self._updates.items():
            held[into] = outputs[out]
        self._stepped = bool(self._updates)
        return outputs

    def _check_data(self, given: Sequence[Any]) -> None:
        if len(given) != len(self.data):
            named = ", ".join(f"{one.name} {one.true}" for one in self.data) or "none"
            raise RuntimeSetupError(f"{self.program.name!r} takes data for {named}; {len(given)} were given")

    def _check_held(self, i: int) -> None:
        if i not in self._held:
            raise RuntimeSetupError(
                f"{self.program.name!r} has no values of {self.program.inputs[i].name}: they were never loaded, or a "
                "run that failed has used them up; call load() first"
            )

    def step(self, data: Sequence[Parts]) -> float:
        """`run`, and the loss that it leaves, the first output: the mean over its elements."""
        parts = self.run(data)[0]
        loss = parts[0] if self._loss_is_whole else self._join(parts, self.program.outputs[0])
        return float(np.mean(loss, dtype=np.float64)) if loss.ndim else float(loss)

    def results(self, data: Sequence[Parts]) -> Any:
        """`run`, and what the model returns, in whole arrays."""
        pairs = zip(self.run(data), self.program.outputs, strict=True)
        return self.traced.unpack([self._join(parts, register) for parts, register in pairs])

    def call(self, *inputs: Any) -> Any:
        """Whole arrays in, what the model returns (in whole arrays) out; parameters keep what it updates."""
        arrays = self.traced.inputs(*inputs)
        self.load()
        outputs = self.run([self._cut(arrays[i], i) for i in self._data])
        self.store()
        whole = [self._join(parts, register) for parts, register in zip(outputs, self.program.outputs, strict=True)]
        return self.traced.unpack(whole)

    def _blocks(self, parameter: Parameter, i: int) -> Parts:
        """A parameter's values in blocks; of one that lies in a checkpoint, no others are read."""
        if isinstance(parameter.pending, Stored):
            return parameter.pending.blocks(self._placed(i), self.comm)
        return self._cut(parameter.asnumpy(), i)

    def _placed(self, i: int) -> Placed:
        register = self.program.inputs[i]
        return Placed(register.true, register.layout, register.whole.shape)

    def _cut(self, array: np.ndarray, i: int) -> Parts:
        register = self.program.inputs[i]
        array = from_first_rank(self.comm, np.asarray(array, array_dtype(register.whole.dtype)))
        return cut(array, register.layout, self.comm.ranks, register.whole.shape)

    def _join(self, parts: Parts, register: Register) -> np.ndarray:
        return join(parts, register.layout, register.true.shape, self.comm, register.whole.shape)


def _is_whole(register: Register) -> bool:
    return register.layout.is_replicated and register.size is None


class SessionsByEngine(Generic[S]):
    """The sessions of a plan, each made when it is first asked for; the engine numpy has one, on CPUs.

    Args:
        make: from an engine and a device to a session.
    """

    def __init__(self, make: Callable[[str, str], S]) -> None:
        self._make = make
        self._known: dict[tuple[str, str], S] = {}

    def on(self, engine: str, device: str = "auto") -> S:
        """The session of an engine on a device.

        Raises:
            UnknownNameError: there is no such engine, or device.
            RuntimeSetupError: the engine computes on others, or what it needs is not there.
        """
        check_engine_device(engine, device)
        key = engine, "auto" if engine == "numpy" else device
        if key not in self._known:
            self._known[key] = self._make(*key)
        return self._known[key]


def from_first_rank(comm: Comm, array: np.ndarray) -> np.ndarray:
    """Rank 0's array on every rank, where ranks are processes of their own: theirs may differ by chance."""
    if len(comm.ranks) == comm.world:
        return array
    return comm.broadcast(np.asarray(array, order="C"), array.shape, array.dtype)[0]
