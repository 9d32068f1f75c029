"""Initial values of parameters: constants and the usual distributions, arrays from one seeded stream.

Xavier: Glorot and Bengio 2010; He: He, Zhang, Ren, Sun 2015. A weight is [out, in, ...], as in MindSpore.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from autoshard.core.tensortype import DType, TensorType
from autoshard.util.errors import ShapeError, UnknownNameError

_STREAM = [np.random.default_rng(0)]
_SEEDS = [itertools.count(1)]


_SEED: list[int | None] = [None]


def get_seed() -> int | None:
    """What `set_seed` was given last; None before that."""
    return _SEED[0]


def set_seed(seed: int | None) -> None:
    """Start the stream of random initial values, and the numbering of dropout cells, anew; None: as at first."""
    _SEED[0] = seed
    _STREAM[0] = np.random.default_rng(seed or 0)
    _SEEDS[0] = itertools.count((seed or 0) * 1_000_003 + 1)


def next_seed() -> int:
    """A seed for a cell that draws random numbers while it runs; every call gives another one."""
    return next(_SEEDS[0])


@dataclass(frozen=True)
class Normal:
    """Normally distributed values."""

    sigma: float = 0.01
    mean: float = 0.0

    def __call__(self, rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
        return rng.normal(self.mean, self.sigma, shape)


@dataclass(frozen=True)
class Uniform:
    """Evenly distributed values between -scale and scale."""

    scale: float = 0.07

    def __call__(self, rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
        return rng.uniform(-self.scale, self.scale, shape)


@dataclass(frozen=True)
class Constant:
    """The same value everywhere."""

    value: float

    def __call__(self, rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
        return np.full(shape, self.value)


@dataclass(frozen=True)
class Scaled:
    """Values whose variance keeps signals at their size: gain^2 / fan, where `fan` is "in" or the mean of
    both ("avg"), or "out".
    """

    gain: float
    fan: str
    normal: bool = False

    def __call__(self, rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
        fan_in, fan_out = _fans(shape)
        fan = {"in": fan_in, "out": fan_out, "avg": (fan_in + fan_out) / 2}[self.fan]
        sigma = self.gain / math.sqrt(fan)
        return rng.normal(0.0, sigma, shape) if self.normal else rng.uniform(-1, 1, shape) * (sigma * math.sqrt(3))


Init = Callable[[np.random.Generator, Sequence[int]], np.ndarray]
_BY_NAME: dict[str, Init] = {
    "zeros": Constant(0.0),
    "zero": Constant(0.0),
    "ones": Constant(1.0),
    "one": Constant(1.0),
    "normal": Normal(),
    "uniform": Uniform(),
    "xavier_uniform": Scaled(1.0, "avg"),
    "xavier_normal": Scaled(1.0, "avg", normal=True),
    "he_uniform": Scaled(math.sqrt(2.0), "in"),
    "he_normal": Scaled(math.sqrt(2.0), "in", normal=True),
}


def initializer(
    init: str | Init | float | np.ndarray,
    shape: int | Sequence[int] = (),
    dtype: DType | str | type = "f32",
) -> np.ndarray:
    """An array of `shape` with values from `init`: a name, an object such as Normal(), a number, an array.

    Raises:
        UnknownNameError: no such name.
        ShapeError: an array of another shape, or a distribution that needs two dims.
    """
    return deferred(init, shape, dtype).array()


class Deferred:
    """Initial values that are made when they are first asked for: planning a model of any size costs no memory.

    The seed is drawn from the stream when the object is made, so values do not depend on the order of use.
    """

    def __init__(self, of: TensorType, make: Callable[[], np.ndarray]) -> None:
        self.type, self._make = of, make

    def array(self) -> np.ndarray:
        return self._make()


def deferred(
    init: str | Init | float | np.ndarray,
    shape: int | Sequence[int] = (),
    dtype: DType | str | type = "f32",
) -> Deferred:
    """What `initializer` gives, checked now and made later; errors as there."""
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    of = TensorType.of(sizes, dtype)
    target = of.dtype.numpy
    if isinstance(init, np.ndarray):
        if sizes not in ((), init.shape):
            raise ShapeError(f"initial values of shape {init.shape} were given for a parameter of shape {sizes}")
        return Deferred(of.with_shape(init.shape), partial(init.astype, target))
    if isinstance(init, int | float):
        return Deferred(of, partial(np.full, sizes, init, target))
    if isinstance(init, str):
        known = {name.replace("_", ""): one for name, one in _BY_NAME.items()}
        if init.lower().replace("_", "") not in known:
            raise UnknownNameError(f"unknown initial distribution {init!r}; known are {', '.join(_BY_NAME)}")
        init = known[init.lower().replace("_", "")]
    if isinstance(init, Scaled):
        _fans(sizes)
    make, seed = init, int(_STREAM[0].integers(1 << 62))
    return Deferred(of, partial(_drawn, make, seed, of))


def _drawn(make: Init, seed: int, of: TensorType) -> np.ndarray:
    return make(np.random.default_rng(seed), of.shape).astype(of.dtype.numpy)


def _fans(shape: Sequence[int]) -> tuple[int, int]:
    if len(shape) < 2:
        raise ShapeError(f"xavier and he distributions need a weight [out, in, ...], not shape {tuple(shape)}")
    field = math.prod(shape[2:])
    return shape[1] * field, shape[0] * field
