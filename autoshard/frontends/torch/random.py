"""Overloads that draw random numbers: autoshard's own, the same on any number of ranks, others in each run.

All are made of numbers evenly spread between 0 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autoshard import ops
from autoshard.core.tensortype import dtype
from autoshard.frontends.torch.pointwise import as_type
from autoshard.frontends.torch.shapes import spread
from autoshard.frontends.torch.table import Call, cast, do, number, translates


def drawn(call: Call, shape: Sequence[int] | None = None) -> Any:
    """Numbers between 0 and 1, f32, of the shape of the (first) result if no other is given."""
    return do(ops.uniform_real, call.counter(), shape=tuple(call.shape if shape is None else shape), seed=call.seed)


def _f32(x: Any) -> Any:
    return as_type(x, dtype("f32"))


def _moved(call: Call, x: Any, scale: Any, start: Any) -> Any:
    """start + scale x, in the element type of the result."""
    return call.cast(do(ops.add, do(ops.mul, x, _f32(scale)), _f32(start)))


@translates("aten.rand.default", "aten.rand.generator", "aten.rand_like.default", "aten.rand_like.generator")
def _(call: Call, *args: Any, **options: Any) -> Any:
    return call.cast(drawn(call))


@translates("aten.uniform.default")
def _(call: Call, x: Any, low: float = 0, high: float = 1, **options: Any) -> Any:
    return _moved(call, drawn(call), float(high) - float(low), low)


# -- normal numbers


def _normal(call: Call) -> Any:
    """sqrt(2) erfinv(2 u - 1), as the inverse of the distribution function."""
    wide = do(ops.scalar_add, do(ops.scalar_mul, drawn(call), factor=2.0), addend=-1.0)
    return do(ops.scalar_mul, do(ops.erf_inv, wide), factor=math.sqrt(2))


@translates("aten.randn.default", "aten.randn.generator", "aten.randn_like.default", "aten.randn_like.generator")
def _(call: Call, *args: Any, **options: Any) -> Any:
    return call.cast(_normal(call))


@translates(
    "aten.normal.float_float", "aten.normal.float_Tensor", "aten.normal.Tensor_float", "aten.normal.Tensor_Tensor"
)
def _(call: Call, mean: Any, std: Any = 1.0, *size: Any, **options: Any) -> Any:
    return _moved(call, _normal(call), std, mean)


@translates("aten.normal_functional.default")
def _(call: Call, x: Any, mean: float = 0, std: float = 1, **options: Any) -> Any:
    return _moved(call, _normal(call), std, mean)


@translates("aten.log_normal.default")
def _(call: Call, x: Any, mean: float = 1, std: float = 2, **options: Any) -> Any:
    return call.cast(do(ops.exp, do(ops.scalar_add, scaled_by(_normal(call), std), addend=float(mean))))


def scaled_by(x: Any, factor: float) -> Any:
    return do(ops.scalar_mul, x, factor=float(factor))


# -- other distributions


@translates("aten.exponential.default")
def _(call: Call, x: Any, rate: float = 1, **options: Any) -> Any:
    return call.cast(scaled_by(do(ops.log, drawn(call)), -1 / rate))


@translates("aten.cauchy.default")
def _(call: Call, x: Any, median: float = 0, sigma: float = 1, **options: Any) -> Any:
    angle = scaled_by(do(ops.scalar_add, drawn(call), addend=-0.5), math.pi)
    return _moved(call, do(ops.tan, angle), sigma, median)


@translates("aten.geometric.default")
def _(call: Call, x: Any, p: float, **options: Any) -> Any:
    return call.cast(do(ops.ceil, scaled_by(do(ops.log, drawn(call)), 1 / math.log1p(-p)) if p < 1 else _f32(1.0)))


@translates("aten.bernoulli.default", "aten.bernoulli.p", "aten.bernoulli.Tensor")
def _(call: Call, x: Any, p: Any = None, **options: Any) -> Any:
    return call.cast(do(ops.less, drawn(call), _f32(x if p is None else p)))


def _between(call: Call, low: int, high: int) -> Any:
    if high - low > 1 << 24:
        call.refuse(f"whole numbers from {low} to {high}: more than 2^24 different ones")
    wide = do(ops.floor, scaled_by(drawn(call), high - low))
    return call.cast(do(ops.scalar_add, cast(wide, dtype("i64")), addend=int(low)))


@translates("aten.randint.default", "aten.randint.generator", "aten.randint_like.default")
def _(call: Call, first: Any, *args: Any, **options: Any) -> Any:
    high = args[0] if isinstance(first, np.ndarray) or not isinstance(first, int) else first
    return _between(call, 0, int(high))


@translates("aten.randint.low", "aten.randint.low_generator", "aten.randint_like.low_dtype")
def _(call: Call, *args: Any, **options: Any) -> Any:
    low, high = [one for one in args if isinstance(one, int)][:2]
    return _between(call, low, high)


@translates("aten.randperm.default", "aten.randperm.generator")
def _(call: Call, n: int, **options: Any) -> Any:
    return call.cast(do(ops.arg_sort, drawn(call, (n,)), axis=0))


@translates("aten.multinomial.default")
def _(call: Call, weights: Any, count: int, replacement: bool = False, **options: Any) -> Any:
    """With replacement by the distribution function; without, the largest of u^(1 / weight) (Efraimidis, Spirakis)."""
    last = len(weights.shape) - 1
    weights = cast(weights, dtype("f32"))
    if not replacement:
        keys = do(ops.div, do(ops.log, drawn(call, weights.shape)), weights)
        return call.cast(do(ops.top_k, keys, k=count)[1])
    sums = do(ops.cum_sum, weights, axis=last)
    whole = do(ops.reduce_sum, weights, axis=(last,), keep_dims=True)
    at = do(ops.expand_dims, do(ops.mul, drawn(call), whole), axis=-1)
    below = do(ops.less_equal, do(ops.expand_dims, sums, axis=-2), at)
    found = do(ops.reduce_sum, cast(below, dtype("i64")), axis=(len(below.shape) - 1,))
    return call.cast(do(ops.minimum, found, np.int64(weights.shape[-1] - 1)))


# -- dropout


@translates("aten.dropout.default", "aten.alpha_dropout.default", "aten.feature_alpha_dropout.default")
def _(call: Call, x: Any, p: float, train: bool) -> Any:
    if not train or p == 0:
        return x
    name = str(call.node.target)
    shape = tuple(x.shape)
    if "feature" in name:
        shape = (*shape[:2], *(1,) * (len(shape) - 2))
    if "alpha" not in name:
        return dropped(call, x, p)
    if p == 1:
        return do(ops.mul, x, number(0, call.dtype))
    kept = do(ops.less, drawn(call, shape), np.float32(1 - p))
    alpha = 1.7580993408473766  # scale times alpha of SELU: where what is dropped goes (Klambauer et al. 2017)
    a = 1 / math.sqrt((alpha * alpha * p + 1) * (1 - p))
    low = do(ops.scalar_add, scaled_by(call.cast(kept), alpha * a), addend=alpha * a * (p - 1))
    return do(ops.add, do(ops.mul, x, scaled_by(call.cast(kept), a)), low)


@translates("aten.native_dropout.default")
def _(call: Call, x: Any, p: float, train: bool | None) -> Any:
    """Other elements than torch drops, the same on any number of ranks; beside it which of them are kept, if used."""
    if not p or train is False:
        return x, (np.ones(call.shape, bool) if call.used(1) else None)
    if not call.used(1):
        return dropped(call, x, p), None
    kept = do(ops.less, drawn(call), np.float32(1 - p))
    return do(ops.mul, x, scaled_by(call.cast(kept), 1 / (1 - p) if p < 1 else 0.0)), kept


@translates("aten.feature_dropout.default")
def _(call: Call, x: Any, p: float, train: bool) -> Any:
    if not train or p == 0:
        return x
    ones = filled_ones((*x.shape[:2], *(1,) * (len(x.shape) - 2)), call)
    return do(ops.mul, x, dropped(call, ones, p))


def filled_ones(shape: Sequence[int], call: Call) -> Any:
    return do(ops.fill, shape=tuple(shape), value=1.0, dtype=call.dtype.name)


def dropped(call: Call, x: Any, p: float) -> Any:
    """x with a share p of its elements 0, the others scaled."""
    if p == 1:
        return do(ops.mul, x, number(0, call.dtype))
    return do(ops.dropout, x, call.counter(), rate=p, seed=call.seed)


@translates("aten.rrelu_with_noise_functional.default")
def _(call: Call, x: Any, noise: Any, low: float = 1 / 8, high: float = 1 / 3, training: bool = False, *_: Any) -> Any:
    slope = number((low + high) / 2, call.dtype)
    if training:
        slope = _moved(call, drawn(call), high - low, low)
    positive = do(ops.greater, x, number(0, call.dtype))
    slope = do(ops.select, positive, number(1, call.dtype), spread(slope, call.shape))
    return do(ops.mul, x, slope), slope
