"""A step of training on torch that pauses: after what the model returns is there, and before the first update.

The text of the program is a generator then; all else is as in `torch_engine`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from autoshard.engines.check import check_runs
from autoshard.engines.kernels import kernels_of
from autoshard.engines.pausing import PausingStretched, PausingWriter
from autoshard.engines.placement import DevicePlacement, Seen, placements
from autoshard.engines.torch_collectives import TorchCollectives
from autoshard.engines.torch_devices import seen, settle
from autoshard.engines.torch_engine import join_world, leave_at_exit
from autoshard.engines.torch_kernels import kernels_on
from autoshard.ir.graph import Node
from autoshard.partition.program import Compute, Instruction, Program, Register
from autoshard.runtime.mpi import default_comm
from autoshard.util.errors import RuntimeSetupError


def joined(world: int, device: str | DevicePlacement = "auto") -> DevicePlacement:
    """Where this process computes as a rank of `torch.distributed`, which is started if need be: on `device`, or as
    chosen before.

    Ranks are those of a group that there is, of torchrun, or of mpiexec (as `autoshard run` starts them).

    Raises:
        UnknownNameError: no such device.
        RuntimeSetupError: there are not `world` of them, or there is no such device.
    """
    if dist.is_initialized():
        placement = _of_group(device)
    elif dist.is_torchelastic_launched():
        placement = _of_torchrun(device)
    else:
        comm = default_comm(world)
        placement = join_world(comm, device) if len(comm.ranks) < world or world == 1 else DevicePlacement()
    running = dist.get_world_size() if dist.is_initialized() else 1
    if running != world:
        raise RuntimeSetupError(
            f"the plan is for {world} ranks, but {running} {'are' if running > 1 else 'is'} running; start it "
            f"with `torchrun --nproc-per-node {world} SCRIPT.py` or `autoshard run -n {world} SCRIPT.py`, or plan for "
            f"{running}"
        )
    return placement


def _of_group(device: str | DevicePlacement) -> DevicePlacement:
    """The placement on a group that there is; where NCCL is one of its backends, on the process' present device."""
    if isinstance(device, DevicePlacement):
        return device
    backends = str(dist.get_backend_config())
    has_nccl = "cuda:nccl" in backends.split(",")
    if not has_nccl:
        DevicePlacement().through(backends)  # before anything is sent
    known: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(known, seen(is_settled=has_nccl))
    placement = placements(device, known)[dist.get_rank()].through(backends)
    settle(placement)
    return placement


def _of_torchrun(device: str | DevicePlacement) -> DevicePlacement:
    """Join the ranks that torchrun has started."""
    store, rank, world = next(dist.rendezvous("env://"))  # pyright: ignore[reportPrivateImportUsage]
    store.set(f"autoshard/{rank}", json.dumps(seen().as_data()))
    known = [Seen.of_data(json.loads(store.get(f"autoshard/{one}"))) for one in range(world)]
    placement = device if isinstance(device, DevicePlacement) else placements(device, known)[rank]
    settle(placement)
    dist.init_process_group(placement.backend, store=store, rank=rank, world_size=world)
    leave_at_exit()
    return placement


def pauses_of(program: Program, returned: Sequence[Register], updates: Collection[Node]) -> tuple[int, int]:
    """Before which instructions a step pauses: the one after those that make what it returns, and the first update.

    Args:
        updates: the operators that make new values of what is trained.
    """
    wanted, made = set(returned), 0
    for i, one in enumerate(program.instructions):
        if wanted.intersection(one.results):
            made = i + 1
    first = next((i for i, one in enumerate(program.instructions) if _updates(one, updates)), len(program.instructions))
    return made, max(first, made)


def _updates(one: Instruction, nodes: Collection[Node]) -> bool:
    return isinstance(one, Compute) and (one.node in nodes or one.composite in nodes)


class TorchSteps:
    """A program on the rank that this process is, run in parts; `compiled` and `device` as in `torch_engine.TorchRun`.

    Raises:
        PlanError: an operator that the engine lacks.
        RuntimeSetupError: another number of ranks than the plan is for.
    """

    def __init__(
        self,
        program: Program,
        returned: int,
        updates: Collection[Node],
        compiled: bool = False,
        device: str | DevicePlacement = "auto",
    ) -> None:
        check_runs(program, kernels_of("torch"))
        self.placement = joined(program.mesh.devices, device)
        self.rank = dist.get_rank()
        results = program.outputs[:returned]
        made, first = pauses_of(program, results, updates)
        writer = PausingStretched if compiled else PausingWriter
        self.text = writer(program, [(made, results), (first, ())]).text()
        self.collectives = TorchCollectives(self.text.grid, self.rank, self.placement.device, self.placement.wire)
        self.collectives.prepare(self.text.axes)
        self._kernels = kernels_on(self.rank, self.placement.device, compiled)

    def begin(self, blocks: Sequence[torch.Tensor]) -> StepRun:
        """A run of the step; nothing is done until its parts are."""
        return StepRun(self.text.step(self._kernels, self.collectives, self.text.constants, *blocks))


class StepRun:
    """One run of a step: `forward`, `backward` and `finish`, in this order."""

    def __init__(self, step: Iterator[Any]) -> None:
        self._step = step
        self.done = ""
        """The last part that was done."""

    def forward(self) -> tuple[torch.Tensor, ...]:
        """What the model returns, in blocks."""
        return self._on("forward")

    def backward(self) -> None:
        """What comes before the first update."""
        self._on("backward")

    def finish(self) -> tuple[torch.Tensor, ...]:
        """All the rest; the outputs of the program, in blocks."""
        with torch.no_grad():
            try:
                next(self._step)
            except StopIteration as end:
                self.done = "finish"
                return end.value
        raise AssertionError("a step has two pauses")

    def _on(self, part: str) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            found = next(self._step)
        self.done = part
        return found


__all__ = ["StepRun", "TorchSteps", "joined", "pauses_of"]
