"""Measurements: how long an action takes among ranks that act together, and what such a time is of.

`seconds_each(action, agree)` is the entry. Nothing here knows what the action does or how ranks talk.

>>> 0 < seconds_each(lambda: sum(range(1000)), budget=0.01) < 1
True
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
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
    """Seconds that a program took, and those that its parts were said to take: operators, and so many collectives; and
    how many tensors were put into buffers that these share."""

    name: str
    computing: float
    talking: float
    collectives: float
    packed: int
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
    return seconds_in_turn([action], agree, budget=budget, rounds=rounds)[0]


def seconds_in_turn(
    actions: Sequence[Callable[[], object]], agree: Agree = alone, *, budget: float = 0.05, rounds: int = ROUNDS
) -> list[float]:
    """`seconds_each` of several actions, which take turns: what slows the machine for a while slows all of them.

    Args:
        budget: seconds for each of them.
    """
    if not budget > 0 or rounds < 1:
        raise ValueError(f"a budget of {budget} seconds for {rounds} rounds: both are numbers above 0")
    counts = [_calls(action, agree, budget, rounds) for action in actions]
    turns: list[list[float]] = [[] for _ in actions]
    for i in range(max((many for _, many in counts), default=0)):
        for action, (count, many), found in zip(actions, counts, turns, strict=True):
            if i < many:
                found.append(_round(action, count, agree))
    return [min(found) for found in turns]


def _calls(action: Callable[[], object], agree: Agree, budget: float, rounds: int) -> tuple[int, int]:
    """How many calls make a round, and how many rounds there are."""
    _round(action, 1, agree)
    first = _round(action, 1, agree)
    # A first call is often slow; what it suggests is corrected by some more.
    each = _round(action, _count(first, budget / (4 * rounds)), agree)
    count = _count(each, budget / rounds)
    # What takes long by itself is not done as often.
    return count, min(rounds, max(_LEAST_ROUNDS, int(budget / (count * each))))


def _count(each: float, seconds: float) -> int:
    return max(1, min(_MOST, int(seconds / max(each, 1e-9))))


def _round(action: Callable[[], object], count: int, agree: Agree) -> float:
    agree(0.0)
    start = time.perf_counter()
    for _ in range(count):
        action()
    agree(0.0)
    return agree(time.perf_counter() - start) / count
