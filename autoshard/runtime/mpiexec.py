"""An mpiexec for one machine: `python -I mpiexec.py LIBRARY RANKS FOLDER PARENT PROGRAM ARGS...` runs PROGRAM on all
ranks.

It is used in place of Open MPI's, which listens on all interfaces (see `pmix`, the file beside this one). As that one,
it hands its stdin to rank 0, ends all ranks when one fails, when a signal asks for it or when its parent (the process
PARENT) has gone, and has the exit code of the rank that failed first. Ranks write to its stdout and stderr themselves.
What became of each rank it writes to stderr, in a line that `StderrFilter` knows by its marks.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

DEATH = "\x1d"
"""Begins a line about a rank that has ended: `DEATH rank DEATH reason`: ASCII's group separator."""
_GRACE_SECONDS = 2.0
"""How long a rank that was asked to end may take to do so; less than the launcher grants this program."""
_LOOK_SECONDS = 0.5
"""How often it looks whether its parent still lives."""
_REFUSED = 125


def main(library: str, ranks: int, folder: str, parent: int, command: list[str]) -> int:
    """Run `command` on that many ranks; the exit code of the job."""
    pmix = _beside("pmix")
    try:
        server = pmix.Server(library, ranks, folder)
    except pmix.PmixError as error:
        hint = "name another mpiexec in AUTOSHARD_MPIEXEC"
        sys.stderr.write(f"cannot start {ranks} ranks: {error}; {hint}\n")
        return _REFUSED
    with _Alarm(parent) as alarm:
        job = _Ranks(command, [server.environment(rank) | numbered(rank, ranks) for rank in range(ranks)], alarm)
        code = job.wait(alarm)
    server.close()
    if alarm.orphaned:
        # The folder is the parent's, who can remove it no more; the ranks that would are gone, too.
        shutil.rmtree(folder, ignore_errors=True)
    return code


def _beside(name: str):
    """A module in the folder of this file, which is not on the path: its names would hide those of the library."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None, f"{name}.py is missing"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def numbered(rank: int, ranks: int) -> dict[str, str]:
    """The variables by which programs know their rank under Open MPI."""
    values = {"RANK": rank, "SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_SIZE": ranks, "NODE_RANK": rank}
    return {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in values.items()}


class _Alarm:
    """Wakes the main loop when a rank ends or a signal asks for the end of all."""

    def __init__(self, parent: int) -> None:
        self.asked = 0
        self._parent = parent

    @property
    def orphaned(self) -> bool:
        """Whether the process that started this one has gone."""
        return os.getppid() != self._parent

    def __enter__(self) -> _Alarm:
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        signal.set_wakeup_fd(-1)

    def _note(self, number: int, frame: object) -> None:
        self.asked = self.asked or number

    def wait(self, seconds: float) -> None:
        """Return after a signal, at the latest after that many seconds."""
        if select.select([self._woken], [], [], seconds)[0]:
            os.read(self._woken, 4096)
        self.look()

    def look(self) -> None:
        """Note it if the parent has gone, which may have been before this process could look."""
        if self.orphaned:
            self._note(signal.SIGHUP, None)


class _Ranks:
    """The processes of the ranks."""

    def __init__(self, command: list[str], environments: list[dict[str, str]], alarm: _Alarm) -> None:
        inherited = dict(os.environ)
        self._living: dict[int, subprocess.Popen] = {}
        for rank, variables in enumerate(environments):
            alarm.look()
            if alarm.asked:
                return
            stdin = None if rank == 0 else subprocess.DEVNULL
            self._living[rank] = subprocess.Popen(command, env={**inherited, **variables}, stdin=stdin)

    def wait(self, alarm: _Alarm) -> int:
        """Wait for all, or for the first that fails, and then end the others."""
        code = 0
        while self._living and not code and not alarm.asked:
            code = self._ended()
            if self._living and not code:
                alarm.wait(_LOOK_SECONDS)
        self._end(alarm)
        return code or (128 + alarm.asked if alarm.asked else 0)

    def _ended(self) -> int:
        """Say of ranks that have ended how; the exit code of one that failed, else 0."""
        failed = 0
        for rank, process in list(self._living.items()):
            code = process.poll()
            if code is not None:
                del self._living[rank]
                _say(rank, code)
                failed = failed or (code if code >= 0 else 128 - code)
        return failed

    def _end(self, alarm: _Alarm) -> None:
        self._send(signal.SIGTERM)
        # One that is stopped takes no other signal.
        self._send(signal.SIGCONT)
        end = time.monotonic() + _GRACE_SECONDS
        while self._running() and time.monotonic() < end:
            alarm.wait(0.1)
        self._send(signal.SIGKILL)
        for process in self._living.values():
            process.wait()

    def _running(self) -> bool:
        return any(process.poll() is None for process in self._living.values())

    def _send(self, number: int) -> None:
        for process in self._living.values():
            process.send_signal(number)


def _say(rank: int, code: int) -> None:
    reason = f"exit code {code}" if code > 0 else _LEFT
    if code < 0:
        reason = f"ended by signal {-code} ({signal.strsignal(-code)})"
    with contextlib.suppress(OSError):
        os.write(2, f"{DEATH}{rank}{DEATH}{reason}\n".encode())


_LEFT = ""
"""No reason is given for a rank that ended with exit code 0."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5:]))
