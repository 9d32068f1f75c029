"""What is being done, told to whoever listens: the command line shows it. As long as nobody listens, nothing is said.

with doing("searching by optimal"):
    ...
    so_far(best=0.012, bound=0.011)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class Listener(Protocol):
    """Hears what begins and ends, and what a search has found so far."""

    def begin(self, what: str) -> None: ...

    def end(self) -> None: ...

    def so_far(self, best: float | None, bound: float | None) -> None: ...


_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Say what is done in this block, in words like "reading the model"; blocks may lie in each other."""
    listener = _LISTENER.get()
    if listener is None:
        yield
        return
    listener.begin(what)
    try:
        yield
    finally:
        listener.end()


def so_far(best: float | None = None, bound: float | None = None) -> None:
    """Say what a search knows by now.

    Args:
        best: what the best plan so far costs, in seconds of a step.
        bound: the seconds that no plan goes below.
    """
    if (listener := _LISTENER.get()) is not None:
        listener.so_far(best, bound)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Let a listener hear what is done in this block."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)
