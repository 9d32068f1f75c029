"""MindSpore's functions of arithmetic, comparison and activation."""

from __future__ import annotations

import math
from typing import Any

from autoshard import ops as core
from autoshard.core.tensortype import dtype as element
from autoshard.mindspore.ops import math as elementwise
from autoshard.mindspore.ops import neural
from autoshard.mindspore.ops.primitive import as_tensors, tensors
from autoshard.util.errors import ShapeError


def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    """input / other; "floor" or "trunc" rounds it."""
    if rounding_mode is None:
        return elementwise.Div()(input, other)
    if rounding_mode not in ("floor", "trunc"):
        raise ShapeError(f"div: rounding_mode is {rounding_mode!r}; it is None, 'floor' or 'trunc'")
    return (elementwise.FloorDiv if rounding_mode == "floor" else elementwise.TruncateDiv)()(input, other)


divide = div


def subtract(input: Any, other: Any, *, alpha: float = 1) -> Any:
    """input - alpha * other."""
    return elementwise.Sub()(input, other if alpha == 1 else elementwise.Mul()(other, alpha))


def round(input: Any, *, decimals: int = 0) -> Any:
    """The nearest whole number, of two the even one; or so many decimals."""
    return elementwise.Round()(input, decimals)


def trunc(input: Any) -> Any:
    """The number without its fraction."""
    return as_tensors(core.mul(core.sign(input), core.floor(core.abs(input))))


def clamp(input: Any, min: Any = None, max: Any = None) -> Any:
    """Kept between min and max, of which one may be left out."""
    if min is None and max is None:
        raise ShapeError("clamp: give min, max or both")
    x = input if min is None else elementwise.Maximum()(input, min)
    return x if max is None else elementwise.Minimum()(x, max)


clip = clamp


def clip_by_value(x: Any, clip_value_min: Any = None, clip_value_max: Any = None) -> Any:
    """The same as `clamp`."""
    return clamp(x, clip_value_min, clip_value_max)


def clip_by_global_norm(x: Any, clip_norm: float = 1.0, use_norm: Any = None) -> tuple[Any, ...]:
    """Tensors times clip_norm / max(norm, clip_norm), for the norm of all their elements together.

    Raises:
        ShapeError: no tensors, a norm that is not above 0, or `use_norm`, which MindSpore has no meaning for either.
    """
    if use_norm is not None or not isinstance(x, tuple | list) or not x:
        raise ShapeError("clip_by_global_norm takes a tuple of tensors, and use_norm=None")
    if isinstance(clip_norm, int | float) and clip_norm <= 0:
        raise ShapeError(f"clip_by_global_norm: clip_norm is {clip_norm!r}; it is a number above 0")
    squares = [core.reduce_sum(core.square(one)) for one in x if one is not None]
    norm = core.sqrt(core.add_n(*squares))
    factor = core.div(clip_norm, core.maximum(norm, clip_norm))
    return tuple(None if one is None else as_tensors(core.mul(one, factor)) for one in x)


def relu(input: Any, inplace: bool = False) -> Any:
    """max(x, 0); `inplace` is not offered, as tensors of a trace never change."""
    if inplace:
        raise ShapeError("relu: inplace=True is not offered; use the result")
    return elementwise.ReLU()(input)


def gelu(input: Any, approximate: str = "none") -> Any:
    """x times the normal distribution function of x; "tanh" takes the approximation by tanh."""
    if approximate not in ("none", "tanh"):
        raise ShapeError(f"gelu: approximate is {approximate!r}; it is 'none' or 'tanh'")
    return as_tensors(core.gelu(input, approximate=approximate))


def silu(input: Any) -> Any:
    """x times the sigmoid of x."""
    return as_tensors(core.silu(input))


def leaky_relu(input: Any, alpha: float = 0.2) -> Any:
    """x where it is at least 0, else alpha x."""
    below = core.scalar_mul(core.minimum(input, core.zeros_like(input)), factor=alpha)
    return as_tensors(core.add(core.relu(input), below))


