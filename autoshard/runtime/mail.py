"""Messages from rank to rank at any time, beside collectives: nobody waits for them but who needs what they bring.

Messages with one tag from one rank to another arrive in the order in which they are sent. Sending never waits: what is
sent may not be written to before `finish`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from autoshard.runtime.comm import CommError

Channel = tuple[int, int, int]
"""Source, target, tag."""


class Mail(ABC):
    """Messages between the ranks of a world."""

    @abstractmethod
    def send(self, channel: Channel, array: np.ndarray) -> None:
        """Send an array; its source is hosted here."""

    @abstractmethod
    def expect(self, channel: Channel, count: int, dtype: np.dtype) -> Letter:
        """Be ready for the next array of so many elements; its target is hosted here."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until all that was sent has gone."""

    def advance(self) -> None:
        """Let messages go on; to be called now and then while computing."""
        return


class Letter:
    """A message that is expected."""

    def __init__(self, is_there: Callable[[], bool], take: Callable[[], np.ndarray]) -> None:
        self.is_there, self.take = is_there, take


class LocalMail(Mail):
    """All ranks in this process. A letter is taken when it is there; nobody can wait for it."""

    def __init__(self) -> None:
        self._sent: dict[Channel, dict[int, np.ndarray]] = defaultdict(dict)
        self._counts: dict[Channel, int] = defaultdict(int)
        self._expected: dict[Channel, int] = defaultdict(int)

    def send(self, channel: Channel, array: np.ndarray) -> None:
        """Keep a copy until it is taken."""
        self._sent[channel][self._counts[channel]] = array.copy()
        self._counts[channel] += 1

    def expect(self, channel: Channel, count: int, dtype: np.dtype) -> Letter:
        number = self._expected[channel]
        self._expected[channel] += 1
        held = self._sent[channel]

        def take() -> np.ndarray:
            array = held.pop(number)
            if array.size != count or array.dtype != dtype:
                raise CommError(
                    f"rank {channel[1]} expects {count} elements of {dtype} of rank {channel[0]}, who sends "
                    f"{array.size} of {array.dtype}"
                )
            return array

        return Letter(lambda: number in held, take)

    def finish(self) -> None:
        """Check that all was taken."""
        left = [channel for channel, held in self._sent.items() if held]
        if left:
            source, target, _ = left[0]
            raise CommError(f"rank {source} has sent something to rank {target} that nobody takes")


class MpiMail(Mail):
    """One rank of many, over an mpi4py communicator of its own.

    Args:
        comm: no other messages go over it.
    """

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self._going: list[tuple[Any, np.ndarray]] = []

    def send(self, channel: Channel, array: np.ndarray) -> None:
        _, target, tag = channel
        held = np.ascontiguousarray(array)
        self._going = [one for one in self._going if not one[0].Test()]
        self._going.append((self._comm.Isend(_bytes(held), dest=target, tag=tag), held))

    def expect(self, channel: Channel, count: int, dtype: np.dtype) -> Letter:
        source, _, tag = channel
        held = np.empty(count, dtype)
        request = self._comm.Irecv(_bytes(held), source=source, tag=tag)

        def take() -> np.ndarray:
            request.Wait()
            return held

        return Letter(request.Test, take)

    def finish(self) -> None:
        for request, _ in self._going:
            request.Wait()
        self._going.clear()

    def advance(self) -> None:
        self._comm.Iprobe()


def _bytes(array: np.ndarray) -> np.ndarray:
    """The memory of an array; a message may have any element type."""
    return array.reshape(-1).view(np.uint8)
