"""Blocks of arrays: cut a whole array into what each rank holds, and put blocks together again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from autoshard.core.tensortype import TOKEN, DType
from autoshard.layout.layout import Layout
from autoshard.redistribute.planner import plan_steps
from autoshard.runtime.comm import Comm
from autoshard.runtime.padded import fit
from autoshard.runtime.steps import run_step
from autoshard.util.errors import RuntimeSetupError


def array_dtype(of: DType) -> np.dtype:
    """Numpy's dtype of the arrays that ranks hold; a token, which has no contents, is held as a bool."""
    return np.dtype(bool) if of is TOKEN else of.numpy


def cut(
    array: np.ndarray, layout: Layout, ranks: Iterable[int], padded: Sequence[int] | None = None
) -> list[np.ndarray]:
    """The blocks of `array` that the ranks hold under `layout` (which may not be partial).

    Args:
        padded: the shape that is cut into equal blocks, zero beyond the array; None: the least that the layout divides.
    """
    if layout.partial:
        raise RuntimeSetupError(f"cannot cut an array into the partial layout [{layout}]; inputs are whole values")
    if len(layout.dims) != array.ndim:
        layout.check_fits(array.shape, "the array")
    if layout.is_replicated and (padded is None or tuple(padded) == array.shape):
        return [np.asarray(array, order="C") for _ in ranks]
    local = layout.local_shape(padded or array.shape)
    whole = [size * parts for size, parts in zip(local, layout.parts, strict=True)]
    return [np.asarray(fit(array[layout.block(rank, whole)], local), order="C") for rank in ranks]


def cutter(
    layout: Layout, shape: Sequence[int], ranks: Sequence[int], padded: Sequence[int]
) -> Callable[[np.ndarray], list[np.ndarray]]:
    """`cut` for arrays of this shape, told once: where each rank takes all, little is left to do each time."""
    shape, count = tuple(shape), len(ranks)
    takes_all = layout.is_replicated and tuple(padded) == shape

    def cut_one(array: np.ndarray) -> list[np.ndarray]:
        if takes_all and array.shape == shape:
            return [array if array.flags.c_contiguous else np.ascontiguousarray(array)] * count
        return cut(array, layout, ranks, padded)

    return cut_one


def join(
    parts: Sequence[np.ndarray], layout: Layout, shape: Sequence[int], comm: Comm, padded: Sequence[int] | None = None
) -> np.ndarray:
    """The whole array of `shape` on every rank, from the blocks that the hosted ranks hold; over all ranks together.

    Args:
        padded: the shape that the layout divides into these blocks; None: the least one.
    """
    held = list(parts)
    if layout.is_replicated and held[0].shape == tuple(shape):
        return held[0]
    local = layout.local_shape(padded or shape)
    whole = [size * count for size, count in zip(local, layout.parts, strict=True)]
    for step in plan_steps(layout, Layout.replicated(layout.mesh, len(shape)), whole):
        held = run_step(step, held, comm)
    return fit(held[0], shape)
