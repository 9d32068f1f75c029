"""MindSpore's further optimizers, each step written as a formula of arrays: what splits their operators splits them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from autoshard import ops
from autoshard.mindspore.nn.optim import Steps
from autoshard.trace import optim
from autoshard.trace.initializer import deferred
from autoshard.trace.optim import Rate
from autoshard.trace.parameter import Parameter
from autoshard.util.errors import ContextError


class _Formula(Steps):
    """A step whose new parameter and states `step` says."""

    begins: dict[str, float] = {}
    """What states begin as, by name, where it is not 0."""

    def __init__(self, params: Iterable[Any], rate: Rate, weight_decay: float, loss_scale: float = 1.0) -> None:
        optim.Optimizer.__init__(self, self._begin(params, loss_scale), rate, weight_decay)
        for row in self.states.values():
            for name, state in zip(self.state_names, row, strict=True):
                if self.begins.get(name):
                    state.data = deferred(self.begins[name], state.shape, state.dtype)

    def step(self, parameter: Any, states: Sequence[Any], grad: Any, rate: Any, decay: float, count: Any) -> list[Any]:
        """The new parameter and the new states, in their order; `count` is the number of the step, from 1."""
        raise NotImplementedError

    def _apply(self, parameter: Parameter, grad: Any, following: Any, rate: Any, weight_decay: float) -> None:
        states = self.states[id(parameter)]
        found = self.step(parameter, states, grad, rate, weight_decay, following)
        for target, value in zip((parameter, *states), found, strict=True):
            target.assign(value)


class RMSProp(_Formula):
    """s = decay * s + (1 - decay) * g^2; m = momentum * m + rate * g / sqrt(s + epsilon); parameter -= m.

    s begins as 1. `centered` takes the square of the mean gradient from s below the root.
    """

    def __init__(
        self,
        params: Iterable[Any],
        learning_rate: Rate = 0.1,
        decay: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-10,
        use_locking: bool = False,
        centered: bool = False,
        loss_scale: float = 1.0,
        weight_decay: float = 0.0,
    ) -> None:
        _check_at_least("RMSProp", 0.0, decay=decay, momentum=momentum, epsilon=epsilon)
        self.decay, self.momentum, self.epsilon, self.centered = decay, momentum, epsilon, centered
        self.state_names = ("mean_square", "moment", *(("mean_grad",) if centered else ()))
        self.begins = {"mean_square": 1.0}
        super().__init__(params, learning_rate, weight_decay, loss_scale)

    def step(self, parameter: Any, states: Sequence[Any], grad: Any, rate: Any, decay: float, count: Any) -> list[Any]:
        """The formula above."""
        grad = _decayed(parameter, grad, decay)
        square = _scaled(states[0], self.decay) + _scaled(ops.square(grad), 1 - self.decay)
        below, means = square, []
        if self.centered:
            means = [_scaled(states[2], self.decay) + _scaled(grad, 1 - self.decay)]
            below = square - ops.square(means[0])
        change = _scaled(grad, rate) / ops.sqrt(ops.scalar_add(below, addend=self.epsilon))
        moment = _scaled(states[1], self.momentum) + change
        return [parameter - moment, square, moment, *means]


class Adagrad(_Formula):
    """a = a + g^2; parameter -= rate * g / sqrt(a), with a that begins as `accum`."""

    state_names = ("accum",)

    def __init__(
        self,
        params: Iterable[Any],
        accum: float = 0.1,
        learning_rate: Rate = 0.001,
        update_slots: bool = True,
        loss_scale: float = 1.0,
        weight_decay: float = 0.0,
    ) -> None:
        _check_at_least("Adagrad", 0.0, accum=accum)
        self.update_slots, self.begins = update_slots, {"accum": accum}
        super().__init__(params, learning_rate, weight_decay, loss_scale)

    def step(self, parameter: Any, states: Sequence[Any], grad: Any, rate: Any, decay: float, count: Any) -> list[Any]:
        """The formula above; without `update_slots` a stays."""
        grad = _decayed(parameter, grad, decay)
        accum = states[0] + ops.square(grad) if self.update_slots else ops.identity(states[0])
        return [parameter - _scaled(grad, rate) / ops.sqrt(accum), accum]


class FTRL(_Formula):
    """m' = m + g^2; u = u + g - (m'^-p - m^-p) / rate * w; w = (sign(u) * l1 - u) / (m'^-p / rate + 2 * l2) where |u|
    is above l1, else 0; p is `lr_power`, and m begins as `initial_accum` (McMahan and Streeter 2010).
    """

    state_names = ("moments", "linear")

    def __init__(
        self,
        params: Iterable[Any],
        initial_accum: float = 0.1,
        learning_rate: float = 0.001,
        lr_power: float = -0.5,
        l1: float = 0.0,
        l2: float = 0.0,
        use_locking: bool = False,
        loss_scale: float = 1.0,
        weight_decay: float = 0.0,
    ) -> None:
        _check_at_least("FTRL", 0.0, initial_accum=initial_accum, l1=l1, l2=l2, **{"-lr_power": -lr_power})
        if not isinstance(learning_rate, float) or learning_rate <= 0:
            raise ContextError(f"FTRL: learning_rate is {learning_rate!r}; it is one number above 0 for all steps")
        self.power, self.l1, self.l2, self.begins = -lr_power, l1, l2, {"moments": initial_accum}
        super().__init__(params, learning_rate, weight_decay, loss_scale)

    def step(self, parameter: Any, states: Sequence[Any], grad: Any, rate: Any, decay: float, count: Any) -> list[Any]:
        """The formula above."""
        grad = _decayed(parameter, grad, decay)
        moment = states[0] + ops.square(grad)
        before, after = (_scaled(_power(one, self.power), 1 / rate) for one in (states[0], moment))
        linear = states[1] + grad - (after - before) * parameter
        found = (_scaled(ops.sign(linear), self.l1) - linear) / ops.scalar_add(after, addend=2 * self.l2)
        above = ops.greater(ops.abs(linear), np.asarray(self.l1, linear.dtype))
        return [ops.select(above, found, _scaled(found, 0.0)), moment, linear]


class Lamb(_Formula):
    """Adam's step r with bias correction, plus weight_decay * parameter, as long as the parameter is: parameter -=
    rate * |parameter| / |r| * r (You et al. 2020); where a length is 0, r is taken as it is.
    """

    state_names, counts_steps = ("lamb_m", "lamb_v"), True

    def __init__(
        self,
        params: Iterable[Any],
        learning_rate: Rate,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        _check_at_least("Lamb", 0.0, beta1=beta1, beta2=beta2, eps=eps)
        self.beta1, self.beta2, self.eps = beta1, beta2, eps
        super().__init__(params, learning_rate, weight_decay)

    def step(self, parameter: Any, states: Sequence[Any], grad: Any, rate: Any, decay: float, count: Any) -> list[Any]:
        """The formula above."""
        first = _scaled(states[0], self.beta1) + _scaled(grad, 1 - self.beta1)
        second = _scaled(states[1], self.beta2) + _scaled(ops.square(grad), 1 - self.beta2)
        means = [_corrected(one, beta, count) for one, beta in ((first, self.beta1), (second, self.beta2))]
        change = _decayed(parameter, means[0] / ops.scalar_add(ops.sqrt(means[1]), addend=self.eps), decay)
        lengths = [ops.sqrt(ops.reduce_sum(ops.square(one))) for one in (parameter, change)]
        zero = _scaled(lengths[0], 0.0)
        known = ops.logical_and(*(ops.greater(one, zero) for one in lengths))
        one = ops.scalar_add(zero, addend=1.0)
        ratio = ops.select(known, lengths[0] / ops.select(known, lengths[1], one), one)
        return [parameter - _scaled(change, rate) * ratio, first, second]


def _corrected(mean: Any, beta: float, count: Any) -> Any:
    """A moving mean that began at 0, divided by the share of what it has seen."""
    powers = ops.exp(_scaled(ops.cast(count, dtype="f32"), float(_log(beta))))
    return mean / ops.scalar_add(_scaled(powers, -1.0), addend=1.0)


def _power(value: Any, exponent: float) -> Any:
    return ops.sqrt(value) if exponent == 0.5 else ops.pow(value, np.asarray(exponent, value.dtype))


def _log(beta: float) -> float:
    return math.log(beta) if beta else -1e9


def _scaled(value: Any, factor: Any) -> Any:
    return ops.scalar_mul(value, factor=factor) if isinstance(factor, int | float) else value * factor


def _decayed(parameter: Any, grad: Any, decay: float) -> Any:
    return grad + _scaled(parameter, decay) if decay else grad


def _check_at_least(what: str, least: float, **settings: float) -> None:
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value < least:
            raise ContextError(f"{what}: {name} is {value!r}; it is a number of at least {least}")
