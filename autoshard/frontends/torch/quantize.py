"""Overloads of training for quantization: numbers on a grid of few bits, with the gradient of those on no grid."""

from __future__ import annotations

from typing import Any

from autoshard import ops
from autoshard.core.tensortype import dtype
from autoshard.frontends.torch.pointwise import as_type
from autoshard.frontends.torch.shapes import reshaped
from autoshard.frontends.torch.table import Call, axis, cast, do, number, translates


@translates(
    "aten.fake_quantize_per_tensor_affine.default",
    "aten.fake_quantize_per_tensor_affine.tensor_qparams",
    "aten.fake_quantize_per_tensor_affine_cachemask.default",
)
def _(call: Call, x: Any, scale: Any, zero: Any, least: int, most: int) -> Any:
    return _results(call, x, *_on_grid(x, scale, zero, least, most))


@translates("aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default")
def _(call: Call, x: Any, scale: Any, zero: Any, enabled: Any, least: int, most: int) -> Any:
    made, inside = _on_grid(x, scale, zero, least, most)
    off = do(ops.equal, reshaped(enabled, ()), number(0, dtype(enabled.dtype)))
    return _results(call, x, do(ops.select, off, x, made), do(ops.logical_or, off, inside))


@translates("aten.fake_quantize_per_channel_affine.default", "aten.fake_quantize_per_channel_affine_cachemask.default")
def _(call: Call, x: Any, scale: Any, zero: Any, dim: int, least: int, most: int) -> Any:
    behind = len(x.shape) - 1 - axis(dim, len(x.shape))
    column = (x.shape[dim], *(1,) * behind)
    return _results(call, x, *_on_grid(x, reshaped(scale, column), reshaped(zero, column), least, most))


def _on_grid(x: Any, scale: Any, zero: Any, least: int, most: int) -> tuple[Any, Any]:
    """Each element's nearest place on the grid, and whether that was within its bounds."""
    of = dtype(x.dtype)
    scale, zero = as_type(scale, of), as_type(zero, of)
    # torch multiplies by the inverse, which rounds otherwise than a quotient.
    place = do(ops.add, do(ops.round, do(ops.mul, x, do(ops.div, number(1, of), scale))), zero)
    low, high = number(least, of), number(most, of)
    inside = do(ops.logical_and, do(ops.greater_equal, place, low), do(ops.less_equal, place, high))
    bounded = do(ops.minimum, do(ops.maximum, place, low), high)
    return do(ops.mul, do(ops.sub, bounded, zero), scale), inside


def _results(call: Call, x: Any, made: Any, inside: Any) -> Any:
    """The numbers, whose gradient is that of x where they are within bounds, and where they are, if it is asked for."""
    made = cast(made, call.dtype)
    if call.training:
        cotangent = do(ops.cotangent, made)
        slope = do(ops.select, inside, cotangent, number(0, call.dtype))
        made = do(ops.custom_gradient, made, x, cotangent, slope, outputs=1, inputs=1)
        made = made[0] if isinstance(made, tuple | list) else made
    return (made, inside) if len(call.results) > 1 else made
