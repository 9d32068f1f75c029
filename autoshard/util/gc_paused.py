"""Keeps Python's garbage collector out of long builds of objects that all stay alive.

A working copy is many thousands of objects that refer to each other. While it grows the collector walks them over and
over and frees next to nothing, at a third of the whole cost. Nor does it walk all that was made right afterwards, and
once more soon: that is counted as old, and looked at when there is much of it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_LOCK = Lock()
_inside, _was_on, _unseen = 0, True, 0
FEW = 1 << 17
"""Objects of a pause up to which the collector may look at them as at others: to ask what is frozen takes as
long as there is of it."""
MANY = 1 << 21
"""How many objects pauses leave, together, before the collector looks at them: what is dead takes some 200 MiB then."""


@contextmanager
def gc_paused() -> Iterator[None]:
    """Collects nothing inside; the last one to leave, of all threads, restores what the first one found.

    with gc_paused():
        build()
    """
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _inside, _was_on
    with _LOCK:
        if not _inside:
            _was_on = gc.isenabled()
            gc.disable()
        _inside += 1


def _leave() -> None:
    global _inside
    with _LOCK:
        _inside -= 1
        if not _inside and _was_on:
            _age()
            gc.enable()


def _age() -> None:
    """Have what was made in the pause count as old at once, as if it had lived through two looks; if pauses have made
    many objects since all were looked at, they are now. Where somebody keeps objects away from the collector all stays
    as it is, for what is frozen can only thaw together."""
    global _unseen
    made = gc.get_count()[0]
    if made < FEW or gc.get_freeze_count():
        return
    _unseen += made
    if _unseen < MANY:
        gc.freeze()
        gc.unfreeze()
    else:
        _unseen = 0
        gc.collect()
