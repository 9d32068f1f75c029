"""Loss scales of MindSpore: cells that say how a scale goes on, and what a step does with one.

What gradients and updates are under a scale is `autoshard.trace.loss_scale`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autoshard.trace.cell import Cell
from autoshard.trace.loss_scale import LOSS_SCALE, Adjustment, LossScale, OptimizerState, checked_scale, scale_parameter
from autoshard.trace.parameter import Parameter
from autoshard.util.errors import ContextError

MINIMUM = 1.0
"""What MindSpore's dynamic scales do not fall below."""


class FixedLossScaleUpdateCell(Cell):
    """Leaves a scale as it is; steps that overflow are skipped.

    Raises:
        ContextError: no number above 0.

    Example:
        >>> from autoshard.mindspore import nn
        >>> nn.FixedLossScaleUpdateCell(2**12).get_loss_scale()
        4096
    """

    def __init__(self, loss_scale_value: float) -> None:
        super().__init__()
        checked_scale(loss_scale_value, f"{type(self).__name__}: loss_scale_value")
        self.loss_scale_value = loss_scale_value

    def get_loss_scale(self) -> float:
        return self.loss_scale_value

    def construct(self, loss_scale: Parameter, overflow: Any) -> Any:
        return overflow


class DynamicLossScaleUpdateCell(FixedLossScaleUpdateCell):
    """Divides a scale by `scale_factor` after a step that overflows, but not below 1, and multiplies it after
    `scale_window` good ones in turn.

    Raises:
        ContextError: a number that cannot be.

    Example:
        >>> from autoshard.mindspore import nn
        >>> nn.DynamicLossScaleUpdateCell(2**12, scale_factor=2, scale_window=1000).scale_window
        1000
    """

    def __init__(self, loss_scale_value: float, scale_factor: float, scale_window: int) -> None:
        super().__init__(loss_scale_value)
        self.scale_factor, self.scale_window = scale_factor, scale_window
        self.change = Adjustment(scale_factor, scale_window, MINIMUM, type(self).__name__)
        self.good_steps = self.change.good_steps

    def construct(self, loss_scale: Parameter, overflow: Any) -> Any:
        self.change(loss_scale, overflow)
        return overflow


class ScaleOfCell(LossScale):
    """The scale of a step that skips overflows; a cell, called with the scale and whether it overflowed, changes it.

    Args:
        sense: the cell, whose `get_loss_scale()` is the first scale; or the scale as a tensor of one element, which
            stays.

    Raises:
        ContextError: neither.
    """

    def __init__(self, sense: Any, what: str) -> None:
        self.cell = sense if isinstance(sense, Cell) else None
        self.scale: Parameter
        super().__init__(_scale(sense, what))

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return (*super().parameters, *(self.cell.get_parameters() if self.cell is not None else ()))

    def adjust(self, overflow: Any) -> None:
        if self.cell is not None:
            self.cell(self.scale, overflow)


def _scale(sense: Any, what: str) -> Parameter:
    if isinstance(sense, Cell):
        first = getattr(sense, "get_loss_scale", None)
        if first is None:
            raise ContextError(f"{what}: {type(sense).__name__} has no method get_loss_scale(), which tells the scale")
        return scale_parameter(first(), f"{what}: get_loss_scale()")
    if not hasattr(sense, "dtype") or np.shape(sense) not in ((), (1,)):
        raise ContextError(
            f"{what} is {sense!r}; it is a cell such as DynamicLossScaleUpdateCell, or a tensor of one number"
        )
    number = np.asarray(sense, np.float32)
    checked_scale(number.item(), what)
    return OptimizerState(number, name=f"{LOSS_SCALE}.scale", requires_grad=False)
