"""One step of a redistribution, run over any Comm."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autoshard.redistribute.routing import Round
from autoshard.redistribute.step import Step
from autoshard.redistribute.window import WindowStep
from autoshard.runtime.comm import Comm
from autoshard.runtime.fetching import run_fetch
from autoshard.runtime.windows import run_window


def run_step(step: Step | WindowStep, parts: list[np.ndarray], comm: Comm) -> list[np.ndarray]:
    """What the hosted ranks hold after the step."""
    if isinstance(step, WindowStep):
        return run_window(step, parts, comm)
    if step.kind == "keep":
        return [step.to_partial.partial_block(part, rank) for part, rank in zip(parts, comm.ranks, strict=True)]
    if step.kind == "all_reduce":
        return comm.all_reduce(parts, step.groups, step.reduction)
    if step.fetched is not None:
        return run_fetch(step, parts, comm)
    if step.kind == "permute":
        return _permute(step, parts, comm)
    assert step.dim is not None, f"{step} needs a dim"
    if step.kind == "slice":
        return [_piece(part, step, step.dim, rank) for part, rank in zip(parts, comm.ranks, strict=True)]
    if step.kind == "all_gather":
        return comm.all_gather(parts, step.groups, step.dim)
    if step.kind == "reduce_scatter":
        return comm.reduce_scatter(parts, step.groups, step.dim, step.reduction)
    assert step.kind == "all_to_all" and step.to_dim is not None, f"{step} is no step that ranks can run"
    return comm.all_to_all(parts, step.groups, step.dim, step.to_dim)


def bound_step(
    step: Step | WindowStep, shape: tuple[int, ...], dtype: np.dtype, comm: Comm
) -> Callable[[list[np.ndarray]], list[np.ndarray]]:
    """`run_step` for blocks of this shape and type, of which as much as possible is done at once."""
    if isinstance(step, WindowStep) or step.kind in ("keep", "permute"):
        return lambda parts: run_step(step, parts, comm)
    if step.kind == "slice":
        assert step.dim is not None, f"{step} needs a dim"
        places = [piece_index(shape, step, step.dim, rank) for rank in comm.ranks]
        return lambda parts: [np.array(part[place], order="C") for part, place in zip(parts, places, strict=True)]
    return comm.prepared(step.kind, shape, dtype, step.groups, step.dim or 0, step.to_dim or 0, step.reduction)


def _piece(part: np.ndarray, step: Step, dim: int, rank: int) -> np.ndarray:
    # A copy, not a view: it would keep the whole in memory.
    return np.array(part[piece_index(part.shape, step, dim, rank)], order="C")


def piece_index(shape: tuple[int, ...], step: Step, dim: int, rank: int) -> tuple[slice, ...]:
    """Where the piece of a slice lies that the rank keeps."""
    size = shape[dim] // step.groups.size
    start = step.groups.position(rank) * size
    return (slice(None),) * dim + (slice(start, start + size),)


def _permute(step: Step, parts: list[np.ndarray], comm: Comm) -> list[np.ndarray]:
    """Blocks change hands; in rounds, if a rank gets its block in pieces from several others."""
    digits = step.routing.digits
    if not digits.cuts and not digits.joins:
        return comm.permute(parts, step.source_of())
    cuts = [(tail.dim, part_size) for tail in digits.cuts for part_size in (parts[0].shape[tail.dim] // tail.ratio,)]
    joins = [(tail.dim, parts[0].shape[tail.dim]) for tail in digits.joins]
    results = [np.empty(_grown(part.shape, step), part.dtype) for part in parts]
    for number in range(step.rounds):
        turn = step.routing.round(number)
        sent = [_sent(part, turn, rank, cuts) for part, rank in zip(parts, comm.ranks, strict=True)]
        moves = any(source != rank for rank, source in enumerate(turn.sources))
        received = comm.permute(sent, turn.sources.__getitem__) if moves else sent
        for result, piece, rank in zip(results, received, comm.ranks, strict=True):
            places = zip(joins, turn.pieces[rank], strict=True)
            result[_window(piece.ndim, {dim: (place, size) for (dim, size), place in places})] = piece
    return results


def _grown(shape: tuple[int, ...], step: Step) -> tuple[int, ...]:
    sizes = list(shape)
    for tail in step.routing.digits.cuts:
        sizes[tail.dim] //= tail.ratio
    for tail in step.routing.digits.joins:
        sizes[tail.dim] *= tail.ratio
    return tuple(sizes)


def _sent(part: np.ndarray, turn: Round, rank: int, cuts: list[tuple[int, int]]) -> np.ndarray:
    """The piece of a rank's block that its target of this round wants."""
    places = zip(cuts, turn.cuts[turn.targets[rank]], strict=True)
    return np.ascontiguousarray(part[_window(part.ndim, {dim: (place, size) for (dim, size), place in places})])


def _window(rank: int, places: dict[int, tuple[int, int]]) -> tuple[slice, ...]:
    """The index of the piece at `place`, of `size`, along some dims."""
    window = [slice(None)] * rank
    for dim, (place, size) in places.items():
        window[dim] = slice(place * size, (place + 1) * size)
    return tuple(window)
