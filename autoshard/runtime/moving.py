"""Steps of a program that change a layout, bound to a Comm: blocks are padded for the step, and cut, where need be.

Small sums may be done in two halves: `sums_to_begin` says where, `sum_in_halves` how.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from autoshard.partition.program import Bundle, Collective, Instruction, communicates
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


def sums_to_begin(instructions: Sequence[Instruction]) -> dict[int, int]:
    """For each sum over ranks that has another collective between its terms and itself: their positions."""
    makers = {register: at for at, one in enumerate(instructions) for register in one.results}
    meetings = [at for at, one in enumerate(instructions) if isinstance(one, Collective | Bundle) and communicates(one)]
    found = {}
    for at in meetings:
        one = instructions[at]
        if isinstance(one, Collective) and one.step.kind == "all_reduce":
            made = makers.get(one.operand, -1)
            before = next(other for other in meetings if other > made)
            found |= {at: before} if before < at else {}
    return found


def sum_in_halves(one: Collective, comm: Comm) -> tuple[Callable[[Parts], None], Callable[[], Parts]] | None:
    """What begins a sum with the parts of the hosted ranks, and what waits for its results; None where it is not done
    sooner for that."""
    step, operand, result = one.step, one.operand.local, one.result.local
    if isinstance(step, WindowStep) or not operand.shape == step.before.local_shape(one.of.shape) == result.shape:
        return None
    return comm.sum_in_halves(operand.shape, array_dtype(one.of.dtype), step.groups, step.reduction)
