"""Mixed precision under MindSpore's names: levels, loss scales, and steps of training made with both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from autoshard import ops as core
from autoshard.mindspore.context import settings
from autoshard.mindspore.instead import INSTEAD
from autoshard.mindspore.loss_scale import (
    BY_LEVEL,
    DynamicLossScaleManager,
    FixedLossScaleManager,
    LossScaleManager,
    scale_of,
)
from autoshard.mindspore.mixed_precision import (
    BLACK,
    WHITE_CELLS,
    WHITE_PRIMITIVES,
    WideResult,
    auto_mixed_precision,
    custom_mixed_precision,
    level_for,
    mixed,
)
from autoshard.mindspore.nn.loss import WithLossCell
from autoshard.mindspore.nn.loss_scale import MINIMUM, ScaleOfCell
from autoshard.mindspore.one_step import TrainOneStepCell, TrainOneStepWithLossScaleCell
from autoshard.mindspore.ops.primitive import as_tensors
from autoshard.trace.cell import Cell
from autoshard.trace.loss_scale import Adjustment, finite, scale_parameter
from autoshard.trace.parameter import active, cast_to
from autoshard.util.errors import ContextError
from autoshard.util.offered import NotOfferedError

__all__ = [
    "DynamicLossScaleManager", "DynamicLossScaler", "FixedLossScaleManager", "LossScaleManager", "StaticLossScaler",
    "all_finite", "auto_mixed_precision", "build_train_network", "custom_mixed_precision", "get_black_list",
    "get_white_list",
]  # fmt: skip


class StaticLossScaler:
    """Scales a loss and divides gradients in a loop of one's own, with `value_and_grad`.

    Raises:
        ContextError: no number above 0.

    Example:
        >>> import numpy as np
        >>> from autoshard.mindspore import amp
        >>> scaler = amp.StaticLossScaler(8.0)
        >>> [one.tolist() for one in scaler.unscale((scaler.scale(np.ones(2, np.float32)),))]
        [[1.0, 1.0]]
    """

    def __init__(self, scale_value: float) -> None:
        self.scale_value = scale_parameter(scale_value, f"{type(self).__name__}: scale_value")

    def scale(self, inputs: Any) -> Any:
        """Tensors times the scale, in tuples and lists too."""
        return self._each(lambda one: one * cast_to(one.dtype, self.scale_value), inputs)

    def unscale(self, inputs: Any) -> Any:
        """Tensors divided by the scale."""
        return self._each(lambda one: one / cast_to(one.dtype, self.scale_value), inputs)

    def adjust(self, grads_finite: Any) -> Any:
        """Note whether gradients were finite; the scale stays."""
        return grads_finite

    def _each(self, change: Callable, inputs: Any) -> Any:
        if isinstance(inputs, tuple | list):
            return type(inputs)(self._each(change, one) for one in inputs)
        return as_tensors(change(inputs))


class DynamicLossScaler(StaticLossScaler):
    """The same with a scale that `adjust` divides by `scale_factor`, but not below 1, or after `scale_window` steps of
    finite gradients multiplies.

    Raises:
        ContextError: a number that cannot be.

    Example:
        >>> from autoshard.mindspore import amp
        >>> scaler = amp.DynamicLossScaler(8.0, scale_factor=2, scale_window=100)
        >>> _ = scaler.adjust(False)
        >>> float(scaler.scale_value.asnumpy())
        4.0
    """

    def __init__(self, scale_value: float, scale_factor: float, scale_window: int) -> None:
        super().__init__(scale_value)
        self.change = Adjustment(scale_factor, scale_window, MINIMUM, type(self).__name__)

    def adjust(self, grads_finite: Any) -> Any:
        """Change the scale by whether gradients were finite."""
        finite = np.asarray(grads_finite) if active() is None else grads_finite
        self.change(self.scale_value, core.logical_not(finite))
        return grads_finite


def all_finite(inputs: Any) -> Any:
    """Whether all elements of all tensors are finite numbers.

    Example:
        >>> import numpy as np
        >>> from autoshard.mindspore import amp
        >>> bool(amp.all_finite((np.ones(2, np.float32), np.array([np.inf], np.float32))))
        False
    """
    tensors = inputs if isinstance(inputs, tuple | list) else (inputs,)
    return as_tensors(finite(tensors))


def build_train_network(
    network: Cell,
    optimizer: Any,
    loss_fn: Any = None,
    level: str = "O0",
    boost_level: str = "O0",
    *,
    loss_scale_manager: Any = BY_LEVEL,
    keep_batchnorm_fp32: bool | None = None,
) -> TrainOneStepCell:
    """A step of training at a level of mixed precision, with the loss scale of the level or of a manager.

    Raises:
        ContextError: another level or manager, or `boost_level`, which is not offered.

    Example:
        >>> import numpy as np
        >>> from autoshard.mindspore import amp, nn
        >>> net = nn.Dense(4, 6)
        >>> step = amp.build_train_network(net, nn.SGD(net.trainable_params(), 0.1), nn.MSELoss(), level="O2")
        >>> loss, overflow, scale = step(np.ones((2, 4), np.float32), np.ones((2, 6), np.float32))
        >>> loss.shape, scale.dtype.name
        ((), 'float32')
    """
    if boost_level != "O0":
        raise ContextError(f"build_train_network: boost_level is {boost_level!r}, which is not offered; leave it out")
    level = level_for(level, settings().device_target, "build_train_network: level")
    widens = mixed(network, level, keep_batchnorm_fp32)
    if loss_fn is not None:
        network = WithLossCell(WideResult(network) if widens else network, loss_fn)
    scaling = scale_of(level, loss_scale_manager)
    if isinstance(scaling, ScaleOfCell):
        return TrainOneStepWithLossScaleCell(network, optimizer, scaling.cell)
    return TrainOneStepCell(network, optimizer, None if scaling is None else scaling.scale)


def get_white_list() -> list[type]:
    """The cells and primitives that level O1 computes in the narrow type."""
    return [*WHITE_CELLS, *WHITE_PRIMITIVES]


def get_black_list() -> list[type]:
    """The cells that level O2 leaves in float32."""
    return list(BLACK)


def __getattr__(name: str) -> Any:
    raise NotOfferedError(
        f"autoshard.mindspore.amp does not offer MindSpore's {name!r}", name, lambda: __all__, INSTEAD.get(name, "")
    )
