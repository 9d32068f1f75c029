"""A step that fetches boxes, run over any Comm: one message between each two ranks, all boxes of a message in a row.

Terms are added up in the same order on all ranks that hold the sum, so that they hold the same.
"""

from __future__ import annotations

import math

import numpy as np

from autoshard.redistribute.fetch import FetchPiece
from autoshard.redistribute.step import Step
from autoshard.runtime.comm import REDUCTIONS, Comm, accumulator


def run_fetch(step: Step, parts: list[np.ndarray], comm: Comm) -> list[np.ndarray]:
    """What the hosted ranks hold after the step: their blocks; zeros where a term or padding has nothing."""
    fetched = step.fetched
    assert fetched is not None, f"{step} fetches nothing"
    shape = tuple(size * count for size, count in zip(parts[0].shape, step.before.parts, strict=True))
    sends, awaited = [], []
    for part, rank in zip(parts, comm.ranks, strict=True):
        sends.append({target: _row(part, pieces) for target, pieces in fetched.wanted(rank, shape).items()})
        counts: dict[int, int] = {}
        for piece in fetched.pieces(rank, shape):
            if piece.source != rank:
                counts[piece.source] = counts.get(piece.source, 0) + _count(piece)
        awaited.append({source: (count,) for source, count in counts.items()})
    received = comm.exchange(sends, awaited, parts[0].dtype, step.groups)
    local = step.after.local_shape(shape)
    within, combine = parts[0].dtype, REDUCTIONS[step.before.reduction]
    if fetched.reduced:
        within = accumulator(within)
    return [
        _placed(np.zeros(local, within), part, rank, fetched.pieces(rank, shape), got, combine).astype(
            part.dtype, copy=False
        )
        for part, rank, got in zip(parts, comm.ranks, received, strict=True)
    ]


def _row(part: np.ndarray, pieces: tuple[FetchPiece, ...]) -> np.ndarray:
    return np.concatenate([part[piece.source_box].reshape(-1) for piece in pieces])


def _count(piece: FetchPiece) -> int:
    return math.prod(one.stop - one.start for one in piece.source_box)


def _placed(
    made: np.ndarray,
    part: np.ndarray,
    rank: int,
    pieces: tuple[FetchPiece, ...],
    got: dict[int, np.ndarray],
    combine: np.ufunc,
) -> np.ndarray:
    taken = dict.fromkeys(got, 0)
    for piece in pieces:
        box = made[piece.target_box]
        if piece.source == rank:
            values = part[piece.source_box]
        else:
            start, count = taken[piece.source], _count(piece)
            values = got[piece.source][start : start + count].reshape(box.shape)
            taken[piece.source] = start + count
        made[piece.target_box] = combine(box, values) if piece.adds else values
    return made
