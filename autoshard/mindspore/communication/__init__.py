"""Which rank this process is and how many there are, as MindSpore's `mindspore.communication`.

One process alone is rank 0 and plays all ranks of the plan; under `autoshard run` or mpiexec each process is
a rank.
"""

from __future__ import annotations

import os

from autoshard.mindspore.context import launched_rank, parallel_settings
from autoshard.runtime.mpi import import_mpi, started_ranks

__all__ = ["get_group_size", "get_rank", "init", "release"]


def init(backend_name: str | None = None) -> None:
    """Start MPI where a launcher started several ranks; nothing is needed otherwise.

    `backend_name` ("hccl", "nccl", "mccl" in MindSpore) makes no difference: ranks talk through MPI.
    """
    if under_launcher():
        import_mpi()


def release() -> None:
    """Nothing to let go by hand: MPI ends with the process."""


def get_rank() -> int:
    """This process's rank; 0 when it plays all of them."""
    return launched_rank() if under_launcher() else 0


def get_group_size() -> int:
    """How many ranks there are: those that were started, else those the context plans for, else 1."""
    if under_launcher():
        return max(started_ranks(), 1)
    settings = parallel_settings()
    return settings.mesh.devices if settings.mesh is not None else settings.device_num or 1


def under_launcher() -> bool:
    """Whether each rank is a process of its own."""
    return os.environ.get("AUTOSHARD_LAUNCHED") == "1" or started_ranks() > 1
