"""Shared buffers: memory that ranks of one machine share, and what happens where there is none."""

from __future__ import annotations

import os

import numpy as np
import pytest

from autoshard.runtime.shared_buffer import shared_buffer_of


class Alone:
    """A communicator of one rank, as mpi4py has it; `told` is what the first rank told of its memory."""

    def __init__(self, told: list[int] | None = None) -> None:
        self._told = told
        self.Barrier = lambda: None

    def Get_rank(self) -> int:
        return 0 if self._told is None else 1

    def Get_size(self) -> int:
        return 1

    def Bcast(self, array: np.ndarray, root: int) -> None:
        if self._told is not None:
            array[:] = self._told

    def Allgather(self, sent: np.ndarray, received: np.ndarray) -> None:
        received[:] = sent


def test_halves_are_apart_and_taken_in_turn():
    found = shared_buffer_of(Alone(), 4000)
    assert found is not None
    first, second = found.places((10, 6), np.dtype(np.float32))
    first[...], second[...] = 1, 2
    assert first.shape == (1, 10, 6) and (first == 1).all() and (second == 2).all()
    assert [found.turn() for _ in range(3)] == [1, 0, 1]


def test_what_others_map_is_the_same_memory():
    held = os.memfd_create("autoshard-2a")
    try:
        os.truncate(held, 2 << 16)
        told = [os.getpid(), held, 0x2A]
        (one, _), (other, _) = (shared_buffer_of(Alone(told), 400).places((4, 6), np.dtype(np.int32)) for _ in range(2))  # type: ignore[union-attr]
        one[...] = 7
        assert (other == 7).all()
    finally:
        os.close(held)


@pytest.mark.parametrize("token", [0x2B, 0x2, 0x2A2A])
def test_memory_of_another_name_is_not_taken(token):
    held = os.memfd_create("autoshard-2a")
    try:
        assert shared_buffer_of(Alone([os.getpid(), held, token]), 400) is None
    finally:
        os.close(held)


def test_a_process_that_is_not_here_has_no_buffer():
    assert shared_buffer_of(Alone([2**22 + 1, 3, 0x2A]), 400) is None


def test_without_shared_memory_there_is_no_buffer(monkeypatch):
    def refuse(_: str) -> int:
        raise OSError("no memory")

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert shared_buffer_of(Alone(), 400) is None
