"""Schedules whose first and last stage lie on one rank: rank r runs the stages r and 2p - 1 - r.

Sources: Qi et al. (arXiv 2405.15362) for ZBV, DeepSeek's DualPipe in the V form of Sea AI Lab for DualPipeV; the
orders are those of `torch.distributed.pipelining`.
"""

from __future__ import annotations

from collections import Counter, deque

from autoshard.pipeline.schedules.action import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Action
from autoshard.pipeline.schedules.schedule import Orders


class _GrowingOrder:
    """The order of a rank as it grows: the next micro batch of each kind and stage is counted.

    `down` is its stage in the first half, `up` that in the second. Every weight gradient takes the oldest input
    gradient that has none.
    """

    def __init__(self, rank: int, ranks: int) -> None:
        self.down, self.up = rank, 2 * ranks - 1 - rank
        self.order: list[Action] = []
        self.overlapped: set[Action] = set()
        self._done: Counter[tuple[bool, int]] = Counter()
        self._open: deque[tuple[int, int]] = deque()

    def forward(self, stage: int) -> None:
        self.order.append(Action(FORWARD, stage, self._next(True, stage)))

    def input_gradient(self, stage: int) -> None:
        micro = self._next(False, stage)
        self.order.append(Action(INPUT_GRADIENT, stage, micro))
        self._open.append((stage, micro))

    def weight_gradient(self, stage: int | None = None) -> None:
        """The oldest that is open, of one stage or of any; nothing if there is none."""
        found = next((unit for unit in self._open if stage is None or unit[0] == stage), None)
        if found is not None:
            self._open.remove(found)
            self.order.append(Action(WEIGHT_GRADIENT, *found))

    def backward(self, stage: int) -> None:
        self.order.append(Action(BACKWARD, stage, self._next(False, stage)))

    def gradients(self, stage: int) -> None:
        """Both gradients, the one after the other."""
        self.input_gradient(stage)
        self.weight_gradient(stage)

    def pair(self, forward: int, backward: int) -> None:
        """A forward and a backward in one slot."""
        self.forward(forward)
        self.overlapped.add(self.order[-1])
        self.backward(backward)

    def done(self, stage: int) -> int:
        """How many forwards of a stage are in the order."""
        return self._done[True, stage]

    def _next(self, forward: bool, stage: int) -> int:
        self._done[forward, stage] += 1
        return self._done[forward, stage] - 1


def zbv(ranks: int, micro_batches: int, chunks: int) -> Orders:
    """Zero bubble in V form: made for at least 2p - 1 micro batches, without those that are not there."""
    made = max(2 * ranks - 1, micro_batches)
    orders = [_zbv_order(rank, ranks, made) for rank in range(ranks)]
    return tuple(tuple(action for action in order if action.micro < micro_batches) for order in orders)


def _zbv_order(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    one = _GrowingOrder(rank, ranks)
    down, up = one.down, one.up
    for _ in range(2 * (ranks - rank) - 1):
        one.forward(down)
    for _ in range(rank):
        one.forward(up)
        one.forward(down)
    for _ in range(ranks - rank):
        one.forward(up)
        one.gradients(up)
    while one.done(up) < micro_batches:
        if one.done(down) < micro_batches:
            one.forward(down)
        one.gradients(down)
        one.forward(up)
        one.gradients(up)
    for _ in range(rank):
        one.input_gradient(down)
        one.input_gradient(up)
    for _ in range(ranks - rank):
        one.input_gradient(down)
        one.weight_gradient(down)
    for stage in (up, down):
        for _ in range(micro_batches):
            one.weight_gradient(stage)
    return one.order


def dualpipev(ranks: int, micro_batches: int, chunks: int) -> Orders:
    """Forwards of one half beside backwards of the other."""
    return tuple(tuple(_dualpipev_rank(rank, ranks, micro_batches).order) for rank in range(ranks))


def dualpipev_pairs(ranks: int, micro_batches: int, chunks: int) -> frozenset[Action]:
    """The forwards of DualPipeV that share a slot with the backward after them."""
    return frozenset().union(*(_dualpipev_rank(rank, ranks, micro_batches).overlapped for rank in range(ranks)))


def _dualpipev_rank(rank: int, ranks: int, micro_batches: int) -> _GrowingOrder:
    one = _GrowingOrder(rank, ranks)
    _dualpipev_warm_up(one, rank, ranks)
    for turn in range(micro_batches - 2 * ranks + rank + 1):
        if turn == 0 and rank == ranks - 1:
            one.forward(one.down)
            one.backward(one.up)
        else:
            one.pair(one.down, one.up)
        one.pair(one.up, one.down)
    _dualpipev_cool_down(one, rank, ranks)
    return one


def _dualpipev_warm_up(one: _GrowingOrder, rank: int, ranks: int) -> None:
    for _ in range(2 * (ranks - rank - 1)):
        one.forward(one.down)
    for _ in range(rank + 1):
        one.forward(one.down)
        one.forward(one.up)
    for _ in range(ranks - rank - 1):
        one.gradients(one.up)
        one.forward(one.up)


def _dualpipev_cool_down(one: _GrowingOrder, rank: int, ranks: int) -> None:
    """Backwards alone: whole ones in the first half, split ones whose weights wait in the second."""
    for _ in range(ranks - rank - 1):
        one.backward(one.up)
        one.pair(one.up, one.down)
    whole = rank + 1
    for number in range(2 * (rank + 1)):
        stage = one.down if number % 2 else one.up
        (one.backward if number < whole else one.input_gradient)(stage)
    for _ in range(ranks - rank - 1):
        one.weight_gradient()
        one.input_gradient(one.down)
    for _ in range(rank + 1):
        one.weight_gradient()
