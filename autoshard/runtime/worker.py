"""What each rank runs: `python -m autoshard.runtime.worker SCRIPT args...` runs SCRIPT as __main__ under MPI.

A rank that fails says so and ends all ranks, else the others would wait for it for ever. Its report is marked
line by line; the launcher's `StderrFilter` knows the marks and shows a report once when all ranks fail alike.
Should a rank be ended before it can speak, the launcher reads what it was doing from its `RankProgress`; should the
launcher be ended, the rank notices and ends too.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import io
import os
import runpy
import shutil
import sys
import threading
from pathlib import Path

from autoshard.runtime.failing import end_all, fail, flush, rank_of, report
from autoshard.runtime.mpi import import_mpi, meeting
from autoshard.runtime.mpiexec import DEATH
from autoshard.runtime.progress import FOLDER, note_end, of_this_rank
from autoshard.runtime.watch import ASK_STACK, LIFELINE
from autoshard.util.errors import RuntimeSetupError

_ORPHANED = 1


def main(arguments: list[str]) -> None:
    """Run the script `arguments[0]` with the remaining arguments on this rank."""
    script = arguments[0]
    # The first that is registered is called last: what the script has called at its end may still communicate.
    atexit.register(note_end)
    _follow_launcher()
    _leave_traces()
    try:
        _check_world()
        _promise_end()
        sys.argv = list(arguments)
        _search_beside(script)
        _print_whole_lines()
        runpy.run_path(script, run_name="__main__")
        flush()
    except SystemExit as stop:
        _leave(stop)
    except KeyboardInterrupt:
        end_all(import_mpi, 130)
    except BaseException as error:
        fail(import_mpi, error, script)


def _follow_launcher() -> None:
    """End this rank at once when the launcher has gone, for however it went: nobody would end the rank then."""
    folder = os.environ.get(FOLDER)
    if folder:
        threading.Thread(target=_await_end, args=(Path(folder) / LIFELINE,), daemon=True).start()


def _await_end(lifeline: Path) -> None:
    with contextlib.suppress(OSError):
        # Without waiting for a writer: a pipe that has none, or no pipe at all, is a launcher that has gone.
        pipe = os.open(lifeline, os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(pipe, True)
        os.read(pipe, 1)
        # What a launcher that was killed has left behind; otherwise it has removed this itself.
        shutil.rmtree(lifeline.parent, ignore_errors=True)
    os._exit(_ORPHANED)


def _promise_end() -> None:
    """Where the launcher cannot see this rank, say to it at the end that it has come to it.

    Mpiexec does not always: it ends with 0 when a host is lost.
    """
    if os.environ.get(FOLDER) == "":
        atexit.register(_say_end, rank_of(import_mpi))


def _say_end(rank: int) -> None:
    flush()
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"{DEATH}{rank}{DEATH}\n")
        sys.stderr.flush()


def _leave_traces() -> None:
    """Have Python write its stack where the launcher finds it, when this rank crashes or the launcher asks."""
    if progress := of_this_rank():
        faulthandler.enable(progress.stack, all_threads=False)
        faulthandler.register(ASK_STACK, progress.stack, all_threads=False)


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


def _leave(stop: SystemExit) -> None:
    """What `sys.exit` asked for: an ordinary end for None or 0, otherwise the end of all ranks with that
    code."""
    if stop.code is None or stop.code == 0:
        flush()
    elif isinstance(stop.code, int):
        report(import_mpi, f"rank {rank_of(import_mpi)} ended with exit code {stop.code}")
        end_all(import_mpi, stop.code & 0xFF or 1)
    else:
        report(import_mpi, f"rank {rank_of(import_mpi)} failed: {stop.code}")
        end_all(import_mpi, 1)


def _check_world() -> None:
    """Raise RuntimeSetupError if the MPI library of mpi4py does not see the ranks that were started."""
    expected = os.environ.get("AUTOSHARD_RANKS")
    with meeting("start of MPI", range(int(expected or 0))):
        found = import_mpi().COMM_WORLD.Get_size()
    if expected is None or int(expected) == found:
        return
    library = import_mpi().Get_library_version().splitlines()[0].rstrip("\0")
    raise RuntimeSetupError(
        f"{expected} ranks were started, but MPI sees {found}: mpiexec does not belong to the library that"
        f" mpi4py uses ({library}); name the right one in AUTOSHARD_MPIEXEC"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
