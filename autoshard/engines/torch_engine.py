"""The text of a program on torch: each rank is a process, operators are torch's, collectives torch.distributed's.

Ranks find each other through the Comm that they are started with (`TorchRun(program, comm)`): its rank 0 makes a store
and tells the others where: a file, on one host. Backend is gloo, on CPUs.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
from datetime import timedelta
from typing import Any
from uuid import uuid4

import numpy as np

from autoshard.engines import torch_library as library
from autoshard.engines.check import check_runs
from autoshard.engines.extras import need
from autoshard.engines.kernels import kernels_of
from autoshard.engines.stretches import Stretched
from autoshard.engines.text import write
from autoshard.engines.torch_collectives import TorchCollectives
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


def join_world(comm: Comm, timeout: timedelta = TIMEOUT) -> None:
    """Make torch's group of all ranks, unless there is one.

    Raises:
        RuntimeSetupError: torch has a group of another size or rank already, or one of another backend than gloo.
    """
    import torch.distributed as dist

    (rank,) = comm.ranks
    if dist.is_initialized():
        check_backend()
        if (dist.get_rank(), dist.get_world_size()) != (rank, comm.world):
            raise RuntimeSetupError(
                f"torch.distributed has rank {dist.get_rank()} of {dist.get_world_size()}, but this process is rank "
                f"{rank} of {comm.world}"
            )
        return
    store = _file_store(comm) if _on_one_host(comm) else _open_store(comm, timeout)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=comm.world, timeout=timeout)
    leave_at_exit()


def leave_at_exit() -> None:
    """Leave torch's group when this process ends: threads of a group that is still there then may abort the process.

    After an error the group is left alone, for other ranks may never answer.
    """
    atexit.register(_leave)


def _leave() -> None:
    import torch.distributed as dist

    if dist.is_initialized() and not hasattr(sys, "last_value"):
        dist.destroy_process_group()


def check_backend() -> None:
    """Check that the group of all ranks moves tensors of CPUs by gloo.

    Types are never what a backend lacks: what gloo does not reduce or move, bfloat16 say, goes as a wider type or as
    bytes. Of other backends nobody knows that here.

    Raises:
        RuntimeSetupError: it has another backend for CPUs, or none.
    """
    import torch.distributed as dist

    told = str(dist.get_backend_config())
    backends = dict(one.split(":", 1) for one in told.split(",") if ":" in one)
    if backends.get("cpu") != "gloo":
        raise RuntimeSetupError(
            f"torch.distributed was started with backend {told!r}, but the engine torch computes on CPUs and sends by "
            "gloo (bfloat16 and other types that it lacks as bytes, or wider); call "
            "torch.distributed.init_process_group('gloo'), or leave that to autoshard"
        )


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


def _on_one_host(comm: Comm) -> bool:
    name = np.frombuffer(socket.gethostname().encode()[:64].ljust(64), np.uint8)[None]
    mesh = Mesh.flat(comm.world)
    (names,) = comm.all_gather([name], mesh.groups(mesh.all_axes), 0)
    return bool((names == names[0]).all())


class TorchRun:
    """A program on the rank that this process is.

    Args:
        compiled: whether operators between two collectives are compiled together, by `torch.compile`.

    Raises:
        PlanError: an operator that the engine lacks.
        RuntimeSetupError: torch is not there, or has another group already.
    """

    def __init__(self, program: Program, comm: Comm, compiled: bool = False) -> None:
        need("torch", "the engine torch")
        import torch

        check_runs(program, kernels_of("torch"))
        torch.set_num_threads(1)
        join_world(comm)
        (rank,) = comm.ranks
        self.program, self.text = program, Stretched(program).text() if compiled else write(program)
        self.collectives = TorchCollectives(self.text.grid, rank)
        self.collectives.prepare(self.text.axes)
        self._kernels = kernels_on(rank, compiled)

    def consume(self, inputs: list[Parts]) -> list[Parts]:
        """Blocks in, blocks out: for each input, and output, the array of this rank. Empties the list."""
        import torch

        blocks = [library.tensor(part) for (part,) in inputs]
        inputs.clear()
        with torch.no_grad():
            made = self.text.step(self._kernels, self.collectives, self.text.constants, *blocks)
        return [[library.to_numpy(one)] for one in made]


__all__ = ["TorchRun", "join_world"]
