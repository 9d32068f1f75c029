"""Collectives of ranks on one machine over a buffer that they share, which are told all once, as in `prepared.py`.

What a rank sends it writes as it is wanted, in the place of the copy that MPI would be given; what it gets it reads
where the others have it, in the place of a copy of what MPI received. Parts are combined in the order of the ranks, so
that a sum is bit by bit the same on all. (Two processes on two cores, 128 KiB: all_gather and reduce_scatter 15 us, by
MPI 24; eight on two, 130 and 270.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from autoshard.runtime.prepared import Move, Shape, cut_form, join_form, scaled
from autoshard.runtime.shared_buffer import SharedBuffer

LEAST = 1 << 12
"""Bytes of a rank's part from which on this is faster: less goes with MPI's announcement of a message."""
MOST = 1 << 21
"""Bytes of a rank's part up to which it is: more no longer stays in caches until it is read."""
_SHARED_WORK = 1 << 19
"""From how many bytes of all ranks' parts on each rank combines a share of a sum, in the place of the whole."""


def all_reduce(buffer: SharedBuffer, shape: Shape, dtype: np.dtype, combine: np.ufunc) -> Move:
    """The elementwise `combine` over all ranks of the buffer."""
    places = [list(half) for half in buffer.places(shape, dtype)]
    if buffer.ranks * math.prod(shape) * dtype.itemsize > _SHARED_WORK:
        return _all_reduce_by_shares(buffer, shape, dtype, combine)

    def move(part: np.ndarray) -> np.ndarray:
        half = places[buffer.turn()]
        half[buffer.rank][...] = part
        buffer.barrier()
        return _combined(half, combine)

    return move


def sum_in_halves(
    buffer: SharedBuffer, shape: Shape, dtype: np.dtype, combine: np.ufunc
) -> tuple[Callable[[np.ndarray], None], Callable[[], np.ndarray]]:
    """An `all_reduce` over a buffer of its own, which has `come`: what writes this rank's part, and what waits until
    all have and combines them. What ranks do in between, all wait for less."""
    places, come = [list(half) for half in buffer.places(shape or (1,), dtype)], buffer.come
    assert come is not None

    def begin(part: np.ndarray) -> None:
        places[buffer.turn()][buffer.rank][...] = part
        come()

    def finish() -> np.ndarray:
        buffer.wait()
        return _combined(places[buffer.last], combine).reshape(shape)

    return begin, finish


def _all_reduce_by_shares(buffer: SharedBuffer, shape: Shape, dtype: np.dtype, combine: np.ufunc) -> Move:
    places = buffer.places(shape, dtype)
    count = math.prod(shape)
    own = slice(count * buffer.rank // buffer.ranks, count * (buffer.rank + 1) // buffer.ranks)
    shares = [[place.reshape(-1)[own] for place in half] for half in places]

    def move(part: np.ndarray) -> np.ndarray:
        turn = buffer.turn()
        places[turn][buffer.rank][...] = part
        buffer.barrier()
        other = buffer.turn()
        _combined(shares[turn], combine, shares[other][0])
        buffer.barrier()
        return places[other][0].copy()

    return move


def reduce_scatter(buffer: SharedBuffer, shape: Shape, dtype: np.dtype, combine: np.ufunc, dim: int) -> Move:
    """As `all_reduce`, but each rank gets only the piece of `dim` that its place on the buffer names."""
    _, write, places = _written(buffer, shape, dtype, dim)
    mine = [list(half[:, buffer.rank]) for half in places]

    def move(part: np.ndarray) -> np.ndarray:
        return _combined(mine[write(part)], combine)

    return move


def all_gather(buffer: SharedBuffer, shape: Shape, dtype: np.dtype, dim: int) -> Move:
    """The parts of all ranks joined along `dim`."""
    places = buffer.places(shape, dtype)
    form, order = join_form(shape, buffer.ranks, dim)
    joined, wanted = scaled(shape, dim, buffer.ranks), [half.transpose(order) for half in places]

    def move(part: np.ndarray) -> np.ndarray:
        turn, made = buffer.turn(), np.empty(joined, dtype)
        places[turn][buffer.rank] = part
        buffer.barrier()
        made.reshape(form)[...] = wanted[turn]
        return made

    return move


def all_to_all(buffer: SharedBuffer, shape: Shape, dtype: np.dtype, dim: int, to_dim: int) -> Move:
    """Piece j of `dim` goes to rank j; what arrives is joined along `to_dim`."""
    piece, write, places = _written(buffer, shape, dtype, dim)
    form, order = join_form(piece, buffer.ranks, to_dim)
    joined, wanted = scaled(piece, to_dim, buffer.ranks), [half[:, buffer.rank].transpose(order) for half in places]

    def move(part: np.ndarray) -> np.ndarray:
        turn, made = write(part), np.empty(joined, dtype)
        made.reshape(form)[...] = wanted[turn]
        return made

    return move


def _written(
    buffer: SharedBuffer, shape: Shape, dtype: np.dtype, dim: int
) -> tuple[Shape, Callable[[np.ndarray], int], tuple[np.ndarray, np.ndarray]]:
    """The shape of a piece of `dim`; what writes a rank's pieces and tells to which half; and the halves: by rank, what
    it has for each."""
    form, order = cut_form(shape, buffer.ranks, dim)
    piece = scaled(shape, dim, 1, buffer.ranks)
    places = buffer.places((buffer.ranks, *piece), dtype)
    own = [half[buffer.rank] for half in places]

    def write(part: np.ndarray) -> int:
        turn = buffer.turn()
        own[turn][...] = part.reshape(form).transpose(order)
        buffer.barrier()
        return turn

    return piece, write, places


def _combined(parts: Sequence[np.ndarray], combine: np.ufunc, out: np.ndarray | None = None) -> np.ndarray:
    first, second, *others = parts
    made = combine(first, second, out=out)
    for one in others:
        combine(made, one, out=made)
    return made
