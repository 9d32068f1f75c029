"""Processes of this machine: which are below one, whether one still runs, ending one and not its successor."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def descendants(pid: int) -> dict[int, str]:
    """All processes below `pid`, with the time each was born (Linux; empty where there is no /proc)."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        fields = _stat(int(entry.name))
        if fields:
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, queue = {}, [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found |= {child: birth(child) for child in below}
        queue += below
    return found


def ancestors(pid: int) -> list[int]:
    """The processes above `pid`, its parent first (Linux; empty where there is no /proc)."""
    found = []
    while (fields := _stat(pid)) and int(fields[1]) > 0:
        found.append(pid := int(fields[1]))
    return found


def is_copy(pid: int) -> bool:
    """Whether the process runs what its parent runs, as the `( ... ) &` of a shell does: a fork of it."""
    parent = next(iter(ancestors(pid)), None)
    return parent is not None and _command(pid) == _command(parent) != b""


def birth(pid: int) -> str:
    """When the process began, in clock ticks since boot: tells a process from a later one with the same number."""
    fields = _stat(pid)
    return fields[19] if fields else ""


def runs(pid: int) -> bool:
    """Whether there is such a process and it has not ended; one that its parent has yet to bury has."""
    fields = _stat(pid)
    if fields:
        return fields[0] not in "ZX"
    if Path("/proc/self/stat").exists():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def stopped(pid: int) -> bool:
    """Whether a signal has stopped the process, as SIGSTOP and Ctrl-Z do; not if a debugger has."""
    return _stat(pid)[:1] == ["T"]


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


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat behind the command name, which may hold blanks; none if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
