"""One step of a redistribution, run over any Comm."""

from __future__ import annotations

import numpy as np

from autoshard.redistribute.step import Step
from autoshard.runtime.comm import Comm


def run_step(step: Step, parts: list[np.ndarray], comm: Comm) -> list[np.ndarray]:
    """What the hosted ranks hold after the step."""
    if step.kind == "slice":
        return [_piece(part, step, rank) for part, rank in zip(parts, comm.ranks, strict=True)]
    if step.kind == "keep":
        return [
            part if step.groups.position(rank) == 0 else np.zeros_like(part)
            for part, rank in zip(parts, comm.ranks, strict=True)
        ]
    if step.kind == "all_gather":
        return comm.all_gather(parts, step.groups, step.dim)
    if step.kind == "all_reduce":
        return comm.all_reduce(parts, step.groups, step.reduction)
    if step.kind == "reduce_scatter":
        return comm.reduce_scatter(parts, step.groups, step.dim, step.reduction)
    if step.kind == "all_to_all":
        return comm.all_to_all(parts, step.groups, step.dim, step.to_dim)
    return comm.permute(parts, step.source_of())


def _piece(part: np.ndarray, step: Step, rank: int) -> np.ndarray:
    size = part.shape[step.dim] // step.groups.size
    start = step.groups.position(rank) * size
    index = (slice(None),) * step.dim + (slice(start, start + size),)
    return np.asarray(part[index], order="C")
