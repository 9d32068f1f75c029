"""Which executor runs a program: numpy's interpreter, or the program's text on another engine."""

from __future__ import annotations

import difflib
from typing import Protocol

import numpy as np

from autoshard.engines.check import check_runs
from autoshard.engines.extras import need
from autoshard.engines.kernels import COMPILED, ENGINES, kernels_of
from autoshard.engines.text import write
from autoshard.partition.program import Program
from autoshard.runtime.comm import Comm
from autoshard.runtime.interpret import Executor
from autoshard.util.errors import RuntimeSetupError, UnknownNameError

Parts = list[np.ndarray]


class Runs(Protocol):
    """What a session needs of whatever runs its program."""

    def consume(self, inputs: list[Parts]) -> list[Parts]:
        """Blocks in, blocks out: for each input, and output, one array for each rank of this process."""
        ...


def check_engine(engine: str) -> None:
    """Check that there is an engine of that name.

    Raises:
        UnknownNameError: there is none.
    """
    if engine not in ENGINES:
        near = difflib.get_close_matches(str(engine), ENGINES, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UnknownNameError(f"unknown engine {engine!r}{hint}; known are {', '.join(ENGINES)}")


def check_engine_runs(program: Program, engine: str) -> None:
    """Check, before ranks are started, that an engine is there and runs all operators of a program.

    Raises:
        UnknownNameError: there is no such engine.
        RuntimeSetupError: packages that it needs are not installed.
        PlanError: it lacks an operator, or a collective; the message names it, with its line in the model.
    """
    check_engine(engine)
    if engine != "numpy":
        library = "xla" if engine == "xla" else "torch"
        need({"xla": "jax"}.get(library, library), f"the engine {engine}")
        check_runs(program, kernels_of(library))
        write(program)


def executor_of(program: Program, comm: Comm, engine: str) -> Runs:
    """What runs a program on the ranks that `comm` hosts, by the engine's name.

    Raises:
        UnknownNameError: there is no such engine.
        PlanError: the engine lacks an operator of the program.
        RuntimeSetupError: packages or devices that it needs are not there.
    """
    check_engine(engine)
    if engine == "numpy":
        return Executor(program, comm)
    if engine in ("torch", COMPILED):
        return _torch(program, comm, engine == COMPILED)
    need("jax", "the engine xla")
    if len(comm.ranks) < comm.world:
        raise RuntimeSetupError(
            f"the engine xla runs all {comm.world} devices from one process, but each rank is a process here; start "
            "it without mpiexec, or by `autoshard run --engine xla`"
        )
    from autoshard.engines.xla_engine import XlaRun

    return XlaRun(program)


def _torch(program: Program, comm: Comm, compiled: bool) -> Runs:
    need("torch", "the engine torch")
    if len(comm.ranks) < comm.world or (compiled and comm.world == 1):
        from autoshard.engines.torch_engine import TorchRun

        return TorchRun(program, comm, compiled)
    if compiled:
        raise RuntimeSetupError(
            f"the engine {COMPILED} compiles what one rank runs in a process of its own, but all {comm.world} ranks "
            f"are in this one; start it by `autoshard run -n {comm.world} --engine {COMPILED}`, or take torch"
        )
    from autoshard.engines.local_run import LocalRun

    return LocalRun(program, kernels_of("torch"))
