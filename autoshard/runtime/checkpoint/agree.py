"""What ranks do together: fail all when one fails, with its message."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from autoshard.runtime.agree import from_all
from autoshard.runtime.comm import Comm
from autoshard.util.errors import AutoshardError, CheckpointError

T = TypeVar("T")


def together(comm: Comm, what: str, act: Callable[[], T]) -> T:
    """What `act` gives on this process, once it has succeeded on all.

    Raises:
        CheckpointError: it failed on a rank; every rank raises, with the words of the first that failed.
    """
    try:
        result, failure = act(), None
    except Exception as error:
        result, failure = None, error
    told = from_all(comm, "" if failure is None else _words(failure))
    failed = [rank for rank, text in enumerate(told) if text]
    if not failed:
        return result  # type: ignore[return-value]
    if len(told) == 1 and failure is not None and not isinstance(failure, AutoshardError | OSError):
        raise failure
    alike = len(failed) == comm.world and len(set(told)) == 1
    who = "" if len(told) == 1 or alike else f"rank {failed[0]}: "
    raise CheckpointError(f"{what}: {who}{told[failed[0]]}") from failure


def _words(error: Exception) -> str:
    if isinstance(error, AutoshardError):
        return str(error)
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror or error}"
    return f"{type(error).__name__}: {error}"
