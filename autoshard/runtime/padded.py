"""Blocks that are padded at the end of dims: brought to the size that a step works on, and cut to what is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from autoshard.partition.program import Collective
from autoshard.redistribute.window import WindowStep
from autoshard.runtime.comm import Comm
from autoshard.runtime.steps import run_step

Parts = list[np.ndarray]


def fit(part: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """The array cut to `shape`, or padded, at the end of each dim."""
    shape = tuple(shape)
    if part.shape == shape:
        return part
    inside = tuple(slice(min(old, new)) for old, new in zip(part.shape, shape, strict=True))
    if all(old >= new for old, new in zip(part.shape, shape, strict=True)):
        return np.ascontiguousarray(part[inside])
    made = _blank(shape, part.dtype)
    made[inside] = part[inside]
    return made


def _blank(shape: tuple[int, ...], of: np.dtype) -> np.ndarray:
    """What padding is cut from. No operator may depend on what it holds; zeros make no infinities on the way."""
    return np.zeros(shape, of)


def step_runner(one: Collective) -> Callable[[Parts, Comm], Parts]:
    """A function from what the hosted ranks hold before a step to what they hold after it."""
    step = one.step
    if isinstance(step, WindowStep):
        return lambda parts, comm: run_step(step, parts, comm)
    grown = step.before.local_shape(one.of.shape)
    kept = one.result.local.shape

    def run(parts: Parts, comm: Comm) -> Parts:
        made = run_step(step, [fit(part, grown) for part in parts], comm)
        return [fit(part, kept) for part in made]

    return run
