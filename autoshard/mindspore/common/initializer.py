"""What parameters begin with, under MindSpore's names: `initializer("normal", (3, 4), ms.float32)`, `HeUniform()`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autoshard.core.tensortype import dtype as element
from autoshard.mindspore.tensor import Tensor
from autoshard.trace.initializer import Constant, Normal, Scaled, Uniform
from autoshard.trace.initializer import initializer as made
from autoshard.util.errors import ShapeError

__all__ = [
    "Constant", "HeNormal", "HeUniform", "Normal", "One", "TruncatedNormal", "Uniform", "XavierNormal", "XavierUniform",
    "Zero", "initializer",
]  # fmt: skip


def initializer(init: Any, shape: Any = None, dtype: Any = "f32") -> Tensor:
    """A tensor with values from `init`: a name such as "normal", an object such as Normal(), a number, a tensor."""
    sizes = () if shape is None else (int(shape),) if isinstance(shape, int) else tuple(shape)
    return made(init, sizes, element(dtype)).view(Tensor)


def _gain(slope: float, nonlinearity: str) -> float:
    """How much a leaky ReLU of that slope takes from a signal (He et al. 2015, section 2.2)."""
    gains = {
        "leaky_relu": math.sqrt(2 / (1 + slope**2)),
        "relu": math.sqrt(2),
        "linear": 1.0,
        "sigmoid": 1.0,
        "tanh": 5 / 3,
    }
    if nonlinearity not in gains:
        raise ShapeError(f"nonlinearity is {nonlinearity!r}; it is one of {', '.join(gains)}")
    return gains[nonlinearity]


def _fan(mode: str) -> str:
    if mode not in ("fan_in", "fan_out"):
        raise ShapeError(f"mode is {mode!r}; it is 'fan_in' or 'fan_out'")
    return mode.removeprefix("fan_")


def HeUniform(negative_slope: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> Scaled:
    """Even between -b and b, b = gain sqrt(3 / fan)."""
    return Scaled(_gain(negative_slope, nonlinearity), _fan(mode))


def HeNormal(negative_slope: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> Scaled:
    """Normal with the deviation gain / sqrt(fan)."""
    return Scaled(_gain(negative_slope, nonlinearity), _fan(mode), normal=True)


def XavierUniform(gain: float = 1) -> Scaled:
    """Even between -b and b, b = gain sqrt(6 / (fan in + fan out))."""
    return Scaled(gain, "avg")


def XavierNormal(gain: float = 1) -> Scaled:
    """Normal with the deviation gain sqrt(2 / (fan in + fan out))."""
    return Scaled(gain, "avg", normal=True)


def One() -> Constant:
    """1 everywhere."""
    return Constant(1.0)


def Zero() -> Constant:
    """0 everywhere."""
    return Constant(0.0)


class TruncatedNormal:
    """Normal values, drawn again where they are not between a and b."""

    def __init__(self, sigma: float = 0.01, mean: float = 0.0, a: float = -2.0, b: float = 2.0) -> None:
        if not a < b:
            raise ShapeError(f"TruncatedNormal: a is {a} and b {b}; a is below b")
        self.sigma, self.mean, self.a, self.b = sigma, mean, a, b

    def __call__(self, rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
        from scipy.stats import truncnorm

        low, high = ((end - self.mean) / self.sigma for end in (self.a, self.b))
        drawn = truncnorm.rvs(low, high, self.mean, self.sigma, size=tuple(shape), random_state=rng)
        return np.asarray(drawn)
