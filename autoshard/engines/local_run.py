"""A program run by its text, all ranks in this process: with numpy's operators or with torch's."""

from __future__ import annotations

from autoshard.engines.check import check_runs
from autoshard.engines.kernels import Kernels
from autoshard.engines.local_engine import LocalCollectives, LocalKernels, Parts
from autoshard.engines.text import write
from autoshard.partition.program import Program


class LocalRun:
    """What `autoshard.runtime.interpret.Executor` is, by the text of the program."""

    def __init__(self, program: Program, kernels: Kernels | None = None) -> None:
        if kernels is not None:
            check_runs(program, kernels)
        self.program, self.text = program, write(program)
        self._kernels = LocalKernels(self.text.grid.size, kernels)
        self._collectives = LocalCollectives(self.text.grid)

    def consume(self, inputs: list[Parts]) -> list[Parts]:
        """Blocks in, blocks out: for each input, and output, one array for each rank. Empties the list."""
        given = list(inputs)
        inputs.clear()
        return list(self.text.step(self._kernels, self._collectives, self.text.constants, *given))
