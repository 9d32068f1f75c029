"""Clocks: how long an action takes on a device of torch, on which it may be begun long before it is done.

seconds = seconds_of(lambda: torch.mm(a, b), event_clock, budget=0.05)
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

Action = Callable[[], object]
Clock = Callable[[Action, int], float]
"""Seconds of each of so many calls in a row."""

ROUNDS = 7
_WARM = 3
"""Calls before anything counts: libraries load kernels, and choose among them, when they are first called."""
_MOST = 10_000


def host_clock(action: Action, count: int) -> float:
    """By the host: for devices on which a call ends when it is done."""
    begun = time.perf_counter()
    for _ in range(count):
        action()
    return (time.perf_counter() - begun) / count


def event_clock(action: Action, count: int) -> float:
    """By events that the present CUDA device itself records before and after."""
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    for _ in range(count):
        action()
    after.record()
    after.synchronize()
    return before.elapsed_time(after) / 1e3 / count


def clock_of(device: torch.device) -> Clock:
    """The clock for what a device does."""
    return event_clock if device.type == "cuda" else host_clock


def seconds_of(action: Action, clock: Clock, budget: float, rounds: int = ROUNDS) -> float:
    """Seconds of a call: the median of rounds of many calls in a row, which together take about `budget` seconds.

    The median, for a device has no core that others take away: its power and heat move it both ways.
    """
    if not budget > 0 or rounds < 1:
        raise ValueError(f"a budget of {budget} seconds for {rounds} rounds: both are numbers above 0")
    clock(action, _WARM)
    each = clock(action, 1)
    count = max(1, min(_MOST, int(budget / rounds / max(each, 1e-9))))
    return statistics.median(clock(action, count) for _ in range(rounds))
