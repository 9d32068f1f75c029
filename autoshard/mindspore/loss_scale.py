"""Managers of loss scales, which a Model is given: `Model(net, loss, optimizer, loss_scale_manager=...)`."""

from __future__ import annotations

from typing import Any

from autoshard.mindspore.nn.loss_scale import DynamicLossScaleUpdateCell, FixedLossScaleUpdateCell, ScaleOfCell
from autoshard.trace.cell import Cell
from autoshard.trace.loss_scale import LossScale, checked_scale
from autoshard.util.errors import ContextError


class LossScaleManager:
    """What a scale is and how it goes on; a subclass says it.

    `get_update_cell()` gives a cell that is called with the scale, a parameter, and whether the step overflowed; None:
    no step is skipped, and the optimizer divides gradients by its own `loss_scale`.
    """

    def get_loss_scale(self) -> float:
        """The first scale."""
        raise NotImplementedError(f"{type(self).__name__} has no method get_loss_scale()")

    def update_loss_scale(self, overflow: bool) -> None:
        """MindSpore's; steps ask `get_update_cell` alone."""

    def get_update_cell(self) -> Cell | None:
        raise NotImplementedError(f"{type(self).__name__} has no method get_update_cell()")


class FixedLossScaleManager(LossScaleManager):
    """A scale that stays.

    Args:
        drop_overflow_update: whether steps that overflow are skipped; False: the optimizer has to be given the same
            `loss_scale`, as gradients are left to it as they are.

    Raises:
        ContextError: no number above 0.

    Example:
        >>> import autoshard.mindspore as ms
        >>> ms.FixedLossScaleManager(1024.0, drop_overflow_update=False).get_update_cell() is None
        True
    """

    def __init__(self, loss_scale: float = 128.0, drop_overflow_update: bool = True) -> None:
        checked_scale(loss_scale, f"{type(self).__name__}: loss_scale")
        self._loss_scale, self._drop = loss_scale, bool(drop_overflow_update)

    def get_loss_scale(self) -> float:
        return self._loss_scale

    def get_drop_overflow_update(self) -> bool:
        return self._drop

    def get_update_cell(self) -> Cell | None:
        return FixedLossScaleUpdateCell(self._loss_scale) if self._drop else None


class DynamicLossScaleManager(LossScaleManager):
    """A scale that is divided by `scale_factor` when a step overflows, and multiplied after `scale_window` good ones.

    Raises:
        ContextError: a number that cannot be.

    Example:
        >>> import autoshard.mindspore as ms
        >>> ms.DynamicLossScaleManager(scale_window=100).get_loss_scale()
        16777216
    """

    def __init__(self, init_loss_scale: float = 2**24, scale_factor: float = 2, scale_window: int = 2000) -> None:
        self._made_with = init_loss_scale, scale_factor, scale_window
        self.get_update_cell()

    def get_loss_scale(self) -> float:
        return self._made_with[0]

    def get_drop_overflow_update(self) -> bool:
        return True

    def get_update_cell(self) -> Cell:
        return DynamicLossScaleUpdateCell(*self._made_with)


BY_LEVEL = object()
"""That no manager was given, nor None: the level of mixed precision says which."""


def scale_of(amp_level: str, manager: Any) -> LossScale | None:
    """What a manager says, as a step takes it; None of no manager.

    Raises:
        ContextError: something else.
    """
    if manager is BY_LEVEL:
        manager = DynamicLossScaleManager() if amp_level == "O2" else None
    if manager is None:
        return None
    if not isinstance(manager, LossScaleManager):
        raise ContextError(
            f"loss_scale_manager is {manager!r}; it is a FixedLossScaleManager, a DynamicLossScaleManager, or of a "
            "subclass of LossScaleManager"
        )
    cell = manager.get_update_cell()
    if cell is None:
        return LossScale(manager.get_loss_scale(), divides=False, skips=False)
    return ScaleOfCell(cell, type(manager).__name__)
