"""Shared buffers: memory that ranks of one machine share, and what happens where there is none."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from autoshard.runtime.shared_buffer import _KEEPS_ORDER, SharedBuffer, shared_buffer_of

_HELD = (2 << 16) + 2 * 64
"""Bytes of two halves and two counts."""


class Communicator:
    """One rank's, as mpi4py has it, whose messages never come; `told` is what the first rank told of its memory."""

    def __init__(self, told: list[int] | None = None, rank: int = 0, ranks: int = 1) -> None:
        self._told, self._rank, self._ranks, self.probes = told, rank, ranks, 0

    def Get_rank(self) -> int:
        return self._rank

    def Get_size(self) -> int:
        return self._ranks

    def Bcast(self, array: np.ndarray, root: int) -> None:
        if self._told is not None:
            array[:] = self._told

    def Allgather(self, sent: np.ndarray, received: np.ndarray) -> None:
        received[:] = sent

    def Barrier(self) -> None:
        raise AssertionError("MPI's barrier is for processors that do not keep the order of what is written")

    def Iprobe(self) -> None:
        self.probes += 1


@pytest.fixture
def told() -> Iterator[list[int]]:
    """What the first rank tells of memory for two ranks."""
    held = os.memfd_create("autoshard-2a")
    os.truncate(held, _HELD)
    yield [os.getpid(), held, 0x2A]
    os.close(held)


def test_halves_are_apart_and_taken_in_turn():
    found = shared_buffer_of(Communicator(), 4000)
    assert found is not None
    first, second = found.places((10, 6), np.dtype(np.float32))
    first[...], second[...] = 1, 2
    assert first.shape == (1, 10, 6) and (first == 1).all() and (second == 2).all()
    assert [found.turn() for _ in range(3)] == [1, 0, 1]


def test_what_others_map_is_the_same_memory(told):
    (one, _), (other, _) = (
        shared_buffer_of(Communicator(told, 1), 400).places((4, 6), np.dtype(np.int32))  # type: ignore[union-attr]
        for _ in range(2)
    )
    one[...] = 7
    assert (other == 7).all()


@pytest.mark.skipif(not _KEEPS_ORDER, reason="ranks meet by MPI on this processor")
def test_who_comes_first_waits_for_the_other_and_looks_after_its_messages(told):
    early, late = (Communicator(told, rank, 2) for rank in (1, 1))
    first = shared_buffer_of(early, 400)
    assert first is not None
    late._rank = 0  # the first rank makes the memory; here it has been made
    second = SharedBuffer(late, first._memory, first.size)
    met: list[int] = []

    def meet_often() -> None:
        for turn in range(50):
            first.barrier()
            met.append(turn)

    thread = threading.Thread(target=meet_often)
    thread.start()
    for turn in range(50):
        seen = early.probes
        until = time.monotonic() + 10
        while early.probes < seen + 2:
            assert time.monotonic() < until, "nobody waits"
            time.sleep(1e-4)
        assert len(met) == turn
        second.barrier()
    thread.join(10)
    assert met == list(range(50))


@pytest.mark.parametrize("token", [0x2B, 0x2, 0x2A2A])
def test_memory_of_another_name_is_not_taken(told, token):
    assert shared_buffer_of(Communicator([*told[:2], token], 1), 400) is None


def test_a_process_that_is_not_here_has_no_buffer():
    assert shared_buffer_of(Communicator([2**22 + 1, 3, 0x2A], 1), 400) is None


def test_without_shared_memory_there_is_no_buffer(monkeypatch):
    def refuse(_: str) -> int:
        raise OSError("no memory")

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert shared_buffer_of(Communicator(), 400) is None
