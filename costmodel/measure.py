"""Measurements: how long an action takes among ranks that act together, and what such a time is of.

`seconds_each(action, agree)` is the entry. Nothing here knows what the action does or how ranks talk.

>>> 0 < seconds_each(lambda: sum(range(1000)), budget=0.01) < 1
True
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

Agree = Callable[[float], float]
"""The largest of what the ranks give, on all of them at once: a rank goes on when all have come."""

ROUNDS = 5
_MOST = 10_000
_LEAST_ROUNDS = 3


@dataclass(frozen=True)
class CollectiveSample:
    """Seconds that a collective of `nbytes` (counted as in `collectives.seconds`) took in groups of `ranks`."""

    kind: str
    ranks: int
    nbytes: int
    seconds: float


@dataclass(frozen=True)
class OperatorSample:
    """Seconds that an operator took that does `flops` operations on `nbytes` of operands and results."""

    operator: str
    dtype: str
    flops: float
    nbytes: int
    seconds: float


@dataclass(frozen=True)
class ProgramSample:
    """Seconds that a device took for operators one after the other, each (operator, dtype, flops, nbytes)."""

    name: str
    work: tuple[tuple[str, str, float, int], ...]
    seconds: float


def alone(seconds: float) -> float:
    """`agree` for one process."""
    return seconds


def seconds_each(
    action: Callable[[], object], agree: Agree = alone, *, budget: float = 0.05, rounds: int = ROUNDS
) -> float:
    """Seconds of one call of `action`, all ranks calling it as often: the least of the rounds.

    A round is many calls in a row and ends when all ranks are done, so that the turns that ranks take on shared
    cores count; the rounds together take about `budget` seconds. The least is what the machine can do: other
    processes only ever add to it. All ranks call this together.
    """
    if not budget > 0 or rounds < 1:
        raise ValueError(f"a budget of {budget} seconds for {rounds} rounds: both are numbers above 0")
    _round(action, 1, agree)
    first = _round(action, 1, agree)
    # A first call is often slow; what it suggests is corrected by some more.
    each = _round(action, _count(first, budget / (4 * rounds)), agree)
    count = _count(each, budget / rounds)
    # What takes long by itself is not done as often.
    rounds = min(rounds, max(_LEAST_ROUNDS, int(budget / (count * each))))
    return min(_round(action, count, agree) for _ in range(rounds))


def _count(each: float, seconds: float) -> int:
    return max(1, min(_MOST, int(seconds / max(each, 1e-9))))


def _round(action: Callable[[], object], count: int, agree: Agree) -> float:
    agree(0.0)
    start = time.perf_counter()
    for _ in range(count):
        action()
    agree(0.0)
    return agree(time.perf_counter() - start) / count
