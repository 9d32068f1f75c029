"""Collectives of MPI of which all is told once, before a program runs: communicator, types, shapes of the buffers.

A step of training does the same collectives again and again. Between its kernels little of what Python runs is left in
the processor's caches, so that each line counts several times: no more of them run in a step than have to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Shape = tuple[int, ...]
Move = Callable[[np.ndarray], np.ndarray]
"""From a rank's part to its result, C-contiguous and held by nobody else."""


def all_reduce(mpi: Any, shape: Shape, dtype: np.dtype, item: Any, action: Any) -> Move:
    """The elementwise `action` over all ranks of the communicator `mpi`; `item` is MPI's type of an element."""
    count = math.prod(shape)

    def move(part: np.ndarray) -> np.ndarray:
        received = np.empty(shape, dtype)
        mpi.Allreduce((contiguous(part), count, item), (received, count, item), action)
        return received

    return move


def reduce_scatter(mpi: Any, shape: Shape, dtype: np.dtype, item: Any, action: Any, dim: int) -> Move:
    """As `all_reduce`, but each rank gets only the piece of `dim` that its place in the communicator names."""
    size = mpi.Get_size()
    cut, piece = _cutter(shape, size, dim), scaled(shape, dim, 1, size)
    count = math.prod(piece)

    def move(part: np.ndarray) -> np.ndarray:
        send, received = cut(part), np.empty(piece, dtype)
        mpi.Reduce_scatter_block((send, count, item), (received, count, item), action)
        return received

    return move


def all_gather(mpi: Any, shape: Shape, dtype: np.dtype, item: Any, dim: int) -> Move:
    """The parts of all ranks joined along `dim`."""
    size, count = mpi.Get_size(), math.prod(shape)
    empty, join = _joiner(shape, size, dim, dtype)

    def move(part: np.ndarray) -> np.ndarray:
        received = empty()
        mpi.Allgather((contiguous(part), count, item), (received, count, item))
        return join(received)

    return move


def all_to_all(mpi: Any, shape: Shape, dtype: np.dtype, item: Any, dim: int, to_dim: int) -> Move:
    """Piece j of `dim` goes to rank j; what arrives is joined along `to_dim`."""
    size = mpi.Get_size()
    cut, piece = _cutter(shape, size, dim), scaled(shape, dim, 1, size)
    count = math.prod(piece)
    empty, join = _joiner(piece, size, to_dim, dtype)

    def move(part: np.ndarray) -> np.ndarray:
        send, received = cut(part), empty()
        mpi.Alltoall((send, count, item), (received, count, item))
        return join(received)

    return move


def contiguous(part: np.ndarray) -> np.ndarray:
    return part if part.flags.c_contiguous else np.ascontiguousarray(part)


def scaled(shape: Shape, dim: int, times: int, parts: int = 1) -> Shape:
    return (*shape[:dim], shape[dim] * times // parts, *shape[dim + 1 :])


def _cutter(shape: Shape, size: int, dim: int) -> Move:
    """From an array to its pieces of `dim`, one behind the other: a copy, unless they lie so."""
    if math.prod(shape[:dim]) == 1:
        return contiguous
    form, order = cut_form(shape, size, dim)
    return lambda part: np.ascontiguousarray(part.reshape(form).transpose(order))


def _joiner(piece: Shape, size: int, dim: int, dtype: np.dtype) -> tuple[Callable[[], np.ndarray], Move]:
    """Makes memory for pieces one behind the other, and of them the array in which they are joined along `dim`."""
    joined = scaled(piece, dim, size)
    if math.prod(piece[:dim]) == 1:
        return lambda: np.empty(joined, dtype), lambda received: received
    form, order = join_form(piece, size, dim)

    def join(received: np.ndarray) -> np.ndarray:
        made = np.empty(joined, dtype)
        np.copyto(made.reshape(form), received.transpose(order))
        return made

    return lambda: np.empty((size, *piece), dtype), join


def cut_form(shape: Shape, size: int, dim: int) -> tuple[Shape, Shape]:
    """A shape in which the pieces of `dim` have a dim of their own, and the order of dims that puts this first."""
    form = (*shape[:dim], size, shape[dim] // size, *shape[dim + 1 :])
    return form, (dim, *range(dim), *range(dim + 1, len(form)))


def join_form(piece: Shape, size: int, dim: int) -> tuple[Shape, Shape]:
    """The shape of pieces joined along `dim` in which they have a dim of their own, and the order of the dims of pieces
    one behind the other that leads to it."""
    return (*piece[:dim], size, *piece[dim:]), (*range(1, dim + 1), 0, *range(dim + 1, len(piece) + 1))
