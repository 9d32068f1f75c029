"""Loss scales: gradients of a loss times a factor, so that small ones are not lost in narrow floats.

A step divides the gradients by the scale again. Where one of them is no finite number it changes neither parameters
nor states of the optimizer: it is skipped. A dynamic scale then falls, and grows after many good steps (Micikevicius et
al. 2018, "Mixed Precision Training", section 3.2).

    optim.AdamW(params, 1e-3, loss_scale=optim.DynamicLossScale())
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autoshard.ops.primitive import named_primitive
from autoshard.trace.parameter import Parameter, cast_to
from autoshard.util.checks import positive
from autoshard.util.errors import ContextError

LOSS_SCALE = "loss_scale"
"""What names of its states begin with."""


class OptimizerState(Parameter):
    """What an optimizer, and what scales its loss, keep from step to step."""


class LossScale:
    """A scale that stays as it is.

    Args:
        scale: a number above 0, or a parameter that holds one.
        divides: whether gradients are divided by it again; False leaves that to the optimizer.
        skips: whether a step is skipped where a gradient is no finite number.

    Attributes:
        skipped: how many steps were skipped.

    Raises:
        ContextError: another scale.

    Example:
        >>> from autoshard import nn, optim
        >>> optim.SGD(nn.Dense(4, 6).trainable_params(), 0.1, loss_scale=optim.LossScale(128)).scaling.scale
        128.0
    """

    def __init__(self, scale: float | Parameter = 128.0, *, divides: bool = True, skips: bool = True) -> None:
        self.scale = scale if isinstance(scale, Parameter) else checked_scale(scale, f"{type(self).__name__}: scale")
        self.divides = divides
        self.skipped = _number(f"{LOSS_SCALE}.skipped", 0, np.int32) if skips else None

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """What a checkpoint needs of it."""
        return tuple(one for one in (self.scale, self.skipped) if isinstance(one, Parameter))

    def scaled(self, loss: Any) -> Any:
        """The loss times the scale, as a tensor of the trace that is under way."""
        if isinstance(self.scale, Parameter):
            return named_primitive("Mul", "loss_scale.loss")(loss, _scalar(cast_to(loss.dtype, self.scale)))
        return named_primitive("ScalarMul", "loss_scale.loss", factor=self.scale)(loss)

    def step(self, optimizer: Callable[[Sequence[Any]], None], grads: Sequence[Any], only_if: Callable) -> None:
        """Let the optimizer step with gradients of the scaled loss; None stands for no gradient.

        Args:
            only_if: gives a context in which parameters are assigned where a condition holds alone.
        """
        share = self._share()
        grads = [None if grad is None else self._divided(grad, share, i) for i, grad in enumerate(grads)]
        if self.skipped is None:
            optimizer(grads)
            return
        good = finite([grad for grad in grads if grad is not None])
        with only_if(good):
            optimizer(grads)
        overflow = named_primitive("LogicalNot", "loss_scale.overflow")(good)
        skips = named_primitive("Cast", "loss_scale.skips", dtype="i32")(overflow)
        self.skipped.assign(named_primitive("Add", "loss_scale.skipped.next")(self.skipped, skips))
        self.adjust(overflow)

    def adjust(self, overflow: Any) -> None:
        """Assign the scale of the next step."""

    def _share(self) -> Any:
        """1 / the scale, where it is no number that is known beforehand."""
        if not isinstance(self.scale, Parameter):
            return None
        return named_primitive("Reciprocal", "loss_scale.share")(_scalar(self.scale))

    def _divided(self, grad: Any, share: Any, number: int) -> Any:
        if not self.divides:
            return grad
        if not isinstance(self.scale, Parameter):
            return named_primitive("ScalarMul", f"loss_scale.divided{number}", factor=1 / self.scale)(grad)
        # In wide floats: narrow ones may not hold 1 / scale.
        wide = cast_to(self.scale.dtype, grad)
        return cast_to(grad.dtype, named_primitive("Mul", f"loss_scale.divided{number}")(wide, share))


class DynamicLossScale(LossScale):
    """A scale that falls when a step is skipped, and grows after `window` good steps in turn.

    Args:
        scale: that of the first step.
        factor: by what it is divided and multiplied.
        window: after how many good steps it grows.
        minimum: what it does not fall below.

    Raises:
        ContextError: a number that cannot be.

    Example:
        >>> from autoshard import nn, optim
        >>> scale = optim.DynamicLossScale(2.0**10, window=100)
        >>> made = optim.Adam(nn.Dense(4, 6).trainable_params(), 1e-3, loss_scale=scale)
        >>> float(scale.scale.asnumpy()), sorted(one for one in made.parameters_dict() if "loss_scale" in one)
        (1024.0, ['loss_scale.good_steps', 'loss_scale.scale', 'loss_scale.skipped'])
    """

    def __init__(self, scale: float = 2.0**16, factor: float = 2.0, window: int = 2000, minimum: float = 0.0) -> None:
        super().__init__(scale_parameter(scale, f"{type(self).__name__}: scale"))
        self.change = Adjustment(factor, window, minimum, type(self).__name__)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return (*super().parameters, self.change.good_steps)

    def adjust(self, overflow: Any) -> None:
        assert isinstance(self.scale, Parameter)
        self.change(self.scale, overflow)


class Adjustment:
    """How a dynamic scale changes after a step; `good_steps` counts them since it last did."""

    def __init__(self, factor: float, window: int, minimum: float, what: str) -> None:
        self.factor = checked_scale(factor, f"{what}: factor", above=1.0)
        if positive(window) is None:
            raise ContextError(f"{what}: window is {window!r}; it is a whole number of at least 1")
        if isinstance(minimum, bool) or not isinstance(minimum, int | float | np.number) or minimum < 0:
            raise ContextError(f"{what}: minimum is {minimum!r}; it is a number of at least 0")
        self.window, self.minimum = int(window), float(minimum)
        self.good_steps = _number(f"{LOSS_SCALE}.good_steps", 0, np.int32)

    def __call__(self, scale: Parameter, overflow: Any) -> None:
        """Assign the scale and the count of good steps that follow."""
        number = scale.dtype.numpy.type
        less = named_primitive("ScalarMul", "loss_scale.less", factor=1 / self.factor)(scale)
        less = named_primitive("Maximum", "loss_scale.fallen")(less, np.asarray(number(self.minimum)))
        more = named_primitive("ScalarMul", "loss_scale.more", factor=self.factor)(scale)
        # A scale without end would be one of overflows without end.
        more = _select(named_primitive("IsFinite", "loss_scale.more.finite")(more), more, scale, "grown")
        good = named_primitive("ScalarAdd", "loss_scale.good", addend=1)(self.good_steps)
        full = named_primitive("GreaterEqual", "loss_scale.full")(good, np.asarray(self.window, np.int32))
        begins = named_primitive("LogicalOr", "loss_scale.begins")(overflow, full)
        scale.assign(_select(overflow, less, _select(full, more, scale, "kept"), "next"))
        self.good_steps.assign(_select(begins, np.asarray(0, np.int32), good, "good_steps.next"))


def scale_parameter(scale: Any, what: str) -> Parameter:
    """A scale that changes from step to step. Raises ContextError where it is no number above 0."""
    return _number(f"{LOSS_SCALE}.scale", checked_scale(scale, what), np.float32)


def checked_scale(scale: Any, what: str, above: float = 0.0) -> float:
    """The number as a float. Raises ContextError where it is none above `above`, or infinite."""
    is_number = isinstance(scale, int | float | np.number) and not isinstance(scale, bool)
    if not is_number or not above < scale < math.inf:
        raise ContextError(f"{what} is {scale!r}; it is a number above {above:g}")
    return float(scale)


def _number(name: str, value: float, kind: type) -> Parameter:
    return OptimizerState(np.asarray(value, kind), name=name, requires_grad=False)


def _scalar(scale: Any) -> Any:
    """The scale without dims, where it is one of MindSpore's in an array of one element."""
    return named_primitive("Reshape", "loss_scale.scalar")(scale, ()) if scale.shape else scale


def finite(grads: Sequence[Any]) -> Any:
    """Whether all elements of all gradients are finite numbers."""
    counts = [_infinite(grad, i) for i, grad in enumerate(grads)]
    total = named_primitive("AddN", "loss_scale.infinite")(*counts) if len(counts) > 1 else counts[0]
    return named_primitive("Equal", "loss_scale.finite")(total, np.zeros((), np.float32))


def _infinite(grad: Any, number: int) -> Any:
    """How many elements are none, which devices add up as they do all sums."""
    wrong = named_primitive("LogicalNot", f"loss_scale.wrong{number}")(
        named_primitive("IsFinite", f"loss_scale.finite{number}")(grad)
    )
    count = named_primitive("Cast", f"loss_scale.count{number}", dtype="f32")(wrong)
    return named_primitive("ReduceSum", f"loss_scale.infinite{number}")(count)


def _select(condition: Any, first: Any, second: Any, name: str) -> Any:
    return named_primitive("Select", f"loss_scale.{name}")(condition, first, second)
