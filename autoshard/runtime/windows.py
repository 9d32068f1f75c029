"""A window step, run over any Comm: one message between each two ranks of which one holds what the other needs."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from autoshard.redistribute.window import WindowPiece, WindowStep
from autoshard.runtime.comm import Comm

Pieces = tuple[WindowPiece, ...]


def run_window(step: WindowStep, parts: list[np.ndarray], comm: Comm) -> list[np.ndarray]:
    """What the hosted ranks hold after the step."""
    sends = [_sent(step, part, rank) for part, rank in zip(parts, comm.ranks, strict=True)]
    shapes = [_awaited(step, part, rank) for part, rank in zip(parts, comm.ranks, strict=True)]
    received = comm.exchange(sends, shapes, parts[0].dtype, step.groups) if step.communicates else [{}] * len(parts)
    return [_assembled(step, part, rank, got) for part, rank, got in zip(parts, comm.ranks, received, strict=True)]


@lru_cache(maxsize=4096)
def _by_source(step: WindowStep, position: int) -> dict[int, Pieces]:
    """The pieces that a position needs, by the position that holds them."""
    found: dict[int, list[WindowPiece]] = {}
    for piece in step.pieces(position):
        found.setdefault(piece.source, []).append(piece)
    return {source: tuple(pieces) for source, pieces in found.items()}


@lru_cache(maxsize=4096)
def _by_target(step: WindowStep, position: int) -> dict[int, Pieces]:
    """The pieces that others need of what a position holds, by who needs them."""
    if not step.is_split:
        return {}
    needs = ((target, _by_source(step, target).get(position)) for target in range(step.parts) if target != position)
    return {target: pieces for target, pieces in needs if pieces}


def _sent(step: WindowStep, part: np.ndarray, rank: int) -> dict[int, np.ndarray]:
    """One array for each rank that needs something of this block: its pieces, one behind the other."""
    members = step.groups.members(rank)
    return {
        int(members[target]): np.concatenate([part[_at(step.dim, piece)] for piece in pieces], step.dim)
        for target, pieces in _by_target(step, step.groups.position(rank)).items()
    }


def _awaited(step: WindowStep, part: np.ndarray, rank: int) -> dict[int, tuple[int, ...]]:
    """The shape of what comes from each other rank."""
    members, position = step.groups.members(rank), step.groups.position(rank)
    return {
        int(members[source]): _shaped(part, step.dim, sum(piece.count for piece in pieces))
        for source, pieces in _by_source(step, position).items()
        if source != position
    }


def _assembled(step: WindowStep, part: np.ndarray, rank: int, got: dict[int, np.ndarray]) -> np.ndarray:
    """The runs of a rank, from its own block and what has come."""
    members, position = step.groups.members(rank), step.groups.position(rank)
    result = np.zeros(_shaped(part, step.dim, step.width), part.dtype)
    for source, pieces in _by_source(step, position).items():
        taken = 0
        for piece in pieces:
            if source == position:
                values = part[_at(step.dim, piece)]
            else:
                values = got[int(members[source])][_span(step.dim, taken, piece.count)]
                taken += piece.count
            result[_span(step.dim, piece.place, piece.count)] = values
    return result


def _shaped(part: np.ndarray, dim: int, size: int) -> tuple[int, ...]:
    return (*part.shape[:dim], size, *part.shape[dim + 1 :])


def _span(dim: int, start: int, count: int) -> tuple[slice, ...]:
    return (slice(None),) * dim + (slice(start, start + count),)


def _at(dim: int, piece: WindowPiece) -> tuple[slice, ...]:
    """Where a piece lies in the block that it is of."""
    stop = piece.at + piece.count * piece.stride
    return (slice(None),) * dim + (slice(piece.at, stop if stop >= 0 else None, piece.stride),)
