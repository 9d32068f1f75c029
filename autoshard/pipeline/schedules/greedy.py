"""A list scheduler: at each moment every free rank does the most urgent action that it can, within a memory cap."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from autoshard.pipeline.schedules.action import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Action
from autoshard.pipeline.schedules.schedule import Orders


def zb_h2(ranks: int, micro_batches: int, chunks: int) -> Orders:
    """No bubble between steps without a barrier, 2p - 1 micro batches in flight (Qi et al., arXiv 2401.10241)."""
    return greedy_orders(ranks, micro_batches, [2 * ranks - 1] * ranks)


def greedy_orders(ranks: int, micro_batches: int, caps: Sequence[int]) -> Orders:
    """An order of forwards, input and weight gradients, one stage a rank, each action taken as one second.

    A rank that is free takes the input gradient that can begin, else the forward if it holds fewer than its cap of
    micro batches, else a weight gradient.

    Args:
        caps: for each rank how many micro batches may have had their forward but not yet their weight gradient.
    """
    ranks_at_work = [_Worker(rank, micro_batches, caps[rank]) for rank in range(ranks)]
    clock = [0]
    while clock:
        now = heapq.heappop(clock)
        while clock and clock[0] == now:
            heapq.heappop(clock)
        begun = [one.begin(now, ranks_at_work) for one in ranks_at_work]
        if any(begun):
            heapq.heappush(clock, now + 1)
    return tuple(tuple(one.order) for one in ranks_at_work)


class _Worker:
    """A rank, and how many of each kind it has done: micro batches pass in order."""

    def __init__(self, rank: int, micro_batches: int, cap: int) -> None:
        self.rank, self.micro_batches, self.cap = rank, micro_batches, cap
        self.order: list[Action] = []
        self.ended: dict[Action, int] = {}
        self.count: dict[str, int] = dict.fromkeys((FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT), 0)

    def begin(self, now: int, workers: Sequence[_Worker]) -> bool:
        """Begin the most urgent action that can begin now; whether there is one."""
        kind = next(
            (kind for kind in (INPUT_GRADIENT, FORWARD, WEIGHT_GRADIENT) if self._can(kind, now, workers)), None
        )
        if kind is None:
            return False
        action = Action(kind, self.rank, self.count[kind])
        self.order.append(action)
        self.ended[action] = now + 1
        self.count[kind] += 1
        return True

    def _can(self, kind: str, now: int, workers: Sequence[_Worker]) -> bool:
        micro = self.count[kind]
        if micro == self.micro_batches:
            return False
        if kind == WEIGHT_GRADIENT:
            return micro < self.count[INPUT_GRADIENT]
        if kind == FORWARD:
            held = self.count[FORWARD] - self.count[WEIGHT_GRADIENT]
            return held < self.cap and (self.rank == 0 or workers[self.rank - 1].has(kind, micro, now))
        last = self.rank == len(workers) - 1
        return self.has(FORWARD, micro, now) and (last or workers[self.rank + 1].has(kind, micro, now))

    def has(self, kind: str, micro: int, now: int) -> bool:
        """Whether one of its actions has ended."""
        return self.ended.get(Action(kind, self.rank, micro), now + 1) <= now
