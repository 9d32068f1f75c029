"""Which rank this process is and how many there are, as MindSpore's `mindspore.communication`.

One process alone is rank 0 and plays all ranks of the plan; under `autoshard run` or mpiexec each process is
a rank.
"""

from __future__ import annotations

from autoshard.mindspore.context import launched_rank
from autoshard.runtime.mpi import import_mpi
from autoshard.runtime.world import under_launcher, world_size

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
    return world_size()