def logsigmoid(x: Any) -> Any:
    """The logarithm of the sigmoid."""
    return as_tensors(core.neg(core.softplus(core.neg(x))))


def softplus(input: Any, beta: float = 1, threshold: float = 20) -> Any:
    """log(1 + exp(beta x)) / beta, and x itself where beta x is above the threshold."""
    scaled = input if beta == 1 else core.scalar_mul(input, factor=beta)
    far = core.greater(scaled, core.fill(shape=(), value=threshold, dtype=element(input.dtype).name))
    soft = core.softplus(scaled)
    return as_tensors(core.select(far, input, soft if beta == 1 else core.scalar_mul(soft, factor=1 / beta)))


def hardtanh(input: Any, min_val: float = -1.0, max_val: float = 1.0) -> Any:
    """Kept between two numbers."""
    return clamp(input, min_val, max_val)


def softmax(input: Any, axis: int = -1, *, dtype: Any = None) -> Any:
    """exp(x) divided by its sum along `axis`; in another element type, if given."""
    return neural.Softmax(axis)(input if dtype is None else elementwise.Cast()(input, dtype))


def where(condition: Any, input: Any, other: Any) -> Any:
    """`input` where the condition is true, else `other`."""
    return elementwise.Select()(condition, *tensors(input, other))


def log2(input: Any) -> Any:
    """The logarithm of base 2."""
    return as_tensors(core.scalar_mul(core.log(input), factor=1 / math.log(2)))


def log10(input: Any) -> Any:
    """The logarithm of base 10."""
    return as_tensors(core.scalar_mul(core.log(input), factor=1 / math.log(10)))


def exp2(input: Any) -> Any:
    """2 to the power of x."""
    return as_tensors(core.exp(core.scalar_mul(input, factor=math.log(2))))


def logaddexp(input: Any, other: Any) -> Any:
    """log(exp(input) + exp(other))."""
    return as_tensors(core.add(core.maximum(input, other), core.softplus(core.neg(core.abs(core.sub(input, other))))))


def isclose(input: Any, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    """Whether |input - other| is at most atol + rtol |other|; of infinite ones, whether both are the same."""
    near = core.scalar_add(core.scalar_mul(core.abs(other), factor=rtol), addend=atol)
    finite = core.logical_and(core.is_finite(input), core.is_finite(other))
    alike = core.logical_and(finite, core.less_equal(core.abs(core.sub(input, other)), near))
    alike = core.logical_or(alike, core.equal(input, other))
    if equal_nan:
        alike = core.logical_or(alike, core.logical_and(core.not_equal(input, input), core.not_equal(other, other)))
    return as_tensors(alike)


def addcmul(input: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> Any:
    """input + value * tensor1 * tensor2."""
    return elementwise.Add()(input, _times(elementwise.Mul()(tensor1, tensor2), value))


def addcdiv(input: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> Any:
    """input + value * tensor1 / tensor2."""
    return elementwise.Add()(input, _times(elementwise.Div()(tensor1, tensor2), value))


def _times(x: Any, value: Any) -> Any:
    return x if isinstance(value, int | float) and value == 1 else elementwise.Mul()(x, value)


def tanhshrink(input: Any) -> Any:
    """x - tanh(x)."""
    return as_tensors(core.sub(input, core.tanh(input)))


def threshold(input: Any, thr: float, value: float) -> Any:
    """x where it is above `thr`, else `value`."""
    limit = core.fill(shape=(), value=thr, dtype=element(input.dtype).name)
    return as_tensors(core.masked_fill(input, core.less_equal(input, limit), value=float(value)))


def softmin(x: Any, axis: int = -1, *, dtype: Any = None) -> Any:
    """`softmax` of -x."""
    return softmax(core.neg(x), axis, dtype=dtype)


def glu(x: Any, axis: int = -1) -> Any:
    """The first half along `axis` times the sigmoid of the second."""
    if x.shape[axis] % 2:
        raise ShapeError(f"glu: dim {axis} of {tuple(x.shape)} has no two halves")
    first, second = core.split(x, axis=axis, output_num=2)
    return as_tensors(core.mul(first, core.sigmoid(second)))
