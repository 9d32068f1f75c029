"""What one rank works out for all, where each would work out the same: ranks of a test mostly share few processors."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from autoshard.api import Planned, plan
from autoshard.mindspore.communication import get_group_size, get_rank


def by_first(make: Callable[[], Any]) -> Any:
    """What `make` returns on the first rank, on all ranks. The others sleep until then: a rank that waits in a
    collective would take the first one's processor from it."""
    if get_group_size() == 1:
        return make()
    from mpi4py import MPI

    made = make() if get_rank() == 0 else None
    arrived = MPI.COMM_WORLD.Ibarrier()
    while not arrived.Test():
        time.sleep(0.02)
    return MPI.COMM_WORLD.bcast(made)


def planned_by_first(*target: Any, **settings: Any) -> Planned:
    """The plan that the first rank finds, on all ranks; arguments as of `plan`."""

    def searched() -> str:
        with TemporaryDirectory() as folder:
            return plan(*target, **settings).save(Path(folder) / "plan.json").read_text()

    text = by_first(searched)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        path.write_text(text)
        return plan(*target, **settings | {"search": str(path)})
