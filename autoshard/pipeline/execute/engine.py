"""What runs the programs of a pipeline's groups: an engine, where each group is a world of its own."""

from __future__ import annotations

from collections.abc import Callable

from autoshard.engines.executors import Runs, check_engine_device, check_one_process, executor_of
from autoshard.engines.extras import need
from autoshard.engines.kernels import COMPILED
from autoshard.partition.program import Program
from autoshard.pipeline.planned.data import PipelineData
from autoshard.runtime.comm import Comm

Executors = Callable[[Program, int, Comm], Runs]
"""From a program, the number of its group and a comm of the group's ranks to what runs it."""


def group_executors(planned: PipelineData, comm: Comm, engine: str, device: str) -> Executors:
    """What runs programs of groups by an engine; under MPI all ranks of `comm` call it together.

    Of the engine torch each group has torch's default process group for itself, and devices are dealt out to all ranks
    of a host, whichever group they are of. Of the engine xla each rank is the device of JAX with its number.

    Raises:
        UnknownNameError: there is no such engine, or device.
        RuntimeSetupError: packages or devices that it needs are not there.
    """
    check_engine_device(engine, device)
    if engine == "xla":
        need("jax", "the engine xla")
        check_one_process(comm)
        from autoshard.engines.xla_engine import need_devices

        need_devices(planned.devices)
    elif engine in ("torch", COMPILED) and len(comm.ranks) < comm.world:
        need("torch", "the engine torch")
        from autoshard.engines.torch_engine import placement_among

        placement = placement_among(comm, device)
        return lambda program, number, part: executor_of(program, part, engine, placement)
    ranks = [group.ranks for group in planned.groups]
    return lambda program, number, part: executor_of(program, part, engine, device, ranks[number])
