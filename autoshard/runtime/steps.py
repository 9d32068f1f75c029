"""One step of a redistribution, run over any Comm."""

from __future__ import annotations

import numpy as np

from autoshard.redistribute.step import Step
from autoshard.runtime.comm import Comm


def run_step(step: Step, parts: list[np.ndarray], comm: Comm) -> list[np.ndarray]:
    """What the hosted ranks hold after the step."""
    if step.kind == "keep":
        return [
            part if step.groups.position(rank) == 0 else np.zeros_like(part)
            for part, rank in zip(parts, comm.ranks, strict=True)
        ]
    if step.kind == "all_reduce":
        return comm.all_reduce(parts, step.groups, step.reduction)
    if step.kind == "permute":
        return comm.permute(parts, step.source_of())
    assert step.dim is not None, f"{step} needs a dim"
    if step.kind == "slice":
        return [_piece(part, step, step.dim, rank) for part, rank in zip(parts, comm.ranks, strict=True)]
    if step.kind == "all_gather":
        return comm.all_gather(parts, step.groups, step.dim)
    if step.kind == "reduce_scatter":
        return comm.reduce_scatter(parts, step.groups, step.dim, step.reduction)
    assert step.kind == "all_to_all" and step.to_dim is not None, f"{step} is no step that ranks can run"
    return comm.all_to_all(parts, step.groups, step.dim, step.to_dim)


def _piece(part: np.ndarray, step: Step, dim: int, rank: int) -> np.ndarray:
    size = part.shape[dim] // step.groups.size
    start = step.groups.position(rank) * size
    return np.asarray(part[(slice(None),) * dim + (slice(start, start + size),)], order="C")
