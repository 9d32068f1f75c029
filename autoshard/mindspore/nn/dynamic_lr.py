"""Learning rates as a list with a number per step, by epochs, with MindSpore's names, arguments and formulas.

rates = nn.cosine_decay_lr(0.01, 0.1, total_step=6, step_per_epoch=2, decay_epoch=2)
optimizer = nn.Momentum(net.trainable_params(), rates, 0.9)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from autoshard.mindspore.nn.learning_rate_schedule import (
    CosineDecayLR,
    ExponentialDecayLR,
    FallingLR,
    InverseDecayLR,
    NaturalExpDecayLR,
    PolynomialDecayLR,
    WarmUpLR,
    check_count,
    check_rate,
)
from autoshard.util.errors import ContextError

_NUMBERS = SimpleNamespace(
    floor=math.floor, ceil=math.ceil, cos=math.cos, exp=math.exp, pow=pow, minimum=min, maximum=max
)


def _by_epoch(what: str, schedule: Any, total_step: int, step_per_epoch: int) -> list[float]:
    """The schedule's rate of its epoch for each step."""
    check_count(what, "total_step", total_step)
    check_count(what, "step_per_epoch", step_per_epoch)
    return [schedule.at(step // step_per_epoch, _NUMBERS) for step in range(total_step)]


def _falling(name: str, kind: type[FallingLR]) -> Callable[..., list[float]]:
    def rates(
        learning_rate: float,
        decay_rate: float,
        total_step: int,
        step_per_epoch: int,
        decay_epoch: int,
        is_stair: bool = False,
    ) -> list[float]:
        return _by_epoch(name, kind(learning_rate, decay_rate, decay_epoch, is_stair), total_step, step_per_epoch)

    rates.__name__ = rates.__qualname__ = name
    rates.__doc__ = f"The rates of `{kind.__name__}`, by epochs."
    return rates


exponential_decay_lr = _falling("exponential_decay_lr", ExponentialDecayLR)
natural_exp_decay_lr = _falling("natural_exp_decay_lr", NaturalExpDecayLR)
inverse_decay_lr = _falling("inverse_decay_lr", InverseDecayLR)


def cosine_decay_lr(
    min_lr: float, max_lr: float, total_step: int, step_per_epoch: int, decay_epoch: int
) -> list[float]:
    """The rates of `CosineDecayLR`, by epochs."""
    return _by_epoch("cosine_decay_lr", CosineDecayLR(min_lr, max_lr, decay_epoch), total_step, step_per_epoch)


def polynomial_decay_lr(
    learning_rate: float,
    end_learning_rate: float,
    total_step: int,
    step_per_epoch: int,
    decay_epoch: int,
    power: float,
    update_decay_epoch: bool = False,
) -> list[float]:
    """The rates of `PolynomialDecayLR`, by epochs."""
    schedule = PolynomialDecayLR(learning_rate, end_learning_rate, decay_epoch, power, update_decay_epoch)
    return _by_epoch("polynomial_decay_lr", schedule, total_step, step_per_epoch)


def warmup_lr(learning_rate: float, total_step: int, step_per_epoch: int, warmup_epoch: int) -> list[float]:
    """The rates of `WarmUpLR`, by epochs."""
    return _by_epoch("warmup_lr", WarmUpLR(learning_rate, warmup_epoch), total_step, step_per_epoch)


def piecewise_constant_lr(milestone: Sequence[int], learning_rates: Sequence[float]) -> list[float]:
    """learning_rates[i] for the steps from milestone[i - 1] to before milestone[i].

    Raises:
        ContextError: not as many rates as milestones, or milestones that fall.
    """
    if len(milestone) != len(learning_rates):
        raise ContextError(
            f"piecewise_constant_lr: {len(milestone)} milestones for {len(learning_rates)} learning_rates; it needs as "
            "many of one as of the other"
        )
    rates: list[float] = []
    for i, (end, rate) in enumerate(zip(milestone, learning_rates, strict=True)):
        check_count("piecewise_constant_lr", f"milestone[{i}]", end)
        check_rate("piecewise_constant_lr", f"learning_rates[{i}]", rate, zero=True)
        if end < len(rates):
            raise ContextError(f"piecewise_constant_lr: milestone[{i}] is {end}, below {len(rates)} before it")
        rates += [rate] * (end - len(rates))
    return rates
