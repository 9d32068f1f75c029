"""Overloads of special functions, and of elementwise ones that need more than one operator."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from autoshard import ops
from autoshard.core.tensortype import dtype
from autoshard.frontends.torch.pointwise import as_type
from autoshard.frontends.torch.reduce import vector_norm
from autoshard.frontends.torch.table import Call, do, number, translates

_ONE = {
    "i0": ops.bessel_i0, "special_i0e": ops.bessel_i0e, "special_i1": ops.bessel_i1, "special_i1e": ops.bessel_i1e,
    "special_bessel_j0": ops.bessel_j0, "special_bessel_j1": ops.bessel_j1, "special_bessel_y0": ops.bessel_y0,
    "special_bessel_y1": ops.bessel_y1, "special_modified_bessel_i0": ops.bessel_i0,
    "special_modified_bessel_i1": ops.bessel_i1, "special_modified_bessel_k0": ops.bessel_k0,
    "special_modified_bessel_k1": ops.bessel_k1, "special_scaled_modified_bessel_k0": ops.bessel_k0e,
    "special_scaled_modified_bessel_k1": ops.bessel_k1e, "special_spherical_bessel_j0": ops.spherical_bessel_j0,
    "special_airy_ai": ops.airy_ai, "special_erfcx": ops.erfcx, "special_ndtri": ops.ndtri,
    "special_log_ndtr": ops.log_ndtr,
}  # fmt: skip


def _one(name: str, op: Any) -> None:
    @translates(f"aten.{name}.default")
    def _(call: Call, x: Any) -> Any:
        return do(op, call.cast(x))


for _name, _op in _ONE.items():
    _one(_name, _op)

_TWO = {
    ops.igamma: ("aten.igamma.default", "aten.special_gammainc.default"),
    ops.igammac: ("aten.igammac.default", "aten.special_gammaincc.default"),
    ops.zeta: ("aten.special_zeta.default", "aten.special_zeta.other_scalar", "aten.special_zeta.self_scalar"),
    ops.next_after: ("aten.nextafter.default",),
}  # fmt: skip


def _two(op: Any, names: tuple[str, ...]) -> None:
    @translates(*names)
    def _(call: Call, x: Any, y: Any) -> Any:
        return do(op, as_type(x, call.dtype), as_type(y, call.dtype))


for _op, _names in _TWO.items():
    _two(_op, _names)


@translates("aten.polygamma.default", "aten.special_polygamma.default")
def _(call: Call, n: int, x: Any) -> Any:
    x = call.cast(x)
    return do(ops.digamma, x) if n == 0 else do(ops.polygamma, number(n, call.dtype), x)


@translates("aten.frexp.Tensor")
def _(call: Call, x: Any) -> Any:
    return do(ops.frexp, x)


# -- the larger and the smaller, where a number goes before NaN


def _numbers_first(name: str, op: Any) -> None:
    @translates(f"aten.{name}.default")
    def _(call: Call, x: Any, y: Any) -> Any:
        """The gradient of torch: to x if it is picked or equal, or y is NaN; else to y."""
        x, y = (as_type(one, call.dtype) for one in (x, y))
        if not call.dtype.is_float:
            return do(op, x, y)
        better = do(ops.greater_equal if op is ops.maximum else ops.less_equal, x, y)
        return do(ops.select, do(ops.logical_or, better, do(ops.not_equal, y, y)), x, y)


_numbers_first("fmax", ops.maximum)
_numbers_first("fmin", ops.minimum)


# -- signs


@translates("aten.signbit.default")
def _(call: Call, x: Any) -> Any:
    of = dtype(x.dtype)
    zero = number(0, of)
    below = do(ops.less, x, zero)
    if not of.is_float:
        return below
    return do(ops.logical_or, below, do(ops.less, do(ops.reciprocal, x), zero))


@translates("aten.sgn.default")
def _(call: Call, x: Any) -> Any:
    if dtype(x.dtype).is_float or not dtype(x.dtype).name.startswith("c"):
        return do(ops.sign, x)
    call.refuse("the sign of complex numbers")


@translates("aten.angle.default")
def _(call: Call, x: Any) -> Any:
    if dtype(x.dtype).name.startswith("c"):
        return do(ops.atan2, do(ops.imaginary_part, x), do(ops.real_part, x))
    x = do(ops.stop_gradient, call.cast(x))
    below = do(ops.select, do(ops.less, x, number(0, call.dtype)), number(math.pi, call.dtype), number(0, call.dtype))
    return do(ops.select, do(ops.not_equal, x, x), x, below)


@translates("aten.heaviside.default")
def _(call: Call, x: Any, at_zero: Any) -> Any:
    zero, one = number(0, call.dtype), number(1, call.dtype)
    steps = do(ops.select, do(ops.less, x, zero), zero, one)
    return do(ops.select, do(ops.equal, x, zero), at_zero, steps)


# -- distances


@translates("aten.dist.default")
def _(call: Call, x: Any, y: Any, p: float = 2) -> Any:
    away = do(ops.sub, call.cast(x), call.cast(y))
    return vector_norm(away, p, tuple(range(len(away.shape))), call)


@translates("aten._pdist_forward.default", "aten.pdist.default")
def _(call: Call, x: Any, p: float = 2) -> Any:
    rows, columns = np.triu_indices(x.shape[0], 1)
    if not rows.size:
        return np.zeros((0,), call.dtype.numpy)
    away = do(ops.sub, do(ops.gather, x, rows, axis=0), do(ops.gather, x, columns, axis=0))
    return vector_norm(away, p, (1,), call)


@translates("aten.cdist.default", "aten._cdist_forward.default", "aten._euclidean_dist.default")
def _(call: Call, x: Any, y: Any, p: float = 2, mode: Any = None) -> Any:
    away = do(ops.sub, do(ops.expand_dims, x, axis=-2), do(ops.expand_dims, y, axis=-3))
    return vector_norm(away, p, (len(away.shape) - 1,), call)


@translates("aten.isreal.default")
def _(call: Call, x: Any) -> Any:
    if dtype(x.dtype).name.startswith("c"):
        return do(ops.equal, do(ops.imaginary_part, x), number(0, dtype(do(ops.imaginary_part, x).dtype)))
    return np.ones(call.shape, bool)
