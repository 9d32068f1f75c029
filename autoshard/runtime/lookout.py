"""Ranks under an mpiexec of the user's own look after each other: no launcher of ours would end them.

`look_out(identity())` has this rank note what it is doing, as it does for a launcher, in a folder that all ranks of the
job find; a thread of each sees when one has ended or is stopped while others wait for it, and ends the job, since
mpiexec does so when one rank has failed. Only for ranks that are all on this machine.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from autoshard.runtime.identity import RankIdentity
from autoshard.runtime.private import private_folder
from autoshard.runtime.processes import birth
from autoshard.runtime.progress import ENDED, FOLDER, note_end, of_this_rank, read_state
from autoshard.runtime.watch import Watch
from autoshard.util.errors import RuntimeSetupError

_LOOK_SECONDS = 1.0
_GIVE_WAY_SECONDS = 2.0
"""For how long each rank leaves it to those of lower number to speak and end the job."""
_HERE = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_JOB = ("PMIX_NAMESPACE", "PMIX_SERVER_URI2")


def look_out(own: RankIdentity, variables: Mapping[str, str] = os.environ) -> None:
    """Look after the other ranks from now on, if all are here and nobody else does."""
    if variables.get(FOLDER) or str(own.ranks) not in [variables.get(name) for name in _HERE]:
        return
    try:
        folder = private_folder(_named(variables))
    except (OSError, RuntimeSetupError):
        return  # without a place for notes they run as they would without autoshard
    os.environ[FOLDER] = str(folder)
    of_this_rank.cache_clear()
    if of_this_rank() is not None:
        atexit.register(_end, folder, own.ranks)
        threading.Thread(target=_watch, args=(folder, own), daemon=True).start()


def _named(variables: Mapping[str, str]) -> str:
    """A name that the ranks of this mpiexec share, and those of no other do."""
    known = [variables[name] for name in _JOB if name in variables]
    text = "\n".join(known or [str(os.getppid()), birth(os.getppid())])
    return "job-" + hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _end(folder: Path, ranks: int) -> None:
    """Note that this rank has ended; the last one removes the folder."""
    note_end()
    if all(read_state(folder, rank) == ENDED for rank in range(ranks)):
        shutil.rmtree(folder, ignore_errors=True)


def _watch(folder: Path, own: RankIdentity) -> None:
    watch = Watch(folder, own.ranks)
    while folder.is_dir():
        time.sleep(_LOOK_SECONDS)
        watch.look()
        if watch.absent is not None and watch.absent[0] != own.rank:
            time.sleep(_GIVE_WAY_SECONDS * min(own.rank, 1))
            watch.look()
            if watch.absent is not None:
                _stop(folder, watch.tell_absent(*watch.absent))


def _stop(folder: Path, told: list[str]) -> NoReturn:
    sys.stderr.write("".join(f"{line}\n" for line in told))
    sys.stderr.flush()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
