"""What ranks do together: tell each other texts, and fail all when one fails, with its message."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from autoshard.layout.mesh import Mesh
from autoshard.runtime.comm import Comm
from autoshard.util.errors import AutoshardError, CheckpointError

T = TypeVar("T")


def from_all(comm: Comm, text: str) -> list[str]:
    """The texts of all processes: of all ranks in order, or the one of the process that hosts all ranks."""
    if len(comm.ranks) == comm.world:
        return [text]
    data = np.frombuffer(text.encode(), np.uint8)
    sizes = _rows(comm, np.array([data.size], np.int64))[:, 0]
    if not sizes.any():
        return [""] * comm.world
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: data.size] = data
    return [row[:size].tobytes().decode() for row, size in zip(_rows(comm, padded), sizes, strict=True)]


def _rows(comm: Comm, mine: np.ndarray) -> np.ndarray:
    mesh = Mesh.flat(comm.world)
    return comm.all_gather([mine[None]], mesh.groups(mesh.all_axes), 0)[0]


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
