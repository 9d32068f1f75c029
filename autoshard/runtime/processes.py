"""Processes of this machine: which are below one, whether one still runs, ending one and not its successor."""

from __future__ import annotations

import contextlib
import os
import signal

import psutil

_GONE = (psutil.NoSuchProcess, psutil.AccessDenied)  # a zombie that cannot be read is a NoSuchProcess, too


def descendants(pid: int) -> dict[int, str]:
    """All processes below `pid`, with the time each was born."""
    with contextlib.suppress(*_GONE):
        return {child.pid: birth(child.pid) for child in psutil.Process(pid).children(recursive=True)}
    return {}


def ancestors(pid: int) -> list[int]:
    """The processes above `pid`, its parent first."""
    with contextlib.suppress(*_GONE):
        return [parent.pid for parent in psutil.Process(pid).parents()]
    return []


def is_copy(pid: int) -> bool:
    """Whether the process runs what its parent runs, as the `( ... ) &` of a shell does: a fork of it."""
    with contextlib.suppress(*_GONE):
        parent = psutil.Process(pid).parent()
        return parent is not None and psutil.Process(pid).cmdline() == parent.cmdline() != []
    return False


def birth(pid: int) -> str:
    """When the process began, in hundredths of a second since boot, '' if it is gone: tells a process from a later one
    with the same number."""
    # Since boot and not since 1970: that time moves when the machine's clock is set, and two processes compare these.
    with contextlib.suppress(*_GONE):
        return str(round((psutil.Process(pid).create_time() - psutil.boot_time()) * 100))
    return ""


def runs(pid: int) -> bool:
    """Whether there is such a process and it has not ended; one that its parent has yet to bury has."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


def stopped(pid: int) -> bool:
    """Whether a signal has stopped the process, as SIGSTOP and Ctrl-Z do; not if a debugger has."""
    with contextlib.suppress(*_GONE):
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    return False


def send(pid: int, number: int, born: str) -> bool:
    """Send a signal to the process, if it still is the one that was born then; whether it was sent."""
    if birth(pid) != born:
        return False
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
        return True
    return False


def kill_all(started: dict[int, str]) -> None:
    """SIGKILL for each of these processes that still is the one that was born then."""
    for pid, born in started.items():
        send(pid, signal.SIGKILL, born)
