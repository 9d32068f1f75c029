"""The interpreter: one loop that runs a program over any Comm, all ranks in this process or one rank of many.

A program is bound to a Comm once (`Executor`): the ranks make sure that theirs are alike, registers become slots,
attributes are resolved for the hosted ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from autoshard.errors import RuntimeSetupError
from autoshard.ops.registry import resolve
from autoshard.partition.program import Collective, Compute, Program, Register
from autoshard.runtime.agree import check_alike, label
from autoshard.runtime.array import cut, join
from autoshard.runtime.comm import Comm
from autoshard.runtime.steps import run_step

Parts = list[np.ndarray]


class Executor:
    """A program ready to run on the ranks that `comm` hosts.

    Raises:
        RuntimeSetupError: the program is for another number of ranks, or not the same on all of them.
    """

    def __init__(self, program: Program, comm: Comm) -> None:
        if comm.world != program.mesh.devices:
            raise RuntimeSetupError(
                f"program {program.name!r} is for {program.mesh.devices} ranks (mesh {program.mesh}), "
                f"but {comm.world} run; start it with: autoshard run -n {program.mesh.devices} ..."
            )
        check_alike(program, comm)
        self.program, self.comm = program, comm
        self._slots: dict[Register, int] = {}
        for register in (*program.inputs, *(one for ins in program.instructions for one in ins.results)):
            self._slots[register] = len(self._slots)
        places = [comm.place(label(instruction)) for instruction in program.instructions]
        self._actions = [(place, self._bind(i)) for i, place in enumerate(places)]

    def scatter(self, arrays: Sequence[np.ndarray]) -> list[Parts]:
        """Cut whole inputs into the blocks of the hosted ranks, after checking that they fit the program."""
        if len(arrays) != len(self.program.inputs):
            raise RuntimeSetupError(
                f"program {self.program.name!r} takes {len(self.program.inputs)} inputs, not {len(arrays)}"
            )
        parts = []
        for array, register in zip(arrays, self.program.inputs, strict=True):
            array = np.asarray(array)
            if array.shape != register.whole.shape:
                raise RuntimeSetupError(
                    f"input {register.name} has shape {array.shape}; the program expects {register.whole}"
                )
            parts.append(cut(array.astype(register.whole.dtype.numpy, copy=False), register.layout, self.comm.ranks))
        return parts

    def gather(self, parts: Sequence[Parts]) -> list[np.ndarray]:
        """Put outputs together: whole arrays, on every rank."""
        return [
            join(held, register.layout, register.whole.shape, self.comm)
            for held, register in zip(parts, self.program.outputs, strict=True)
        ]

    def run(self, inputs: Sequence[Parts]) -> list[Parts]:
        """Blocks in, blocks out: per input (output) one array per hosted rank."""
        slots: list[Parts | None] = [None] * len(self._slots)
        slots[: len(inputs)] = inputs
        for place, action in self._actions:
            self.comm.at(place)
            action(slots)
        self.comm.at(None)
        outputs = [slots[self._slots[register]] for register in self.program.outputs]
        return [parts for parts in outputs if parts is not None]

    def __call__(self, *arrays: np.ndarray) -> list[np.ndarray]:
        """Whole arrays in, whole arrays out."""
        return self.gather(self.run(self.scatter(arrays)))

    def _bind(self, i: int) -> Callable[[list], None]:
        instruction = self.program.instructions[i]
        inputs = set(self.program.inputs)
        free = [self._slots[one] for one in self.program.last_uses[i] if one not in inputs]
        if isinstance(instruction, Collective):
            return self._bind_collective(instruction, free)
        return self._bind_compute(instruction, free)

    def _bind_collective(self, instruction: Collective, free: list[int]) -> Callable[[list], None]:
        step, comm = instruction.step, self.comm
        source, target = self._slots[instruction.operand], self._slots[instruction.result]

        def action(slots: list) -> None:
            slots[target] = run_step(step, slots[source], comm)
            for slot in free:
                slots[slot] = None

        return action

    def _bind_compute(self, instruction: Compute, free: list[int]) -> Callable[[list], None]:
        operands = [self._slots[one] for one in instruction.operands]
        results = [(self._slots[one], one.whole.dtype.numpy) for one in instruction.results]
        run = instruction.op.run
        per_rank = [
            {name: resolve(value, rank) for name, value in instruction.attrs.items()} for rank in self.comm.ranks
        ]

        def action(slots: list) -> None:
            made: list[Parts] = [[] for _ in results]
            for k, attrs in enumerate(per_rank):
                out = run(*[slots[slot][k] for slot in operands], **attrs)
                out = out if isinstance(out, tuple) else (out,)
                for parts, array, (_, dtype) in zip(made, out, results, strict=True):
                    parts.append(np.asarray(array, dtype=dtype))
            for (slot, _), parts in zip(results, made, strict=True):
                slots[slot] = parts
            for slot in free:
                slots[slot] = None

        return action
