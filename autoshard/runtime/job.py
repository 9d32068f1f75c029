"""The running job: mpiexec and its ranks, ended on signals, timeouts and the loss of a rank, and what is told of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping

from autoshard.runtime.comm import show_ranks
from autoshard.runtime.processes import descendants, kill_all
from autoshard.runtime.progress import FAILING
from autoshard.runtime.reports import LEFT, StderrFilter
from autoshard.runtime.watch import Watch

TIMED_OUT = 124
GRACE_SECONDS = 3.0
"""How long a process that was asked to end, or mpiexec after the loss of a rank, may take to do so."""

_LOOK_SECONDS = 0.2


class Job:
    """The mpiexec process: ends it when it has to be, and passes its stderr on through a filter."""

    def __init__(self, command: list[str], environment: Mapping[str, str], watch: Watch) -> None:
        self._command = command
        self._environment = dict(environment)
        self._ranks = watch
        self._signal: int | None = None
        self._given_up = False
        self._told: list[str] = []

    def wait(self, timeout: float | None) -> int:
        """Run to the end, at most for `timeout` seconds; the exit code, as `launch` describes it."""
        with self._ranks.lifeline():
            # In a session of its own, so that Ctrl-C comes to us alone and we end the ranks in order.
            self._process = subprocess.Popen(
                self._command, env=self._environment, stderr=subprocess.PIPE, start_new_session=True
            )
            filtered = StderrFilter(self._ranks.tell)
            reader = threading.Thread(target=self._pump, args=(filtered,), daemon=True)
            reader.start()
            with self._signals():
                timed_out = self._watch(timeout, filtered)
            self._ranks.look(filtered.departed)
            kill_all(self._survivors())
            if self._process.returncode:
                self._send_group(signal.SIGKILL)
            reader.join(timeout=GRACE_SECONDS)
        stopped = timed_out or self._signal is not None
        _emit(filtered.close(quiet=stopped))
        return self._result(filtered, timed_out, timeout)

    def _watch(self, timeout: float | None, filtered: StderrFilter) -> bool:
        """Wait for the end; True if it had to be brought about because time was up."""
        deadline = None if timeout is None else time.monotonic() + timeout
        look = 0.0
        while self._process.poll() is None:
            if self._signal is not None:
                self._end()
            elif self._ranks.lost_seconds > GRACE_SECONDS or self._ranks.absent:
                self._give_up()
            elif deadline is not None and time.monotonic() > deadline:
                self._told = self._ranks.stall()
                self._end()
                return True
            else:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(0.05)
            if time.monotonic() > look:
                self._ranks.look(filtered.departed)
                look = time.monotonic() + _LOOK_SECONDS
        return False

    def _give_up(self) -> None:
        """End the job because of a rank that does not come, and keep what is to be told of it."""
        self._given_up = True
        if self._ranks.absent and self._ranks.lost is None:
            self._told = self._ranks.tell_absent(*self._ranks.absent)
        self._end()

    def _survivors(self) -> dict[int, str]:
        """Ranks that outlive mpiexec, after some time to end by themselves; none if it was killed, as they know not."""
        end = time.monotonic() + (GRACE_SECONDS if self._process.returncode >= 0 else 0)
        while (living := self._ranks.living) and time.monotonic() < end:
            time.sleep(0.02)
        return living

    def _end(self) -> None:
        """Ask mpiexec to end its ranks; when it does not, kill it and everything it started."""
        started = descendants(self._process.pid)
        self._process.terminate()
        try:
            self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            started |= descendants(self._process.pid)
            self._send_group(signal.SIGKILL)
        kill_all(started)
        self._process.wait()

    def _send_group(self, number: int) -> None:
        """A signal to mpiexec, the ranks, and what they have started that has not left the group of processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _result(self, filtered: StderrFilter, timed_out: bool, timeout: float | None) -> int:
        if self._signal is not None:
            _say(f"autoshard run: {signal.Signals(self._signal).name}, all ranks ended")
            return 128 + self._signal
        if timed_out:
            _say(f"autoshard run: not done after {timeout:g} s, all ranks ended", *self._told)
            return TIMED_OUT
        code = 1 if self._given_up else self._process.returncode
        lost = self._ranks.lost
        if self._told and not filtered.told:
            _say(*self._told)
            return 1
        if code < 0 and not filtered.told:
            _say(f"autoshard run: mpiexec was ended by {signal.Signals(-code).name}, all ranks ended")
        elif lost is not None and lost.state != FAILING and not filtered.told:
            reason = LEFT if lost.rank in filtered.departed else "it is gone"
            _say(*self._ranks.tell(lost.rank, f"rank {lost.rank} failed: {reason}"))
        if code < 0:
            return 128 - code
        silent = self._ranks.silent(filtered.departed)
        if not code and silent:
            _say(f"autoshard run: {show_ranks(silent)} did not come to an end: a host is lost, or what ran there")
            return 1
        return code or int(lost is not None)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Note SIGINT and SIGTERM instead of dying of them, and take the ranks along at SIGTSTP; only the main thread
        may, others are left alone."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers = {signal.SIGINT: self._note, signal.SIGTERM: self._note, signal.SIGTSTP: self._pause}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, _frame: object) -> None:
        self._signal = number

    def _pause(self, _number: int, _frame: object) -> None:
        """Stop with all ranks, which Ctrl-Z does not reach in their session, until both are continued."""
        self._send_group(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        self._send_group(signal.SIGCONT)

    def _pump(self, filtered: StderrFilter) -> None:
        pipe = self._process.stderr
        assert pipe is not None, "stderr was asked for as a pipe"
        while chunk := os.read(pipe.fileno(), 65536):
            _emit(filtered.feed(chunk))


def _say(*lines: str) -> None:
    _emit("".join(f"{line}\n" for line in lines).encode())


def _emit(data: bytes) -> None:
    if not data:
        return
    # When nobody reads our stderr any more, the ranks' must still be drained, or they would block.
    with contextlib.suppress(OSError, ValueError):
        stream = getattr(sys.stderr, "buffer", None)
        if stream is None:
            sys.stderr.write(data.decode(errors="replace"))
        else:
            sys.stderr.flush()
            stream.write(data)
        sys.stderr.flush()
