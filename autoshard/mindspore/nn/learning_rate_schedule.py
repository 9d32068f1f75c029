"""Learning rates as cells of the step's number, which counts from 0, with MindSpore's names, arguments and formulas.

    rate = nn.CosineDecayLR(0.001, 0.1, 1000)
    optimizer = nn.Momentum(net.trainable_params(), rate, 0.9)

A subclass of `LearningRateSchedule` says a rate of its own in `construct`. `dynamic_lr` has the same as lists.
"""

from __future__ import annotations

import math
from typing import Any

from autoshard.mindspore import ops
from autoshard.trace.cell import Cell
from autoshard.util.checks import positive
from autoshard.util.errors import ContextError


class LearningRateSchedule(Cell):
    """A learning rate that `construct(global_step)` gives as a tensor without dims."""


class _Decay(LearningRateSchedule):
    """A rate that `at` says of the step's number."""

    def construct(self, global_step: Any) -> Any:
        return self.at(ops.cast(global_step, "f32"), ops)

    def at(self, step: Any, space: Any) -> Any:
        """The rate of a step, by the functions of `space`: of tensors or of numbers."""
        raise NotImplementedError


class FallingLR(_Decay):
    """A rate that falls by `decay_rate`, with `is_stair` all at once behind `decay_steps` steps each."""

    def __init__(self, learning_rate: float, decay_rate: float, decay_steps: int, is_stair: bool = False) -> None:
        super().__init__()
        check_rate(self, "learning_rate", learning_rate)
        check_rate(self, "decay_rate", decay_rate)
        check_count(self, "decay_steps", decay_steps)
        check_flag(self, "is_stair", is_stair)
        self.learning_rate, self.decay_rate = learning_rate, decay_rate
        self.decay_steps, self.is_stair = decay_steps, is_stair

    def turns(self, step: Any, space: Any) -> Any:
        """How many times `decay_steps` are done."""
        return space.floor(step / self.decay_steps) if self.is_stair else step / self.decay_steps


class ExponentialDecayLR(FallingLR):
    """learning_rate * decay_rate^(step / decay_steps)."""

    def at(self, step: Any, space: Any) -> Any:
        return self.learning_rate * space.pow(self.decay_rate, self.turns(step, space))


class NaturalExpDecayLR(FallingLR):
    """learning_rate * e^(-decay_rate * step); with `is_stair` of the last step that `decay_steps` divide."""

    def at(self, step: Any, space: Any) -> Any:
        begun = self.turns(step, space) * self.decay_steps if self.is_stair else step
        return self.learning_rate * space.exp(-self.decay_rate * begun)


class InverseDecayLR(FallingLR):
    """learning_rate / (1 + decay_rate * step / decay_steps)."""

    def at(self, step: Any, space: Any) -> Any:
        return self.learning_rate / (1 + self.decay_rate * self.turns(step, space))


class CosineDecayLR(_Decay):
    """From max_lr to min_lr along half a cosine in `decay_steps` steps, then min_lr."""

    def __init__(self, min_lr: float, max_lr: float, decay_steps: int) -> None:
        super().__init__()
        check_rate(self, "min_lr", min_lr, zero=True)
        check_rate(self, "max_lr", max_lr)
        check_count(self, "decay_steps", decay_steps)
        if min_lr >= max_lr:
            raise ContextError(f"{type(self).__name__}: min_lr is {min_lr!r}; it is below max_lr {max_lr!r}")
        self.min_lr, self.max_lr, self.decay_steps = min_lr, max_lr, decay_steps

    def at(self, step: Any, space: Any) -> Any:
        share = space.minimum(step, float(self.decay_steps)) / self.decay_steps
        return self.min_lr + 0.5 * (self.max_lr - self.min_lr) * (1.0 + space.cos(math.pi * share))


class PolynomialDecayLR(_Decay):
    """end_learning_rate + (learning_rate - end_learning_rate) * (1 - step / decay_steps)^power, then the end's rate;
    with `update_decay_steps` decay_steps are taken so many times that they are not fewer than the step.
    """

    def __init__(
        self,
        learning_rate: float,
        end_learning_rate: float,
        decay_steps: int,
        power: float,
        update_decay_steps: bool = False,
    ) -> None:
        super().__init__()
        check_rate(self, "learning_rate", learning_rate)
        check_rate(self, "end_learning_rate", end_learning_rate, zero=True)
        check_count(self, "decay_steps", decay_steps)
        check_rate(self, "power", power)
        check_flag(self, "update_decay_steps", update_decay_steps)
        self.learning_rate, self.end_learning_rate, self.power = learning_rate, end_learning_rate, power
        self.decay_steps, self.update_decay_steps = decay_steps, update_decay_steps

    def at(self, step: Any, space: Any) -> Any:
        count: Any = float(self.decay_steps)
        if self.update_decay_steps:
            count = count * space.maximum(space.ceil(step / count), 1.0)
        else:
            step = space.minimum(step, count)
        falls = self.learning_rate - self.end_learning_rate
        return falls * space.pow(1.0 - step / count, self.power) + self.end_learning_rate


class WarmUpLR(_Decay):
    """From 0 to learning_rate in `warmup_steps` steps, evenly, then learning_rate."""

    def __init__(self, learning_rate: float, warmup_steps: int) -> None:
        super().__init__()
        check_rate(self, "learning_rate", learning_rate, zero=True)
        check_count(self, "warmup_steps", warmup_steps)
        self.learning_rate, self.warmup_steps = learning_rate, warmup_steps

    def at(self, step: Any, space: Any) -> Any:
        return self.learning_rate * (space.minimum(step, float(self.warmup_steps)) / self.warmup_steps)


def check_rate(of: Any, name: str, value: Any, zero: bool = False) -> None:
    """Raises ContextError: no float above 0 (or, with `zero`, of at least 0), as MindSpore has them."""
    if not isinstance(value, float) or not math.isfinite(value) or value < 0 or value == 0 and not zero:
        raise ContextError(
            f"{_name(of)}: {name} is {value!r}; it is a float {'of at least 0.0' if zero else 'above 0.0'}"
        )


def check_count(of: Any, name: str, value: Any) -> None:
    """Raises ContextError: no whole number of at least 1."""
    if positive(value) is None:
        raise ContextError(f"{_name(of)}: {name} is {value!r}; it is a whole number of at least 1")


def check_flag(of: Any, name: str, value: Any) -> None:
    """Raises ContextError: neither True nor False."""
    if not isinstance(value, bool):
        raise ContextError(f"{_name(of)}: {name} is {value!r}; it is True or False")


def _name(of: Any) -> str:
    return of if isinstance(of, str) else type(of).__name__
