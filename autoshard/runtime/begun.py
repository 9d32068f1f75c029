"""Collectives in two halves, begin and finish, so that a rank computes in between; and bundles, on a common buffer.

`beginner(one)` is a function from the parts of the operands to another that waits and returns those of the results;
`at_once(bundle, comm)` does a bundle at once, prepared as other collectives are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from autoshard.partition.program import Bundle, Collective
from autoshard.redistribute.step import Step
from autoshard.runtime.array import array_dtype
from autoshard.runtime.comm import Comm, join_pieces, split_pieces
from autoshard.runtime.padded import fit

Parts = list[np.ndarray]
Finish = Callable[[], list[Parts]]
Begin = Callable[[Sequence[Parts], Comm], Finish]
_WHOLE = ("all_reduce", "all_gather")
"""Kinds of which each rank sends all that it has to all."""


def beginner(one: Collective | Bundle) -> Begin:
    """How the collective is begun on the hosted ranks: parts of each operand in, parts of each result out."""
    if isinstance(one, Collective):
        return _single(one)
    step, (_, pack, unpack) = _checked(one.parts[0]), _buffer(one)

    def begin(operands: Sequence[Parts], comm: Comm) -> Finish:
        finish = comm.start(step.kind, pack(operands), step.groups, 0, 0, step.reduction)
        return lambda: unpack(finish())

    return begin


def at_once(bundle: Bundle, comm: Comm) -> Callable[[Sequence[Parts]], list[Parts]]:
    """From parts of each operand of the bundle to those of each result."""
    step, (shape, pack, unpack) = _checked(bundle.parts[0]), _buffer(bundle)
    dtype = array_dtype(bundle.parts[0].of.dtype)
    move = comm.prepared(step.kind, shape, dtype, step.groups, 0, 0, step.reduction)
    return lambda operands: unpack(move(pack(operands)))


def _single(one: Collective) -> Begin:
    step = _checked(one)
    grown, kept = step.before.local_shape(one.of.shape), one.result.local.shape

    def begin(operands: Sequence[Parts], comm: Comm) -> Finish:
        parts = [fit(part, grown) for part in operands[0]]
        finish = comm.start(step.kind, parts, step.groups, step.dim or 0, step.to_dim or 0, step.reduction)
        return lambda: [[fit(part, kept) for part in finish()]]

    return begin


def _buffer(
    bundle: Bundle,
) -> tuple[tuple[int, int], Callable[[Sequence[Parts]], Parts], Callable[[Parts], list[Parts]]]:
    """The shape of a rank's common buffer, what fills buffers with parts of the operands, and what takes those of the
    results out of the buffers that came back."""
    steps = [_checked(one) for one in bundle.parts]
    kind, size = steps[0].kind, steps[0].groups.size
    rows, dtype = 1 if kind in _WHOLE else size, array_dtype(bundle.parts[0].of.dtype)
    grown = [step.before.local_shape(one.of.shape) for step, one in zip(steps, bundle.parts, strict=True)]
    made = [step.after.local_shape(one.of.shape) for step, one in zip(steps, bundle.parts, strict=True)]
    starts = np.concatenate([[0], np.cumsum([math.prod(shape) // rows for shape in grown])]).tolist()
    kept = [one.result.local.shape for one in bundle.parts]

    def pack(operands: Sequence[Parts]) -> Parts:
        return [packed(own) for own in zip(*operands, strict=True)]

    def packed(own: Sequence[np.ndarray]) -> np.ndarray:
        buffer = np.empty((rows, starts[-1]), dtype)
        for i, part in enumerate(own):
            pieces = _pieces(steps[i], fit(part, grown[i]))
            np.copyto(buffer[:, starts[i] : starts[i + 1]].reshape(pieces.shape), pieces)
        return buffer

    def unpack(received: Parts) -> list[Parts]:
        return [
            [fit(_block(steps[i], got[:, starts[i] : starts[i + 1]], made[i]), kept[i]) for got in received]
            for i in range(len(steps))
        ]

    return (rows, starts[-1]), pack, unpack


def _checked(one: Collective) -> Step:
    assert isinstance(one.step, Step), f"{one.step} can be neither begun nor bundled"
    return one.step


def _pieces(step: Step, part: np.ndarray) -> np.ndarray:
    """A block as what the rows of a buffer hold: a piece for each rank that gets one, else all of it."""
    if step.kind in _WHOLE:
        return part[np.newaxis]
    assert step.dim is not None
    return split_pieces(part, step.groups.size, step.dim)


def _block(step: Step, rows: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The block of this shape out of its columns of the buffer that came back."""
    if step.kind in ("all_reduce", "reduce_scatter"):
        return np.ascontiguousarray(rows).reshape(shape)
    dim = step.dim if step.kind == "all_gather" else step.to_dim
    assert dim is not None
    pieces = (*shape[:dim], shape[dim] // step.groups.size, *shape[dim + 1 :])
    return join_pieces(np.ascontiguousarray(rows).reshape(step.groups.size, *pieces), dim)
