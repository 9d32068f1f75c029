"""Where ranks that were started one by one meet; the other side of `joining`, which starts it.

A job is the processes that claim the ranks 0 to n-1, each once, and were started by the same process: two scripts that
each start eight ranks have two jobs. Once a job is complete this process serves and watches it, and whoever is left
over looks for another rendezvous.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from autoshard.runtime.comm import show_ranks
from autoshard.runtime.joining import alone, receive, send
from autoshard.runtime.launch import Mpiexec, on_one_machine, settings
from autoshard.runtime.mpiexec import numbered
from autoshard.runtime.pmix import PmixError, Server
from autoshard.runtime.processes import kill_all
from autoshard.runtime.progress import FAILING, FOLDER
from autoshard.runtime.watch import Watch

_LOOK_SECONDS = 0.2
_HELLO_SECONDS = 10.0
_SETTLE_SECONDS = 2.0
"""For how long nobody may come before ranks are taken for one job that each have a starter of their own, below a common
one: a nearer relation of theirs may be about to come."""
_GRACE_SECONDS = 2.0
"""How long ranks may take to end when they are told to."""


@dataclass(frozen=True)
class Arrival:
    """A process that claims to be a rank: its number and the time of its birth, and those of its ancestors, the parent
    first."""

    rank: int
    pid: int
    born: str
    parents: tuple[tuple[int, str], ...]
    since: float = 0.0

    @property
    def age(self) -> tuple[int, int]:
        """Orders processes by when they were born."""
        return int(self.born or 0), self.pid


def complete(arrived: Sequence[Arrival], ranks: int, exact: bool, settled: bool = True) -> list[Arrival] | None:
    """The processes of a job, in rank order; None if no job is complete, or none is told from another.

    With `exact` all arrivals are known to belong together. Else they have one ancestor that started each of them, or,
    if they have `settled`, that started the starter of each of them. Where one process has started several jobs, each
    rank's first-born processes are the first of them, as soon as all are there.
    """
    if exact:
        return _one_of_each(arrived, ranks)
    for group in _families(arrived, settled):
        if job := _one_of_each(group, ranks):
            return job
    return None


def _families(arrived: Sequence[Arrival], settled: bool) -> Iterator[list[Arrival]]:
    """Those below one ancestor with no other of them on the way, the nearest related first."""
    below: dict[tuple[int, str], list[tuple[Arrival, object]]] = {}
    for one in arrived:
        ways = zip(one.parents, (one, *one.parents), strict=False)
        for parent, way in ways:
            below.setdefault(parent, []).append((one, way))
    for members in sorted(below.values(), key=len):
        apart = len({way for _, way in members}) == len(members)
        if apart and (settled or all(way is one for one, way in members)):
            yield [one for one, _ in members]


def _one_of_each(group: Sequence[Arrival], ranks: int) -> list[Arrival] | None:
    """The first-born of each rank, if all ranks have come, and equally often."""
    claims: dict[int, list[Arrival]] = {rank: [] for rank in range(ranks)}
    for one in group:
        claims.setdefault(one.rank, []).append(one)
    if not claims[0] or len(set(map(len, claims.values()))) > 1:
        return None
    return [min(same, key=lambda one: one.age) for same in claims.values()]


def missing(arrived: Sequence[Arrival], ranks: int, by: str, seconds: float) -> str:
    """Why no job came together, and what to do."""
    claims = [one.rank for one in arrived]
    absent = [rank for rank in range(ranks) if rank not in claims]
    twice = sorted({rank for rank in claims if claims.count(rank) > 1})
    wrong = [f"{show_ranks(absent)} did not come"] * bool(absent)
    wrong += [f"{show_ranks(twice)} came more than once"] * bool(twice)
    why = " and ".join(wrong) or "they were not started by one process"
    return (
        f"{by} says that there are {ranks} ranks, but {why} within {seconds:g} s; start all of them, give those of one "
        f"job a name of their own in AUTOSHARD_JOB if there are others, or start them with `autoshard run -n {ranks}`"
    )


class Rendezvous:
    """Waits behind `listener` until `ranks` ranks have come."""

    def __init__(self, folder: Path, listener: socket.socket, ranks: int, by: str, seconds: float, exact: bool) -> None:
        self._folder, self._listener = folder, listener
        self._ranks, self._by, self._seconds, self._exact = ranks, by, seconds, exact
        self._arrived: dict[socket.socket, Arrival] = {}
        self._last = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def wait(self) -> list[tuple[Arrival, socket.socket]] | None:
        """The ranks of a job with their connections; None if none came together in time. All others are told."""
        job = None
        while job is None and not self._is_over():
            for key, _ in self._selector.select(_LOOK_SECONDS):
                self._admit() if key.fileobj is self._listener else self._leave(key.fileobj)
            settled = time.monotonic() - self._last > _SETTLE_SECONDS
            job = complete(list(self._arrived.values()), self._ranks, self._exact, settled)
        answer = {"again": True}
        if job is None:
            answer = {"failed": missing(list(self._arrived.values()), self._ranks, self._by, self._seconds)}
        connections = {one: connection for connection, one in self._arrived.items()}
        chosen = [(one, connections[one]) for one in job or ()]
        self._dismiss({connection for _, connection in chosen}, answer)
        return chosen or None

    def _is_over(self) -> bool:
        """Whether one has waited too long, or nobody waits any more."""
        oldest = min((one.since for one in self._arrived.values()), default=self._last + _HELLO_SECONDS - self._seconds)
        return time.monotonic() - oldest > self._seconds

    def _admit(self) -> None:
        connection, _ = self._listener.accept()
        hello = receive(connection, _HELLO_SECONDS)
        if hello is None:
            connection.close()
            return
        parents = tuple((int(pid), str(born)) for pid, born in hello["parents"])
        known = int(hello["rank"]), int(hello["pid"]), str(hello["born"]), parents, time.monotonic()
        self._arrived[connection], self._last = Arrival(*known), time.monotonic()
        self._selector.register(connection, selectors.EVENT_READ)

    def _leave(self, connection) -> None:
        """One that waits has nothing to say: it has gone."""
        self._selector.unregister(connection)
        del self._arrived[connection]
        connection.close()

    def _dismiss(self, chosen: set[socket.socket], answer: dict) -> None:
        """Close the door, and answer all that have come through it and are not of the job."""
        with alone(self._folder):
            (self._folder / "socket").unlink(missing_ok=True)
            self._listener.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    self._arrived[self._listener.accept()[0]] = Arrival(-1, 0, "", ())
        self._listener.close()
        for connection in self._arrived.keys() - chosen:
            with contextlib.suppress(OSError):
                send(connection, answer if self._arrived[connection].rank >= 0 else {"again": True})
            connection.close()


def serve(job: Sequence[tuple[Arrival, socket.socket]], library: str) -> None:
    """Connect the ranks of a job, and watch them until all have ended."""
    ranks = len(job)
    with tempfile.TemporaryDirectory(prefix="autoshard-") as scratch:
        watch = Watch(Path(scratch), ranks)
        try:
            server = Server(library, ranks, scratch)
            common = {**settings(ranks), **on_one_machine(Mpiexec("mpiexec", True, library), None), FOLDER: scratch}
            given = [{**common, **server.environment(rank), **numbered(rank, ranks)} for rank in range(ranks)]
        except PmixError as error:
            _tell(job, {"failed": f"cannot connect {ranks} ranks: {error}"})
            return
        for variables, (_, connection) in zip(given, job, strict=True):
            with contextlib.suppress(OSError):
                send(connection, {"environment": variables})
        _watch(job, watch)
        server.close()


def _watch(job: Sequence[tuple[Arrival, socket.socket]], watch: Watch) -> None:
    processes = {one.pid: one.born for one, _ in job}
    for rank, (one, _) in enumerate(job):
        watch.expect(rank, one.pid, one.born)
    while watch.living:
        watch.look()
        if told := _failure(watch):
            _tell(job, {"end": "\n".join(told)})
            end = time.monotonic() + _GRACE_SECONDS
            while watch.living and time.monotonic() < end:
                time.sleep(0.02)
            kill_all(processes)
            return
        time.sleep(_LOOK_SECONDS)


def _failure(watch: Watch) -> list[str]:
    """What is to be told of the rank that has failed; nothing if none has."""
    if watch.lost is not None:
        why = "it has said why itself" if watch.lost.state == FAILING else "it is gone"
        return watch.tell(watch.lost.rank, f"rank {watch.lost.rank} failed: {why}")
    return watch.tell_absent(*watch.absent) if watch.absent else []


def _tell(job: Sequence[tuple[Arrival, socket.socket]], message: dict) -> None:
    for _, connection in job:
        with contextlib.suppress(OSError):
            send(connection, message)


def main(folder: str, listener: int, ranks: int, by: str, library: str, seconds: float, exact: bool) -> None:
    """Bring the ranks together that come through the listening socket of that number, and stay as long as they live."""
    meeting = Rendezvous(Path(folder), socket.socket(fileno=listener), ranks, by, seconds, exact)
    job = meeting.wait()
    if job is not None:
        serve(job, library)


if __name__ == "__main__":
    folder, listener, ranks, by, library, seconds, *exact = sys.argv[1:]
    main(folder, int(listener), int(ranks), by, library, float(seconds), bool(exact))
