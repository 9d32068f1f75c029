"""The clock by which searches are limited: `now()`."""

from __future__ import annotations

from time import thread_time


def now() -> float:
    """Seconds of processor time of this thread: what a search finds before its end does not hang on what else the
    machine is doing.

    >>> now() <= now()
    True
    """
    return thread_time()
