"""How much memory the steps of a redistribution need besides what they begin and end with.

MPI sends and receives contiguous memory: pieces of a dim other than the first are copied together before they are sent,
and put in their places when they have come. Narrow types that no MPI adds up are widened on the way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from autoshard.layout.layout import Layout
from autoshard.redistribute.planner import plan_steps
from autoshard.redistribute.step import Step
from autoshard.tensortype import TensorType


def staging_bytes(step: Step, of: TensorType) -> int:
    """Bytes of the copies that a rank makes in one step, besides its operand and its result.

    Args:
        of: type of the whole tensor.
    """
    before, after = (_nbytes(layout, of, of.dtype.itemsize) for layout in (step.before, step.after))
    if step.kind == "all_reduce":
        return _widened(step.before, of) + _widened(step.after, of)
    if step.kind == "all_gather":
        return after if step.dim else 0
    if step.kind == "reduce_scatter":
        own = _widened(step.before, of) or (before if step.dim else 0)
        return own + _widened(step.after, of)
    if step.kind == "all_to_all":
        return (before if step.dim else 0) + (after if step.to_dim else 0)
    if step.kind == "permute":
        return 2 * before if step.rounds > 1 else 0
    return 0


@lru_cache(maxsize=1 << 16)
def transient_bytes(before: Layout, after: Layout, of: TensorType) -> int:
    """The most bytes on a rank during a redistribution besides its two ends: buffers, and blocks on the way."""
    most, steps = 0, plan_steps(before, after, of.shape)
    for i, step in enumerate(steps):
        between = _nbytes(step.before, of, of.dtype.itemsize) if i else 0
        made = _nbytes(step.after, of, of.dtype.itemsize)
        most = max(most, between + made + staging_bytes(step, of) - _nbytes(after, of, of.dtype.itemsize))
    return max(most, 0)


def _widened(layout: Layout, of: TensorType) -> int:
    """Bytes of a block in the type that is added up in; 0 where that is its own."""
    narrow = of.dtype.extended or of.dtype.is_float and of.dtype.itemsize < 4
    return _nbytes(layout, of, 4 if of.dtype.is_float else 1) if narrow else 0


def _nbytes(layout: Layout, of: TensorType, itemsize: int) -> int:
    return _size(layout.local_shape(of.shape)) * itemsize


def _size(shape: Sequence[int]) -> int:
    return math.prod(shape)
