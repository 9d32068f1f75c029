"""The text of a program on torch: each rank is a process, operators are torch's, collectives torch.distributed's.

Ranks find each other through the Comm that they are started with (`TorchRun(program, comm)`): its rank 0 makes a store
and tells the others where: a file, on one host. They compute on CPUs, or on CUDA devices (`placement.py`).
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
from datetime import timedelta
from typing import Any
from uuid import uuid4

import numpy as np

from autoshard.engines.check import check_runs
from autoshard.engines.kernels import kernels_of
from autoshard.engines.placement import DevicePlacement, Seen, placements
from autoshard.engines.stretches import Stretched
from autoshard.engines.text import write
from autoshard.engines.torch_collectives import TorchCollectives
from autoshard.engines.torch_devices import exact, seen, settle
from autoshard.engines.torch_kernels import kernels_on
from autoshard.layout.mesh import Mesh
from autoshard.partition.program import Program
from autoshard.runtime.comm import Comm
from autoshard.runtime.private import private_folder
from autoshard.util.errors import RuntimeSetupError

Parts = list[np.ndarray]
_LONGEST = 4096
"""Bytes of a path at most (PATH_MAX of Linux)."""
TIMEOUT = timedelta(minutes=30)
"""How long a collective waits for other ranks: gloo's default (torch.distributed.init_process_group)."""


def join_world(comm: Comm, device: str | DevicePlacement = "auto", timeout: timedelta = TIMEOUT) -> DevicePlacement:
    """Make torch's group of all ranks, unless there is one; where this rank computes: on `device`, or as chosen before.

    Raises:
        UnknownNameError: no such device.
        RuntimeSetupError: there is no such device on a rank, or torch has a group already, of another size or rank, or
            of a backend that does not move what lies on the device.
    """
    import torch.distributed as dist

    (rank,) = comm.ranks
    known = _seen_by_all(comm)
    placement = device if isinstance(device, DevicePlacement) else placements(device, known)[rank]
    if dist.is_initialized():
        if not isinstance(device, DevicePlacement):
            placement = placement.through(str(dist.get_backend_config()))
        if (dist.get_rank(), dist.get_world_size()) != (rank, comm.world):
            raise RuntimeSetupError(
                f"torch.distributed has rank {dist.get_rank()} of {dist.get_world_size()}, but this process is rank "
                f"{rank} of {comm.world}"
            )
        settle(placement)
        return placement
    settle(placement)
    store = _file_store(comm) if len({one.host for one in known}) == 1 else _open_store(comm, timeout)
    dist.init_process_group(placement.backend, store=store, rank=rank, world_size=comm.world, timeout=timeout)
    leave_at_exit()
    return placement


def placement_among(comm: Comm, device: str) -> DevicePlacement:
    """Where this rank computes, of all ranks of `comm`, which call it together.

    Raises:
        UnknownNameError: no such device.
        RuntimeSetupError: there is no such device on a rank.
    """
    (rank,) = comm.ranks
    return placements(device, _seen_by_all(comm))[rank]


def _seen_by_all(comm: Comm) -> list[Seen]:
    """What torch sees on each rank."""
    return [Seen.of_data(json.loads(one)) for one in _told_by_all(comm, json.dumps(seen().as_data()))]


def leave_at_exit() -> None:
    """Leave torch's group when this process ends: threads of a group that is still there then may abort the process.

    After an error the group is left alone, for other ranks may never answer.
    """
    atexit.register(_leave)


def _leave() -> None:
    import torch.distributed as dist

    if dist.is_initialized() and not hasattr(sys, "last_value"):
        dist.destroy_process_group()


def _file_store(comm: Comm) -> Any:
    """A store in a file of this host that only its user can read; ranks then listen on loopback alone.

    The last rank to let it go removes the file, by FileStore itself. Its folder stays: FileStore waits as long as a
    collective may take for a file that it cannot make, and ranks that end let go of it at different times.
    """
    import torch.distributed as dist

    path = str(private_folder("torch") / uuid4().hex) if comm.ranks[0] == 0 else None
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return dist.FileStore(_told(comm, path), comm.world)  # pyright: ignore[reportPrivateImportUsage]


def _open_store(comm: Comm, timeout: timedelta) -> Any:
    """A store on a free port of rank 0's host. It asks nobody who they are: for hosts of a private network."""
    import torch.distributed as dist

    opened = dist.TCPStore  # pyright: ignore[reportPrivateImportUsage]
    host, store = socket.gethostbyname(socket.gethostname()), None
    if comm.ranks[0] == 0:
        store = opened(host, 0, comm.world, True, timeout, wait_for_workers=False)
    address, _, port = _told(comm, None if store is None else f"{host}:{store.port}").rpartition(":")
    return opened(address, int(port), comm.world, False, timeout) if store is None else store


def _told(comm: Comm, text: str | None) -> str:
    """Rank 0's text on every rank."""
    given = None if text is None else np.frombuffer(text.encode().ljust(_LONGEST), np.uint8)
    (found,) = comm.broadcast(given, (_LONGEST,), np.uint8)
    return found.tobytes().decode().strip()


def _told_by_all(comm: Comm, text: str) -> list[str]:
    """The texts of all ranks, in order, on every rank."""
    mesh, lengths = Mesh.flat(comm.world), [np.array([[len(text.encode())]])]
    (counts,) = comm.all_gather(lengths, mesh.groups(mesh.all_axes), 0)
    row = np.frombuffer(text.encode().ljust(int(counts.max())), np.uint8)[None]
    (rows,) = comm.all_gather([row], mesh.groups(mesh.all_axes), 0)
    return [one.tobytes().decode().strip() for one in rows]


class TorchRun:
    """A program on the rank that this process is.

    Args:
        compiled: whether operators between two collectives are compiled together, by `torch.compile`.
        device: what it computes on: "cpu", "cuda", or "auto", which is cuda where all ranks see a CUDA device; or a
            DevicePlacement, which is taken as it is.

    Raises:
        PlanError: an operator that the engine lacks.
        RuntimeSetupError: torch is not there, or has another group already, or there is no such device.
    """

    def __init__(
        self, program: Program, comm: Comm, compiled: bool = False, device: str | DevicePlacement = "auto"
    ) -> None:
        check_runs(program, kernels_of("torch"))
        self.placement = join_world(comm, device)
        (rank,) = comm.ranks
        self.program, self.text = program, Stretched(program).text() if compiled else write(program)
        self.collectives = TorchCollectives(self.text.grid, rank, self.placement.device, self.placement.wire)
        self.collectives.prepare(self.text.axes)
        self._kernels = kernels_on(rank, self.placement.device, compiled)

    def consume(self, inputs: list[Parts]) -> list[Parts]:
        """Blocks in, blocks out: for each input, and output, the array of this rank. Empties the list."""
        library = self._kernels.library
        blocks = [library.tensor(part) for (part,) in inputs]
        inputs.clear()
        with exact(self.placement):
            made = self.text.step(self._kernels, self.collectives, self.text.constants, *blocks)
        return [[library.to_numpy(one)] for one in made]


__all__ = ["TorchRun", "join_world", "placement_among"]
