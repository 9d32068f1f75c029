"""Steps of a program that change a layout, bound to a Comm: blocks are padded for the step, and cut, where need be."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autoshard.partition.program import Collective
from autoshard.redistribute.window import WindowStep
from autoshard.runtime.array import array_dtype
from autoshard.runtime.comm import Comm
from autoshard.runtime.padded import fit
from autoshard.runtime.steps import bound_step

Parts = list[np.ndarray]


def step_runner(one: Collective, comm: Comm) -> Callable[[Parts], Parts]:
    """A function from what the hosted ranks hold before a step to what they hold after it."""
    step, dtype = one.step, array_dtype(one.of.dtype)
    if isinstance(step, WindowStep):
        return bound_step(step, one.operand.local.shape, dtype, comm)
    grown, kept = step.before.local_shape(one.of.shape), one.result.local.shape
    move = bound_step(step, grown, dtype, comm)
    if one.operand.local.shape == grown and step.after.local_shape(one.of.shape) == kept:
        return move
    return lambda parts: [fit(part, kept) for part in move([fit(part, grown) for part in parts])]
