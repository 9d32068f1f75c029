"""Samples of elementwise operators, of one operand and of more, with every kind of broadcasting."""

from __future__ import annotations

from autoshard.ops import pointwise as p
from autoshard.ops import unary as u
from autoshard.ops.custom_gradient import cotangent
from autoshard.ops.registry import Operator

from .sample import Sample


def _positive(*shapes: tuple[int, ...]):
    """Numbers from 0.5 to 2 for operators that dislike zero and what is below."""
    return lambda rng: [rng.uniform(0.5, 2.0, shape) for shape in shapes]


def _last_positive(first: tuple[int, ...], second: tuple[int, ...]):
    return lambda rng: [rng.normal(size=first), rng.uniform(0.5, 2.0, second)]


def _one(op: Operator, differentiable: bool = True) -> Sample:
    return Sample(op, ("f32[24, 6]",), differentiable=differentiable)


def _gradient_of(op: Operator) -> Sample:
    flat = (1,) if op in (u.relu_grad, u.abs_grad) else ()
    return Sample(op, ("f32[12, 8]", "f32[12, 8]"), make=_last_positive((12, 8), (12, 8)), constant=flat)


_SMOOTH = (
    u.exp, u.square, u.tanh, u.sigmoid, u.erf, u.relu, u.silu, u.softplus, u.sin, u.cos, u.abs, u.neg,
)  # fmt: skip
_POSITIVE = (u.log, u.log1p, u.sqrt, u.rsqrt, u.reciprocal)
_STEPS = (u.sign, u.floor, u.ceil, u.round, u.stop_gradient, cotangent)
_GRADIENTS = (
    u.exp_grad, u.log_grad, u.sin_grad, u.cos_grad, u.log1p_grad, u.sqrt_grad, u.rsqrt_grad, u.abs_grad,
    u.square_grad, u.tanh_grad, u.sigmoid_grad, u.erf_grad, u.relu_grad, u.silu_grad, u.softplus_grad,
    u.reciprocal_grad,
)  # fmt: skip
_COMPARISONS = (p.equal, p.not_equal, p.less, p.less_equal, p.greater, p.greater_equal)
_LOGIC = (p.logical_and, p.logical_or, p.logical_xor)

_UNARY = (
    *map(_one, _SMOOTH),
    *(_one(op, differentiable=False) for op in _STEPS),
    *(Sample(op, ("f32[12, 8]",), make=_positive((12, 8))) for op in _POSITIVE),
    *map(_gradient_of, _GRADIENTS),
    Sample(u.exp, ("f32[]",)),
    Sample(u.tanh, ("f32[1, 24]",)),
    Sample(u.sqrt, ("i32[24]",), differentiable=False, make=lambda rng: [rng.integers(0, 9, 24)]),
    Sample(u.logical_not, ("bool[24, 6]",), differentiable=False),
    Sample(u.gelu, ("f32[24, 6]",)),
    Sample(u.gelu, ("f32[6, 8]",), {"approximate": "tanh"}),
    Sample(u.gelu_grad, ("f32[12, 8]", "f32[12, 8]")),
    Sample(u.gelu_grad, ("f32[12, 8]", "f32[12, 8]"), {"approximate": "tanh"}),
    Sample(u.cast, ("f32[24, 6]",), {"dtype": "i32"}, differentiable=False),
    Sample(u.cast, ("bool[24, 6]",), {"dtype": "f32"}, differentiable=False),
    Sample(u.cast, ("f32[6, 8]",), {"dtype": "f64"}),
    Sample(u.scalar_mul, ("f32[24, 6]",), {"factor": -0.25}),
    Sample(u.scalar_mul, ("i32[24]",), {"factor": 3}, differentiable=False),
    Sample(u.scalar_add, ("f32[12, 8]",), {"addend": 1e-3}),
)

_BINARY = (
    Sample(p.add, ("f32[24, 6]", "f32[24, 6]")),
    Sample(p.add, ("f32[24, 6]", "f32[6]")),
    Sample(p.add, ("i32[8, 6]", "i32[8, 1]"), differentiable=False),
    Sample(p.sub, ("f32[24, 1]", "f32[1, 8]")),
    Sample(p.sub, ("f32[]", "f32[24]")),
    Sample(p.mul, ("f32[8, 12]", "f32[6, 1, 12]")),
    Sample(p.mul, ("f32[24, 6]", "bool[24, 6]")),
    Sample(p.div, ("f32[24, 6]", "f32[24, 1]"), make=_last_positive((24, 6), (24, 1))),
    Sample(p.div, ("f32[6]", "f32[8, 6]"), make=_last_positive((6,), (8, 6))),
    Sample(p.floor_div, ("f32[24, 6]", "f32[6]"), differentiable=False, make=_last_positive((24, 6), (6,))),
    Sample(p.mod, ("f32[24, 6]", "f32[6]"), make=_last_positive((24, 6), (6,))),
    Sample(p.pow, ("f32[24, 6]", "f32[1, 6]"), make=_positive((24, 6), (1, 6))),
    Sample(p.maximum, ("f32[24, 6]", "f32[24, 1]")),
    Sample(p.minimum, ("f32[6]", "f32[8, 6]")),
    *(Sample(op, ("i32[24, 6]", "i32[6]"), differentiable=False) for op in _COMPARISONS),
    *(Sample(op, ("bool[24, 6]", "bool[24, 1]"), differentiable=False) for op in _LOGIC),
    Sample(p.pow_base_grad, ("f32[12, 8]",) * 3, make=_positive((12, 8), (12, 8), (12, 8))),
    Sample(p.pow_exponent_grad, ("f32[12, 8]",) * 3, make=_positive((12, 8), (12, 8), (12, 8))),
)

_MORE = (
    Sample(p.select, ("bool[24, 6]", "f32[24, 6]", "f32[24, 6]")),
    Sample(p.select, ("bool[24, 1]", "f32[6]", "f32[8, 24, 6]")),
    Sample(u.square, ("f32[8, 6, 4]",)),
    Sample(p.select_grad, ("f32[24, 6]", "bool[24, 6]")),
    Sample(p.select_grad, ("f32[24, 6]", "bool[6]"), {"other": True}),
    Sample(p.masked_fill, ("f32[8, 6, 12]", "bool[6, 12]"), {"value": -8.0}),
    Sample(p.add_n, ("f32[24, 6]",) * 3),
    Sample(p.add_n, ("f32[12, 8]",)),
)

SAMPLES = (*_UNARY, *_BINARY, *_MORE)
