"""How much memory the steps of a redistribution need besides what they begin and end with.

MPI sends and receives contiguous memory: pieces of a dim other than the first are copied together before they are sent,
and put in their places when they have come. Narrow types that no MPI adds up are widened on the way.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from autoshard.core.tensortype import TensorType
from autoshard.layout.layout import Layout
from autoshard.redistribute.fetch import FetchPiece
from autoshard.redistribute.planner import evened, program_steps
from autoshard.redistribute.step import Step


def staging_bytes(step: Step, of: TensorType, strided: bool = False) -> int:
    """Bytes of the copies that a rank makes in one step, besides its operand and its result.

    Args:
        of: type of the whole tensor.
        strided: the operand's elements do not lie one behind the other, so that what is sent is copied first.
    """
    before, after = (_nbytes(layout, of, of.dtype.itemsize) for layout in (step.before, step.after))
    if step.fetched is not None:
        return _fetched(step, of) * of.dtype.itemsize + (_widened(step.after, of) if step.fetched.reduced else 0)
    if step.kind == "permute":
        return _in_rounds(step, before, strided)
    if not step.communicates:
        return 0
    copied = before if strided else 0
    if step.kind == "all_gather":
        return copied + (after if step.dim else 0)
    if step.kind == "all_to_all":
        return (before if step.dim else copied) + (after if step.to_dim else 0)
    wide = _widened(step.before, of)
    if step.kind == "reduce_scatter":  # all pieces one behind the other
        return (wide or copied) + ((wide or before) if step.dim else 0) + _widened(step.after, of)
    return (wide or copied) + _widened(step.after, of)


def _in_rounds(step: Step, before: int, strided: bool) -> int:
    """The pieces of a permute that lie there at once.

    What is sent is a view where only dim 0 is cut. The pieces of a round go when those of the next have come.
    """
    digits = step.routing.digits
    if not digits.cuts and not digits.joins:
        return before if strided else 0
    piece = before // math.prod(tail.ratio for tail in digits.cuts)
    sent = piece if strided or any(tail.dim for tail in digits.cuts) else 0
    moved = step.messages
    if moved == 0:
        return sent
    if step.rounds == 1:
        return sent + piece
    stayed = sent if moved < step.rounds else piece  # of the first round: nothing has come, if each keeps its own
    return max(stayed + sent + piece, (2 * piece if moved > 1 else 0) + sent)


@lru_cache(maxsize=1 << 12)
def _fetched(step: Step, of: TensorType) -> int:
    """Elements of the boxes that a rank sends and receives, which all lie there at once, and of the largest that it
    adds to what it has; of the rank that has most."""
    assert step.fetched is not None
    parts = zip(step.before.local_shape(of.shape), step.before.parts, strict=True)
    shape, most = [size * count for size, count in parts], 0
    for rank in range(step.before.mesh.devices):
        pieces = step.fetched.pieces(rank, shape)
        sent = [piece for pieces in step.fetched.wanted(rank, shape).values() for piece in pieces]
        come = [piece for piece in pieces if piece.source != rank]
        added = max((_count(piece) for piece in pieces if piece.adds), default=0)
        added += min(added, np.getbufsize())  # numpy adds to a box through a buffer
        most = max(most, sum(map(_count, (*sent, *come))) + added)
    return most


def _count(piece: FetchPiece) -> int:
    return math.prod([one.stop - one.start for one in piece.source_box])


@lru_cache(maxsize=1 << 12)
def transient_bytes(before: Layout, after: Layout, of: TensorType, strided: bool = False) -> int:
    """The most bytes on a rank during a redistribution besides its two ends: buffers, and blocks on the way."""
    most, steps = 0, program_steps(before, after, evened(before, after, of.shape), of.shape)
    for i, step in enumerate(steps):
        between = _nbytes(step.before, of, of.dtype.itemsize) if i else 0
        made = _nbytes(step.after, of, of.dtype.itemsize)
        staged = staging_bytes(step, of, strided and not i)
        most = max(most, between + made + staged - _nbytes(after, of, of.dtype.itemsize))
    return max(most, 0)


def _widened(layout: Layout, of: TensorType) -> int:
    """Bytes of a block in the type that is added up in; 0 where that is its own."""
    narrow = of.dtype.extended or of.dtype.is_float and of.dtype.itemsize < 4
    return _nbytes(layout, of, 4 if of.dtype.is_float else 1) if narrow else 0


def _nbytes(layout: Layout, of: TensorType, itemsize: int) -> int:
    return math.prod(layout.local_shape(of.shape)) * itemsize
