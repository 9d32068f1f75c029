"""Reports: what the user sees of the stderr of mpiexec, in which ranks mark their failures line by line."""

from __future__ import annotations

import re
from collections.abc import Callable

from autoshard.runtime.mpiexec import DEATH

MARK = "\x1e"
"""Begins a line of a report, `MARK rank MARK text`: ASCII's record separator, not found in ordinary
output."""


class StderrFilter:
    """Turns the stderr of mpiexec into what the user should see; bytes in, bytes out.

    Everything passes at once except: reports, of which the first is shown in full and the others in one line
    each at the end; and banners of Open MPI and MPICH that only repeat that a rank has ended. When a rank could
    not report (it was killed, or left with `os._exit`), it and the reason are taken from the banner, or from the line
    that our own mpiexec writes about every rank; `tell` makes the lines to show of them.
    """

    def __init__(self, tell: Callable[[int, str], list[str]] = lambda rank, text: [text]) -> None:
        self._tell = tell
        self._partial = b""
        self._midline = False
        self._banner: list[bytes] = []
        self._reporter: str | None = None
        self._failures: dict[str, str] = {}
        self._notes: dict[str, str] = {}
        self.departed: set[int] = set()
        """The ranks that ended with exit code 0: mpiexec says so, on other hosts each rank itself."""

    def feed(self, chunk: bytes) -> bytes:
        """What to show after `chunk` has arrived. Incomplete lines that may become a mark or banner are
        held."""
        # Open MPI writes its banners with the NUL that ends a C string.
        *lines, rest = (self._partial + chunk.replace(b"\0", b"")).split(b"\n")
        shown = b"".join(self._line(line + b"\n") for line in lines)
        hold = (
            self._banner or MARK.encode() in rest or DEATH.encode() in rest or (not self._midline and rest[:1] == b"-")
        )
        self._partial = rest if hold else b""
        if not hold and rest:
            self._midline = True
            shown += rest
        return shown

    def close(self, quiet: bool = False) -> bytes:
        """What remains to be shown at the end; `quiet` leaves out who ended how, when the user ended the
        job."""
        shown = self._line(self._partial) if self._partial else b""
        shown += self._end_banner()
        if quiet:
            return shown
        return shown + "".join(f"{line}\n" for line in self._summary()).encode()

    @property
    def told(self) -> bool:
        """Whether a rank is known to have failed, and the user has been or will be told which."""
        return bool(self._failures or self._notes)

    def _line(self, line: bytes) -> bytes:
        if DEATH.encode() in line:
            return self._death(line)
        if MARK.encode() in line:
            return self._report(line)
        if self._midline:
            self._midline = False
            return line
        if self._banner:
            return self._in_banner(line)
        if _RULE.fullmatch(line):
            self._banner = [line]
            return b""
        return b"" if _STRAY.match(line) else line

    def _report(self, line: bytes) -> bytes:
        before, rank, text = line.decode(errors="replace").split(MARK, 2)
        shown = f"{before}\n".encode() if before or self._midline else b""
        self._midline = False
        self._reporter = self._reporter or rank
        if text.startswith((f"rank {rank} failed", f"rank {rank} ended")):
            self._failures[rank] = text.rstrip("\n")
        return shown + text.encode() if rank == self._reporter else shown

    def _death(self, line: bytes) -> bytes:
        before, rank, reason = line.decode(errors="replace").rstrip("\n").split(DEATH, 2)
        if reason:
            self._notes.setdefault(rank, reason)
        else:
            self.departed.add(int(rank))
        # The line of a rank that ended in the middle of one of its own.
        shown = f"{before}\n".encode() if before or self._midline else b""
        self._midline = False
        return shown

    def _in_banner(self, line: bytes) -> bytes:
        self._banner.append(line)
        if len(self._banner) == 2 and not _BANNER.search(line):
            return self._release()
        if _RULE.fullmatch(line) or len(self._banner) > _LONGEST_BANNER:
            return self._end_banner()
        return b""

    def _release(self) -> bytes:
        held, self._banner = b"".join(self._banner), []
        return held

    def _end_banner(self) -> bytes:
        text = b" ".join(b"".join(self._banner).split()).decode(errors="replace")
        if not _BANNER.search(text.encode()):
            return self._release()
        self._banner = []
        for pattern, reason in _DEATHS:
            if found := pattern.search(text):
                self._notes.setdefault(found[1], reason.format(*found.groups()))
                break
        return b""

    def _summary(self) -> list[str]:
        # Of several that were ended without a word, all but the first were ended because of it.
        silent = [] if self._notes.keys() <= self._failures.keys() else list(self._notes.items())[:1]
        noted = [line for rank, reason in silent for line in self._tell(int(rank), f"rank {rank} failed: {reason}")]
        if not self._failures:
            return noted
        first = next(iter(self._failures))
        reason = _reason(self._failures[first])
        alike = [rank for rank, text in self._failures.items() if rank != first and _reason(text) == reason]
        lines = [text for rank, text in self._failures.items() if rank != first and rank not in alike]
        if alike:
            lines.append(f"the same on rank{'s' if len(alike) > 1 else ''} {', '.join(sorted(alike, key=int))}")
        return lines + noted


def _reason(text: str) -> str:
    return text.partition(" failed")[2] or text.partition(" ended")[2]


LEFT = "it left before its end, without an error"
_LONGEST_BANNER = 30
_RULE = re.compile(rb"-{60,}\s*")
_BANNER = re.compile(
    rb"MPI_ABORT was invoked|prterun (has exited|noticed|detected)|mpirun (has exited|noticed|detected)"
    rb"|mpiexec (has exited|noticed|detected)|Primary job +terminated"
)
_STRAY = re.compile(rb"Abort\(\d+\) on node \d+ .*application called MPI_Abort\(")
_DEATHS = (
    (re.compile(r"process rank (\d+) .*exited on signal (\d+) \(([^)]*)\)"), "ended by signal {1} ({2})"),
    (re.compile(r"Process name: \[[^]]*,(\d+)\] Exit code: (\d+)"), "exit code {1}"),
    (re.compile(r"due to process rank (\d+) with .*exiting improperly"), LEFT),
)
"""How Open MPI tells of a rank that has died, and what we say of it."""
