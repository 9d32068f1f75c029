"""Blocks of arrays: cut a whole array into what each rank holds, and put blocks together again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from autoshard.errors import RuntimeSetupError
from autoshard.layout.layout import Layout
from autoshard.redistribute.planner import plan_steps
from autoshard.runtime.comm import Comm
from autoshard.runtime.steps import run_step


def cut(array: np.ndarray, layout: Layout, ranks: Iterable[int]) -> list[np.ndarray]:
    """The blocks of `array` that the ranks hold under `layout` (which may not be partial)."""
    if layout.partial:
        raise RuntimeSetupError(f"cannot cut an array into the partial layout [{layout}]; inputs are whole values")
    layout.check_fits(array.shape, "the array")
    return [np.asarray(array[layout.block(rank, array.shape)], order="C") for rank in ranks]


def join(parts: Sequence[np.ndarray], layout: Layout, shape: Sequence[int], comm: Comm) -> np.ndarray:
    """The whole array on every rank, from the blocks that the hosted ranks hold; a collective over all ranks."""
    held = list(parts)
    for step in plan_steps(layout, Layout.whole(layout.mesh, len(shape)), shape):
        held = run_step(step, held, comm)
    return held[0]
