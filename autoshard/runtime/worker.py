"""What each rank runs: `python -m autoshard.runtime.worker SCRIPT args...` runs SCRIPT as __main__ under MPI.

A rank that fails says so and ends all ranks, else the others would wait for it for ever. Its report is marked
line by line; the launcher's `StderrFilter` knows the marks, shows a report once when all ranks fail alike,
and drops the banners that MPI launchers print around it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from autoshard.errors import RuntimeSetupError
from autoshard.runtime.mpi import import_mpi

MARK = "\x1e"
"""Begins a line of a report, `MARK rank MARK text`: ASCII's record separator, not found in ordinary
output."""

_DRAIN_SECONDS = 0.2


def main(arguments: list[str]) -> None:
    """Run the script `arguments[0]` with the remaining arguments on this rank."""
    script = arguments[0]
    try:
        _check_world()
        sys.argv = list(arguments)
        _search_beside(script)
        _print_whole_lines()
        runpy.run_path(script, run_name="__main__")
        _flush()
    except SystemExit as stop:
        _leave(stop)
    except KeyboardInterrupt:
        end_all(130)
    except BaseException as error:
        fail(error, script)


def _search_beside(script: str) -> None:
    """Let imports find the script's neighbours first, and not the working directory, as plain Python does."""
    if sys.path and sys.path[0] in ("", str(Path.cwd())):
        del sys.path[0]
    sys.path.insert(0, str(Path(script).resolve().parent))


def _print_whole_lines() -> None:
    """Send output line by line at once: sooner would mix the lines of ranks, later would lose some at an
    abort."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)


def fail(error: BaseException, script: str | None = None) -> NoReturn:
    """Report `error` with its traceback (from `script` on) as the failure of this rank, and end all ranks."""
    trace = _from_script(error.__traceback__, script)
    lines = "".join(traceback.format_exception(type(error), error, trace)).splitlines()
    message = str(error)
    report(*lines, f"rank {_rank()} failed: {type(error).__name__}{': ' if message else ''}{message}")
    end_all(1)


def report(*lines: str) -> None:
    """Write lines to stderr, marked as this rank's failure if a launcher is there to read the marks."""
    marked = os.environ.get("AUTOSHARD_LAUNCHED") == "1"
    prefix = f"{MARK}{_rank()}{MARK}" if marked else ""
    text = "".join(f"{prefix}{line}\n" for block in lines for line in block.split("\n"))
    _flush()
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()


def end_all(code: int) -> NoReturn:
    """End every rank of the job; `code` becomes the exit code of the launcher."""
    _flush()
    # Output travels through the MPI launcher, which stops reading soon after an abort.
    time.sleep(_DRAIN_SECONDS)
    with contextlib.suppress(RuntimeSetupError):
        import_mpi().COMM_WORLD.Abort(code)
    os._exit(code)


def _leave(stop: SystemExit) -> None:
    """What `sys.exit` asked for: an ordinary end for None or 0, otherwise the end of all ranks with that
    code."""
    if stop.code is None or stop.code == 0:
        _flush()
    elif isinstance(stop.code, int):
        report(f"rank {_rank()} ended with exit code {stop.code}")
        end_all(stop.code & 0xFF or 1)
    else:
        report(f"rank {_rank()} failed: {stop.code}")
        end_all(1)


def _check_world() -> None:
    """Raise RuntimeSetupError if the MPI library of mpi4py does not see the ranks that were started."""
    expected, found = os.environ.get("AUTOSHARD_RANKS"), import_mpi().COMM_WORLD.Get_size()
    if expected is None or int(expected) == found:
        return
    library = import_mpi().Get_library_version().splitlines()[0].rstrip("\0")
    raise RuntimeSetupError(
        f"{expected} ranks were started, but MPI sees {found}: mpiexec does not belong to the library that"
        f" mpi4py uses ({library}); name the right one in AUTOSHARD_MPIEXEC"
    )


def _rank() -> int:
    try:
        return import_mpi().COMM_WORLD.Get_rank()
    except RuntimeSetupError:
        return int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0")))


def _from_script(trace: TracebackType | None, script: str | None) -> TracebackType | None:
    """The traceback without the frames that merely started the script; all of it if the script is not in
    there."""
    step = trace
    while step is not None and step.tb_frame.f_code.co_filename != script:
        step = step.tb_next
    return step or trace


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


# -- the launcher's side of the reports ----------------------------------------------------------------------


class StderrFilter:
    """Turns the stderr of mpiexec into what the user should see; bytes in, bytes out.

    Everything passes at once except: reports, of which the first is shown in full and the others in one line
    each at the end; and banners of Open MPI and MPICH that only repeat that a rank has ended. When no rank
    could report (it was killed, or left with `os._exit`), the rank and the reason are taken from the banner.
    """

    def __init__(self) -> None:
        self._partial = b""
        self._midline = False
        self._banner: list[bytes] = []
        self._reporter: str | None = None
        self._failures: dict[str, str] = {}
        self._notes: list[str] = []

    def feed(self, chunk: bytes) -> bytes:
        """What to show after `chunk` has arrived. Incomplete lines that may become a mark or banner are
        held."""
        # Open MPI writes its banners with the NUL that ends a C string.
        *lines, rest = (self._partial + chunk.replace(b"\0", b"")).split(b"\n")
        shown = b"".join(self._line(line + b"\n") for line in lines)
        hold = self._banner or MARK.encode() in rest or (not self._midline and rest[:1] == b"-")
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

    def _line(self, line: bytes) -> bytes:
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
        if killed := re.search(r"process rank (\d+) .*exited on signal (\d+) \(([^)]*)\)", text):
            self._notes.append(f"rank {killed[1]} failed: ended by signal {killed[2]} ({killed[3]})")
        elif left := re.search(r"Process name: \[[^]]*,(\d+)\] Exit code: (\d+)", text):
            self._notes.append(f"rank {left[1]} failed: exit code {left[2]}")
        return b""

    def _summary(self) -> list[str]:
        if not self._failures:
            return self._notes[:1]
        first = next(iter(self._failures))
        reason = _reason(self._failures[first])
        alike = [rank for rank, text in self._failures.items() if rank != first and _reason(text) == reason]
        lines = [text for rank, text in self._failures.items() if rank != first and rank not in alike]
        if alike:
            lines.append(f"the same on rank{'s' if len(alike) > 1 else ''} {', '.join(sorted(alike, key=int))}")
        return lines


def _reason(text: str) -> str:
    return text.partition(" failed")[2] or text.partition(" ended")[2]


_LONGEST_BANNER = 30
_RULE = re.compile(rb"-{60,}\s*")
_BANNER = re.compile(
    rb"MPI_ABORT was invoked|prterun (has exited|noticed|detected)|mpirun (has exited|noticed|detected)"
    rb"|mpiexec (has exited|noticed|detected)|Primary job +terminated"
)
_STRAY = re.compile(rb"Abort\(\d+\) on node \d+ .*application called MPI_Abort\(")


if __name__ == "__main__":
    main(sys.argv[1:])
