"""Which executor runs a program: numpy's, or the program's text on another engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from autoshard.engines.check import check_runs
from autoshard.engines.extras import need
from autoshard.engines.kernels import COMPILED, ENGINES, kernels_of
from autoshard.engines.numpy_engine import NumpyRun
from autoshard.engines.placement import DevicePlacement, check_device, placements
from autoshard.engines.text import write
from autoshard.partition.program import Program
from autoshard.runtime.comm import Comm
from autoshard.util.errors import RuntimeSetupError, UnknownNameError
from autoshard.util.near import did_you_mean

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
        hint = did_you_mean(engine, ENGINES, 1)
        raise UnknownNameError(f"unknown engine {engine!r}{hint}; known are {', '.join(ENGINES)}")


def check_engine_device(engine: str, device: str) -> None:
    """Check that an engine computes on a device that can be asked for; whether there is one only its ranks see.

    Raises:
        UnknownNameError: there is no such engine, or device.
        RuntimeSetupError: the engine computes on others.
    """
    check_engine(engine)
    check_device(device)
    if engine == "numpy" and device == "cuda":
        raise RuntimeSetupError("the engine numpy computes on CPUs; for device 'cuda' take the engine torch")
    if engine == "xla" and device != "auto":
        raise RuntimeSetupError(
            f"the engine xla computes on the devices that JAX has, not on device {device!r}; leave it out, and set "
            "JAX_PLATFORMS to choose between them"
        )


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


def check_one_process(comm: Comm) -> None:
    """Check that all ranks are in this process, as the engine xla has them.

    Raises:
        RuntimeSetupError: they are not.
    """
    if len(comm.ranks) < comm.world:
        raise RuntimeSetupError(
            f"the engine xla runs all {comm.world} devices from one process, but each rank is a process here; start "
            "it without mpiexec, or by `autoshard run --engine xla`"
        )


def executor_of(
    program: Program,
    comm: Comm,
    engine: str,
    device: str | DevicePlacement = "auto",
    jax_devices: Sequence[int] = (),
) -> Runs:
    """What runs a program on the ranks that `comm` hosts, by the engine's name, and on which device.

    Args:
        device: of the engine torch: by name, or where this rank computes as it was chosen before.
        jax_devices: of the engine xla: for each rank which of JAX's devices it is; by default the first ones.

    Raises:
        UnknownNameError: there is no such engine, or device.
        PlanError: the engine lacks an operator of the program.
        RuntimeSetupError: packages or devices that it needs are not there.
    """
    check_engine_device(engine, device if isinstance(device, str) else "auto")
    if engine == "numpy":
        return NumpyRun(program, comm)
    if engine in ("torch", COMPILED):
        return _torch(program, comm, engine == COMPILED, device)
    need("jax", "the engine xla")
    check_one_process(comm)
    from autoshard.engines.xla_engine import XlaRun

    return XlaRun(program, jax_devices)


def _torch(program: Program, comm: Comm, compiled: bool, device: str | DevicePlacement) -> Runs:
    need("torch", "the engine torch")
    from autoshard.engines.torch_devices import seen
    from autoshard.engines.torch_engine import TorchRun

    if len(comm.ranks) < comm.world:
        return TorchRun(program, comm, compiled, device)
    (placement,) = placements(device, [seen()]) if isinstance(device, str) else (device,)
    if comm.world == 1 and (compiled or not placement.is_cpu):
        return TorchRun(program, comm, compiled, device)
    if compiled:
        raise RuntimeSetupError(
            f"the engine {COMPILED} compiles what one rank runs in a process of its own, but all {comm.world} ranks "
            f"are in this one; start it by `autoshard run -n {comm.world} --engine {COMPILED}`, or take torch"
        )
    from autoshard.engines.local_run import LocalRun

    return LocalRun(program, kernels_of("torch", placement.device))
