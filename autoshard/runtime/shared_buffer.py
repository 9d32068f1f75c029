"""A buffer that all ranks of a group write to and read, where they run on one machine.

    buffer = shared_buffer_of(mpi, 1 << 20)        # by all ranks of the communicator together
    first, second = buffer.places((4, 6), dtype)  # two arrays of a place for each rank
    buffer.barrier()

Collectives take the two halves in turn: each rank writes its place, all meet, each reads. Whoever writes the first half
again has met all others over the second one, so they have read what was there.

Ranks meet in the memory itself: each counts there how often it has come, and yields its processor until all others
have come as often. Where ranks are more than processors this is what counts: MPI's barrier is several rounds of
messages, for each of which a rank has to be given a processor anew.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import platform
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np

_NAME = "autoshard-{:x}"
_PAGES = 1 << 16
"""Bytes that a buffer's half has at least."""
_LINE = 8
"""Whole numbers of 64 bits in a line of a processor's cache: each rank's count has its own."""
_WAITS = 64
"""How often a rank yields before it looks after MPI's messages again."""
_KEEPS_ORDER = platform.machine() == "x86_64"
"""Other processors see what one writes in the order in which it does (Intel SDM volume 3A, section 9.2.2). Where they
need not, only MPI knows how to make them."""


class SharedBuffer:
    """Two halves of `size` bytes and behind them a count of each rank, shared by those of the communicator `mpi`."""

    def __init__(self, mpi: Any, memory: mmap.mmap, size: int) -> None:
        self.rank: int = mpi.Get_rank()
        self.ranks: int = mpi.Get_size()
        self.size, self._memory, self.last = size, memory, 0
        self.come, self.wait, self.barrier = self._meeting(mpi)

    def _meeting(self, mpi: Any) -> tuple[Callable[[], None] | None, Callable[[], None], Callable[[], None]]:
        """What says that this rank has come, what waits until all have, as often, and both, after which is there what
        they wrote before they came. Without the first all are MPI's."""
        if not _KEEPS_ORDER:
            return None, mpi.Barrier, mpi.Barrier
        counts = memoryview(self._memory)[2 * self.size :].cast("q")
        own, *others = (rank * _LINE for rank in (self.rank, *range(self.rank), *range(self.rank + 1, self.ranks)))
        let_others, let_mpi = os.sched_yield, mpi.Iprobe

        def come() -> None:
            counts[own] += 1

        def wait() -> None:
            now, waits = counts[own], 0
            for other in others:
                while counts[other] < now:
                    let_others()
                    waits += 1
                    if not waits % _WAITS:  # what others wait for may still be on its way out of this process
                        let_mpi()

        def barrier() -> None:
            come()
            wait()

        return come, wait, barrier

    def turn(self) -> int:
        """Which half is next, 0 or 1."""
        self.last = 1 - self.last
        return self.last

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
    whole = 2 * size + 8 * _LINE * mpi.Get_size()
    told, held = np.zeros(3, np.int64), None
    if mpi.Get_rank() == 0:
        with contextlib.suppress(OSError, AttributeError):  # not on Linux, or no memory is left
            token = secrets.randbits(62)
            held = os.memfd_create(_NAME.format(token))
            os.truncate(held, whole)
            told[:] = os.getpid(), held, token
    mpi.Bcast(told, 0)
    memory = None
    with contextlib.suppress(OSError, ValueError):
        process, number, token = told.tolist()
        memory = _mapped(process, number, token, whole)
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
