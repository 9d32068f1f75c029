"""Schedules that do all forwards before all backwards: GPipe, and breadth first over several chunks.

Sources: Huang et al. (arXiv 1811.06965), Lamy-Poirier (arXiv 2211.05953).
"""

from __future__ import annotations

from autoshard.pipeline.schedules.action import BACKWARD, FORWARD, Action
from autoshard.pipeline.schedules.schedule import Orders


def gpipe(ranks: int, micro_batches: int, chunks: int) -> Orders:
    """All forwards, then all backwards in the same order, so that gradients are added in the order of 1F1B."""
    micros = range(micro_batches)
    return tuple(
        (
            *(Action(FORWARD, stage, micro) for micro in micros),
            *(Action(BACKWARD, stage, micro) for micro in micros),
        )
        for stage in range(ranks)
    )


def looped_bfs(ranks: int, micro_batches: int, chunks: int) -> Orders:
    """Every micro batch through one chunk before the next chunk; backwards the other way round."""
    micros = range(micro_batches)
    stages = [range(rank, ranks * chunks, ranks) for rank in range(ranks)]
    return tuple(
        (
            *(Action(FORWARD, stage, micro) for stage in own for micro in micros),
            *(Action(BACKWARD, stage, micro) for stage in reversed(own) for micro in reversed(micros)),
        )
        for own in stages
    )
