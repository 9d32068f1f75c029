"""What a step of a redistribution moves that is no collective of equal pieces, as a table: boxes, for each rank.

Terms that begin, blocks that change hands in rounds, boxes that are fetched, and windows are one thing: each rank makes
its block of zeros and of boxes of others' blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from autoshard.engines.boxes import Box, Piece, Table
from autoshard.partition.program import Collective
from autoshard.redistribute.step import Step
from autoshard.redistribute.window import WindowStep


def boxes(one: Collective) -> Table:
    """For each rank the boxes that its new block is made of, in order."""
    step, shape = one.step, one.of.shape
    local = step.before.local_shape(shape)
    ranks = step.before.mesh.listed("write down what ranks exchange")
    if isinstance(step, WindowStep):
        return tuple(tuple(_of_window(step, rank, one.operand.local.shape)) for rank in ranks)
    if step.kind == "keep":
        return tuple(tuple(_kept(step, rank, local)) for rank in ranks)
    if step.fetched is not None:
        whole = tuple(size * parts for size, parts in zip(local, step.before.parts, strict=True))
        return tuple(
            tuple(
                (piece.source, _box(piece.source_box), _box(piece.target_box), piece.adds)
                for piece in step.fetched.pieces(rank, whole)
            )
            for rank in ranks
        )
    return _in_rounds(step, local)


def is_whole_permute(step: Step) -> bool:
    """Whether whole blocks change hands, in one round."""
    return (
        step.kind == "permute" and step.fetched is None and not (step.routing.digits.cuts or step.routing.digits.joins)
    )


def _box(slices: Sequence[slice]) -> Box:
    return tuple((one.start, one.stop - one.start, 1) for one in slices)


def _full(shape: Sequence[int]) -> list[tuple[int, int, int]]:
    return [(0, size, 1) for size in shape]


def _of_window(step: WindowStep, rank: int, shape: Sequence[int]) -> Iterator[Piece]:
    members = step.groups.members(rank)
    for piece in step.pieces(step.groups.position(rank)):
        taken, placed = _full(shape), _full(shape)
        taken[step.dim] = (piece.at, piece.count, piece.stride)
        placed[step.dim] = (piece.place, piece.count, 1)
        yield int(members[piece.source]), tuple(taken), tuple(placed), False


def _kept(step: Step, rank: int, shape: tuple[int, ...]) -> Iterator[Piece]:
    """The box that stays in a rank's term: found by numbering the elements of its block."""
    numbered = np.arange(1, int(np.prod(shape)) + 1).reshape(shape)
    term = step.to_partial.partial_block(numbered, rank)
    held = np.argwhere(term)
    if not len(held):
        return
    low, high = held.min(0), held.max(0)
    first = np.unravel_index(int(term[tuple(low)]) - 1, shape)
    counts = (high - low + 1).tolist()
    taken = tuple((int(start), count, 1) for start, count in zip(first, counts, strict=True))
    yield rank, taken, tuple((int(start), count, 1) for start, count in zip(low, counts, strict=True)), False


def _in_rounds(step: Step, shape: tuple[int, ...]) -> Table:
    digits = step.routing.digits
    cuts = [(tail.dim, shape[tail.dim] // tail.ratio) for tail in digits.cuts]
    joins = [(tail.dim, shape[tail.dim]) for tail in digits.joins]
    sent = list(shape)
    for dim, size in cuts:
        sent[dim] = size
    rows: list[list[Piece]] = [[] for _ in range(step.before.mesh.devices)]
    for number in range(step.rounds):
        turn = step.routing.round(number)
        for rank, row in enumerate(rows):
            taken, placed = _full(sent), _full(sent)
            for (dim, size), place in zip(cuts, turn.cuts[rank], strict=True):
                taken[dim] = (place * size, size, 1)
            for (dim, size), place in zip(joins, turn.pieces[rank], strict=True):
                placed[dim] = (place * size, size, 1)
            row.append((int(turn.sources[rank]), tuple(taken), tuple(placed), False))
    return tuple(tuple(row) for row in rows)
