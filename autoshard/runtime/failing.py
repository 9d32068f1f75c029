"""How a rank that fails says so and ends all ranks; `mpi` gives the MPI library, whose import starts MPI."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

from autoshard.runtime.progress import FAILING, of_this_rank
from autoshard.runtime.reports import MARK
from autoshard.util.errors import AutoshardError, RuntimeSetupError
from autoshard.util.source import location_text

Library = Callable[[], Any]
_DRAIN_SECONDS = 0.2


def fail(mpi: Library, error: BaseException, script: str | None = None) -> NoReturn:
    """Report `error` with its traceback (from `script` on) as the failure of this rank, and end all ranks.

    Of an error that autoshard raises on purpose only the script's own lines are shown, if it is in any, unless
    AUTOSHARD_DEBUG=1.
    """
    trace = _from_script(error.__traceback__, script)
    if isinstance(error, AutoshardError) and os.environ.get("AUTOSHARD_DEBUG", "0") in ("", "0"):
        lines = location_text(error, until=True) or []
    else:
        lines = "".join(traceback.format_exception(type(error), error, trace)).splitlines()
    message = str(error)
    report(mpi, *lines, f"rank {rank_of(mpi)} failed: {type(error).__name__}{': ' if message else ''}{message}")
    end_all(mpi, 1)


def report(mpi: Library, *lines: str) -> None:
    """Write lines to stderr, marked as this rank's failure if a launcher is there to read the marks."""
    marked = os.environ.get("AUTOSHARD_LAUNCHED") == "1"
    prefix = f"{MARK}{rank_of(mpi)}{MARK}" if marked else ""
    text = "".join(f"{prefix}{line}\n" for block in lines for line in block.split("\n"))
    flush()
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()


def end_all(mpi: Library, code: int) -> NoReturn:
    """End every rank of the job; `code` becomes the exit code of the launcher."""
    if progress := of_this_rank():
        progress.end(FAILING)
    flush()
    # Output travels through the MPI launcher, which stops reading soon after an abort.
    time.sleep(_DRAIN_SECONDS)
    with contextlib.suppress(RuntimeSetupError):
        mpi().COMM_WORLD.Abort(code)
    os._exit(code)


def rank_of(mpi: Library) -> int:
    try:
        return mpi().COMM_WORLD.Get_rank()
    except RuntimeSetupError:
        return int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0")))


def _from_script(trace: TracebackType | None, script: str | None) -> TracebackType | None:
    """The traceback without the frames that merely started the script; all of it if the script is not in
    there."""
    step = trace
    while step is not None and step.tb_frame.f_code.co_filename != script:
        step = step.tb_next
    return step or trace


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
