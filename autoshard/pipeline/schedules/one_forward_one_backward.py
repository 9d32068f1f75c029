"""Schedules that warm up with forwards and then alternate: 1F1B, interleaved 1F1B, and ZB-H1.

Sources: PipeDream-Flush and Megatron-LM (SC21, arXiv 2104.04473) for 1F1B and its interleaved form, Qi et al. (arXiv
2401.10241) for ZB-H1. With micro batches that the rounds divide the orders are those of `torch.distributed.pipelining`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain

from autoshard.pipeline.schedules.action import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Action
from autoshard.pipeline.schedules.schedule import Orders


def interleaved_1f1b(ranks: int, micro_batches: int, chunks: int) -> Orders:
    """1F1B over all chunks of a rank in turn: rounds of about `ranks` micro batches pass chunk by chunk.

    With one chunk it is 1F1B: rank r warms up with p - 1 - r forwards.
    """
    orders = []
    for rank in range(ranks):
        forwards, backwards = _units(rank, ranks, micro_batches, chunks)
        warm_up = _warm_up(rank, ranks, micro_batches, chunks, hop=1 if chunks == 1 else 2)
        orders.append(_alternating(_each(FORWARD, forwards), _each(BACKWARD, backwards), warm_up))
    return tuple(orders)


def zb_h1(ranks: int, micro_batches: int, chunks: int) -> Orders:
    """1F1B with input gradients as backwards; rank r does the gradients of weights r backwards later, or at the end."""
    orders = []
    for rank in range(ranks):
        forwards, backwards = _units(rank, ranks, micro_batches, chunks)
        warm_up = _warm_up(rank, ranks, micro_batches, chunks, hop=1)
        alternating = _alternating(_each(FORWARD, forwards), _each(INPUT_GRADIENT, backwards), warm_up)
        orders.append(_weights_late(alternating, _each(WEIGHT_GRADIENT, backwards), rank))
    return tuple(orders)


def _units(rank: int, ranks: int, micro_batches: int, chunks: int) -> tuple[list[tuple[int, int]], ...]:
    """Stages and micro batches in the order of forwards, and in that of backwards."""
    sizes = _rounds(ranks, micro_batches)
    begins = [0, *accumulate(sizes)][:-1]
    stages = [chunk * ranks + rank for chunk in range(chunks)]
    rounds = [range(begin, begin + size) for begin, size in zip(begins, sizes, strict=True)]
    return tuple(
        [(stage, micro) for part in rounds for stage in order for micro in part] for order in (stages, stages[::-1])
    )


def _rounds(ranks: int, micro_batches: int) -> list[int]:
    """Micro batches of each round: as alike as can be, not fewer than there are ranks, the larger ones first."""
    count = max(1, micro_batches // ranks)
    small, larger = divmod(micro_batches, count)
    return [small + 1] * larger + [small] * (count - larger)


def _warm_up(rank: int, ranks: int, micro_batches: int, chunks: int, hop: int) -> int:
    """Forwards before forwards and backwards alternate; `hop` more for each rank before the last."""
    wanted = (chunks - 1) * _rounds(ranks, micro_batches)[0] + hop * (ranks - 1 - rank)
    return min(wanted, micro_batches * chunks)


def _each(kind: str, units: Sequence[tuple[int, int]]) -> list[Action]:
    return [Action(kind, stage, micro) for stage, micro in units]


def _alternating(forwards: list[Action], backwards: list[Action], warm_up: int) -> tuple[Action, ...]:
    steady = zip(forwards[warm_up:], backwards, strict=False)
    return (*forwards[:warm_up], *chain.from_iterable(steady), *backwards[len(forwards) - warm_up :])


def _weights_late(order: tuple[Action, ...], weights: list[Action], late: int) -> tuple[Action, ...]:
    """The order with a weight gradient after each backward but the first `late` ones, and the rest at its end."""
    done: list[Action] = []
    begun = 0
    for action in order:
        done.append(action)
        if action.kind == INPUT_GRADIENT:
            begun += 1
            done += weights[begun - late - 1 : begun - late] if begun > late else []
    return (*done, *weights[max(0, begun - late) :])
