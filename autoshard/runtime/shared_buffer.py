"""A buffer that all ranks of a group write to and read, where they run on one machine.

    buffer = shared_buffer_of(mpi, 1 << 20)        # by all ranks of the communicator together
    first, second = buffer.places((4, 6), dtype)  # two arrays of a place for each rank
    buffer.barrier()

Collectives take the two halves in turn: each rank writes its place, all meet, each reads. Whoever writes the first half
again has met all others over the second one, so they have read what was there.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np

_NAME = "autoshard-{:x}"
_PAGES = 1 << 16
"""Bytes that a buffer's half has at least."""


class SharedBuffer:
    """Two halves of `size` bytes, shared by the ranks of the communicator `mpi`."""

    def __init__(self, mpi: Any, memory: mmap.mmap, size: int) -> None:
        self.rank: int = mpi.Get_rank()
        self.ranks: int = mpi.Get_size()
        self.barrier: Callable[[], None] = mpi.Barrier
        """Returns when all ranks have come. MPI orders what it sends behind what was written before."""
        self.size, self._memory, self._turn = size, memory, 0

    def turn(self) -> int:
        """Which half is next, 0 or 1."""
        self._turn = 1 - self._turn
        return self._turn

    def places(self, shape: tuple[int, ...], dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
        """In each half an array [ranks, *shape]."""
        count = self.ranks * math.prod(shape)
        halves = (np.frombuffer(self._memory, dtype, count, half * self.size) for half in (0, 1))
        first, second = (one.reshape(self.ranks, *shape) for one in halves)
        return first, second


def shared_buffer_of(mpi: Any, nbytes: int) -> SharedBuffer | None:
    """A shared buffer on which each rank of the communicator has `nbytes`; None if they have no memory in common.

    The memory has no name in any folder: nothing is left of it when the ranks end, however they do.
    """
    size = max(_PAGES, 1 << (mpi.Get_size() * nbytes - 1).bit_length())
    told, held = np.zeros(3, np.int64), None
    if mpi.Get_rank() == 0:
        with contextlib.suppress(OSError, AttributeError):  # not on Linux, or no memory is left
            token = secrets.randbits(62)
            held = os.memfd_create(_NAME.format(token))
            os.truncate(held, 2 * size)
            told[:] = os.getpid(), held, token
    mpi.Bcast(told, 0)
    memory = None
    with contextlib.suppress(OSError, ValueError):
        process, number, token = told.tolist()
        memory = _mapped(process, number, token, 2 * size)
    are_all = np.zeros(mpi.Get_size(), np.int64)
    mpi.Allgather(np.array([memory is not None], np.int64), are_all)
    if held is not None:
        os.close(held)
    return SharedBuffer(mpi, memory, size) if memory is not None and are_all.all() else None


def _mapped(process: int, number: int, token: int, size: int) -> mmap.mmap | None:
    """The memory that a process of this machine has under this number of a file; None if it has another one there."""
    path = f"/proc/{process}/fd/{number}"
    if not process or not os.readlink(path).startswith(f"/memfd:{_NAME.format(token)} "):
        return None
    file = os.open(path, os.O_RDWR)
    try:
        return mmap.mmap(file, size)
    finally:
        os.close(file)
