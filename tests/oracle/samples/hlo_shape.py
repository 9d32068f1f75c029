"""Samples of StableHLO's elementwise operators, those of CHLO, and those of shape and position."""

from __future__ import annotations

import numpy as np

from autoshard.ops import hlo_chlo as c
from autoshard.ops import hlo_pointwise as p
from autoshard.ops import hlo_shape as s
from autoshard.ops.registry import Operator

from .sample import Sample


def _call(op: Operator, *types: str, make=None, **attrs: object) -> Sample:
    return Sample(op, types, attrs, differentiable=False, make=make)


def _inside(shape: tuple[int, ...], low: float, high: float, count: int = 1):
    return lambda rng: [rng.uniform(low, high, shape) for _ in range(count)]


_FLOAT = tuple(_call(op, "f32[24, 6]") for op in (p.expm1, p.cbrt, p.tan, p.round_away, p.is_finite))
_WHOLE = tuple(
    _call(op, "i32[24, 6]", "i32[24, 6]")
    for op in (
        p.rem, p.quotient, p.bitwise_and, p.bitwise_or, p.bitwise_xor, p.shift_left, p.shift_right_logical,
        p.shift_right_arithmetic, c.multiply_high,
    )
)  # fmt: skip
_BITS = tuple(_call(op, "u8[8, 12]") for op in (p.bitwise_not, p.population_count, p.count_leading_zeros))
_POINTWISE = (
    *_FLOAT, *_WHOLE, *_BITS,
    _call(p.atan2, "f32[24, 6]", "f32[24, 6]"),
    _call(p.integer_power, "i32[24]", "i32[24]"),
    _call(p.complex_number, "f32[24, 6]", "f32[24, 6]"),
    _call(p.real_part, "c64[24, 6]"),
    _call(p.imaginary_part, "c64[8, 12]"),
    _call(p.hlo_clamp, "f32[]", "f32[24, 6]", "f32[24, 6]"),
    _call(p.compare_total_order, "f32[24, 6]", "f32[24, 6]", direction="LT"),
    _call(p.convert, "f32[24, 6]", dtype="i8"),
    _call(p.convert, "i32[24, 6]", dtype="bool"),
    _call(p.reduce_precision, "f32[24, 6]", exponent_bits=5, mantissa_bits=2),
)  # fmt: skip

_OPEN = (c.asin, c.acos, c.atanh, c.erf_inv)
_CHLO = (
    *(_call(op, "f32[24, 6]", make=_inside((24, 6), -0.9, 0.9)) for op in _OPEN),
    *(_call(op, "f32[8, 12]", make=_inside((8, 12), 1.5, 4.0)) for op in (c.acosh, c.lgamma, c.digamma)),
    *(_call(op, "f32[8, 12]", "f32[8, 12]", make=_inside((8, 12), 1.5, 4.0, 2)) for op in (c.zeta, c.next_after)),
    *(
        _call(op, "f32[24, 6]")
        for op in (
            c.asinh, c.atan, c.cosh, c.sinh, c.chlo_tan, c.chlo_erf, c.erfc, c.bessel_i1e, c.chlo_square, c.is_inf,
            c.is_pos_inf, c.is_neg_inf,
        )
    ),
    _call(c.conj, "c64[24, 6]"),
    _call(
        c.polygamma, "f32[24, 6]", "f32[24, 6]",
        make=lambda rng: [rng.integers(0, 3, (24, 6)).astype(np.float32), rng.uniform(0.5, 2.0, (24, 6))],
    ),
    _call(c.chlo_top_k, "f32[24, 6, 10]", k=3),
)  # fmt: skip

_SHAPE = (
    _call(s.iota, shape=(24, 6), dim=0),
    _call(s.iota, shape=(4, 12, 6), dim=2, dtype="f32"),
    _call(s.broadcast_in_dim, "f32[6, 24]", shape=(24, 8, 6), dims=(2, 0)),
    _call(s.broadcast_in_dim, "f32[1, 12]", shape=(12, 24), dims=(1, 0)),
    _call(s.broadcast_in_dim, "f32[]", shape=(8, 6), dims=()),
    _call(s.concatenate, "f32[24, 6]", "f32[24, 10]", dim=1),
    _call(s.concatenate, "f32[6, 48]", "f32[2, 48]", "f32[4, 48]", dim=0, of_slices=True),
    _call(s.hlo_pad, "f32[24, 6]", "f32[]", low=(0, -1), high=(0, 3), interior=(0, 1)),
    _call(s.hlo_pad, "f32[6, 24]", "f32[]", low=(-2, 0), high=(2, 0), interior=(0, 0)),
    _call(s.slice_in_dims, "f32[24, 6, 8]", start=(0, 1, 0), limit=(24, 6, 8), strides=(1, 2, 1)),
    _call(s.bitcast_convert, "f32[24, 6]", dtype="i32"),
    _call(s.bitcast_regroup, "f32[24, 6]", ratio=2, wider=False, dtype="u16"),
    _call(s.bitcast_regroup, "u8[24, 6, 4]", ratio=4, wider=True, dtype="i32"),
    _call(s.get_dimension_size, "f32[24, 6]", dim=0, size=24),
)

SAMPLES = (*_POINTWISE, *_CHLO, *_SHAPE)
