"""Elementwise operators of one operand as a table of calculus: name, numpy meaning, gradient.

A gradient is a kernel `(g, y)` or `(g, x)` that becomes an operator of its own, so that its work is one call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autoshard.core.tensortype import DType, TensorType, promote
from autoshard.core.tensortype import dtype as element_type
from autoshard.ops.options import Spreading, Storage
from autoshard.ops.reduce import sum_to
from autoshard.ops.registry import Operator, operator
from autoshard.util.errors import ShapeError

_F32, BOOL = element_type("f32"), element_type("bool")
_COMPLEX = {element_type("c64"): _F32, element_type("c128"): element_type("f64")}
_SQRT_HALF = 0.5**0.5
_INV_SQRT_2PI = 0.3989422804014327
_TANH_SCALE, _TANH_CUBE = 0.7978845608028654, 0.044715


def real(*operands: DType, **_: object) -> DType:
    """Transcendental functions of whole numbers are f32, as in MindSpore."""
    common = promote(operands)
    return common if common.is_inexact else _F32


def magnitude(x: DType, **_: object) -> DType:
    """The size of a complex number is a real one."""
    return _COMPLEX.get(x, x)


def signed(name: str) -> Callable[..., DType]:
    """Arithmetic that has no meaning for bools."""

    def result(*operands: DType, **_: object) -> DType:
        common = promote(operands)
        if common == BOOL:
            raise ShapeError(f"{name} of bools has no meaning; cast them first, or use LogicalNot or LogicalXor")
        return common

    return result


def wants(x: Any) -> bool:
    """Whether a gradient for x makes sense: only real and complex floats have one."""
    return element_type(x.dtype).is_inexact


def fit(g: Any, x: Any) -> Any:
    """g as a gradient of x: summed over broadcast dims, of x's element type (of a complex g the real part)."""
    g = sum_to(g, tuple(x.shape))
    return g if element_type(g.dtype) == element_type(x.dtype) else cast(g, dtype=element_type(x.dtype).name)


# -- the table

Scratch = float | Callable[..., int]


def reused(large: float, small: float) -> Callable[..., int]:
    """Scratch of a formula whose temporaries are so many times as large as its result: numpy makes a `large` one in the
    memory of an operand that nobody else holds (its temporary elision, from 256 KiB on), a `small` one beside it."""

    def scratch(operands: Sequence[TensorType], results: Sequence[TensorType], **_: Any) -> int:
        nbytes = results[0].nbytes
        return int((large if nbytes >= 1 << 18 else small) * nbytes)

    return scratch


def marked(operands: Sequence[TensorType], results: Sequence[TensorType], **_: Any) -> int:
    """Scratch of a formula that keeps a bool for each element, and the buffer in which numpy makes numbers of them."""
    return results[0].elements + min(np.getbufsize() * results[0].dtype.itemsize, results[0].nbytes)


def into(out: np.ndarray | None, ufunc: Callable, *operands: Any) -> np.ndarray:
    """What a ufunc makes of the operands, in the memory of `out` if there is some; converted to its type."""
    return ufunc(*operands) if out is None else ufunc(*operands, out=out, casting="unsafe")


def _unary(
    name: str,
    run: Callable,
    *,
    of: Callable | None = None,
    flops: float = 1.0,
    linear: bool = False,
    scratch: Scratch | None = None,
) -> Operator:
    def unary(x):
        return run(x)

    def written(x, *, out=None):
        return into(out, run, x)

    define = operator(
        name,
        rule="... -> ...",
        dtype=of,
        flops=flops,
        linear=((0,),) if linear else (),
        storage=Storage(scratch=scratch),
    )
    made = define(written if isinstance(run, np.ufunc) else unary)
    made.__doc__ = f"{name} of each element."
    return made


def elementwise(
    count: int, name: str, run: Callable, meaning: str, of: Callable | None = None, flops: float = 1.0,
    spread: Spreading | None = None,
) -> Operator:  # fmt: skip
    """An operator of one operand or two that `run` computes of their elements."""

    def one(x):
        return run(x)

    def two(x, y):
        return run(x, y)

    rule = f"{', '.join(['...'] * count)} -> ..."
    made = operator(name, rule=rule, dtype=of, flops=flops, spread=spread or Spreading())(one if count == 1 else two)
    made.__doc__ = meaning
    return made


def _fused(op: Operator, kernel: Callable, name: str = "", scratch: Scratch | None = None) -> Operator:
    """Make `kernel(g, y)` or `kernel(g, x)`, by the parameter's name, the gradient operator of `op`.

    A third parameter, `out`, is memory that the kernel may write to, that of g or of the other one.
    """
    other = list(inspect.signature(kernel).parameters)[1]
    uses_result = other == "y"
    flops = op.options.flops or 1.0
    assert not callable(flops), f"{op.name} is of one operand, with so many FLOPs for each element"

    def plain(g, other):
        return kernel(g, other)

    def written(g, other, *, out=None):
        return kernel(g, other, out)

    takes_out = "out" in inspect.signature(kernel).parameters
    name = name or f"{op.name}Grad"
    define = operator(name, rule="..., ... -> ...", linear=((0,),), flops=flops + 2, storage=Storage(scratch=scratch))
    fused = define(written if takes_out else plain)

    @op.gradient
    def _(g, y, x):
        return fused(g, y if uses_result else x)

    fused.__doc__ = f"Gradient of {op.name} from g and its {'result' if uses_result else 'operand'}."
    return fused


def flat(op: Operator) -> Operator:
    """A step function: its gradient is zero."""

    @op.gradient
    def _(g, y, *operands, **attrs):
        return (None,) * len(operands)

    return op


def scipy_special(name: str) -> Callable[..., Any]:
    """A function of scipy.special by name."""

    def run(*xs: np.ndarray) -> Any:
        # Imported when it is first called: scipy takes longer to import than all else together.
        from scipy import special

        return getattr(special, name)(*map(native, xs))

    return run


_erf, _expit = scipy_special("erf"), scipy_special("expit")


def native(x: np.ndarray) -> np.ndarray:
    """The array in a type of numpy's own: f32 for the small floats, 8 bits for the small integers of ml_dtypes."""
    of = element_type(x.dtype)
    if not of.extended:
        return x
    return x.astype(np.float32 if of.is_float else np.int8 if of.name.startswith("i") else np.uint8)


def _gelu_tanh_inner(x: np.ndarray) -> np.ndarray:
    """tanh(a * (x + b * x**3)); written, like what follows, so that few arrays are made."""
    inner = x * x
    inner *= _TANH_SCALE * _TANH_CUBE
    inner += _TANH_SCALE
    inner *= x
    return np.tanh(inner)


def _gelu_tanh_grad(g: np.ndarray, x: np.ndarray) -> np.ndarray:
    """g * (1 + t + x * (1 - t**2) * inner') / 2, where 1 - t**2 = (1 - t) * (1 + t)."""
    t = _gelu_tanh_inner(x)
    slope = x * x
    slope *= 3 * _TANH_SCALE * _TANH_CUBE
    slope += _TANH_SCALE
    slope *= x
    slope *= 1 - t
    slope += 1
    t += 1
    slope *= t
    slope *= g
    slope *= 0.5
    return slope


@operator("ReLU", rule="... -> ...")
def relu(x, *, out=None):
    """The larger of each element and 0."""
    return into(out, np.maximum, x, 0)


def _softplus(x: np.ndarray) -> np.ndarray:
    """max(x, 0) + log(1 + exp(-|x|)), which does not overflow."""
    tail = np.log1p(np.exp(-np.abs(x)))
    tail += np.maximum(x, 0)
    return tail


def _logistic(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)): of f32 by numpy's exp, which takes several elements at once; scipy takes ten times as long."""
    if x.dtype != np.float32:
        return _expit(x)
    s = np.negative(x, out=np.empty_like(x))
    with np.errstate(over="ignore"):  # far below 0 it is infinite, and the result 0
        np.exp(s, out=s)
    s += 1
    return np.divide(1, s, out=s)  # half of what reciprocal takes


def _silu(x: np.ndarray) -> np.ndarray:
    s = _logistic(x)
    s *= x
    return s


def _silu_grad(g: np.ndarray, x: np.ndarray) -> np.ndarray:
    """g * s * (1 + x * (1 - s)) for the logistic s of x; written so that few arrays are made."""
    s = _logistic(x)
    slope = 1 - s
    slope *= x
    slope += 1
    slope *= s
    return g * slope


def _abs_grad(g, x):
    slope = np.sign(x)
    # The gradient c of complex numbers is the one with d|x| = Re(c dx).
    return g * (np.conjugate(slope) if x.dtype.kind == "c" else slope)


exp = _unary("Exp", np.exp, of=real, flops=8)
log = _unary("Log", np.log, of=real, flops=8)
log1p = _unary("Log1p", np.log1p, of=real, flops=8)
sqrt = _unary("Sqrt", np.sqrt, of=real, flops=2)
rsqrt = _unary("Rsqrt", lambda x: 1 / np.sqrt(x), of=real, flops=3, scratch=1)
reciprocal = _unary("Reciprocal", lambda x: 1 / x, of=real)
square = _unary("Square", lambda x: x * x)
tanh = _unary("Tanh", np.tanh, of=real, flops=10)
sigmoid = _unary("Sigmoid", lambda x: _logistic(x), of=real, flops=10)
erf = _unary("Erf", _erf, of=real, flops=10)
silu = _unary("SiLU", _silu, of=real, flops=11)
softplus = _unary("Softplus", _softplus, of=real, flops=16, scratch=1)
sin = _unary("Sin", np.sin, of=real, flops=8)
cos = _unary("Cos", np.cos, of=real, flops=8)
abs = _unary("Abs", np.abs, of=magnitude)
neg = _unary("Neg", np.negative, of=signed("Neg"), linear=True)
sign = flat(_unary("Sign", np.sign, of=signed("Sign")))
floor = flat(_unary("Floor", np.floor))
ceil = flat(_unary("Ceil", np.ceil))
round = flat(_unary("Round", np.rint))
logical_not = _unary("LogicalNot", np.logical_not, of=lambda x: BOOL)
stop_gradient = flat(_unary("StopGradient", lambda x: x, flops=0, linear=True))

neg.gradient(lambda g, y, x: neg(g))
exp_grad = _fused(exp, lambda g, y, out: into(out, np.multiply, g, y))
log_grad = _fused(log, lambda g, x, out: into(out, np.true_divide, g, x))
sin_grad = _fused(sin, lambda g, x: g * np.cos(x), scratch=reused(0, 1))
cos_grad = _fused(cos, lambda g, x: -g * np.sin(x), scratch=reused(1, 2))
log1p_grad = _fused(log1p, lambda g, x: g / (1 + x), scratch=1)
sqrt_grad = _fused(sqrt, lambda g, y: 0.5 * g / y, scratch=reused(0, 1))
rsqrt_grad = _fused(rsqrt, lambda g, y: -0.5 * g * (y * y * y), scratch=reused(1, 2))
reciprocal_grad = _fused(reciprocal, lambda g, y: -g * (y * y), scratch=reused(1, 2))
square_grad = _fused(square, lambda g, x: 2 * g * x, scratch=reused(0, 1))
tanh_grad = _fused(tanh, lambda g, y: g * (1 - y * y), scratch=1)
sigmoid_grad = _fused(sigmoid, lambda g, y: g * (y * (1 - y)), scratch=reused(0, 1))
erf_grad = _fused(erf, lambda g, x: (2 * 2**0.5 * _INV_SQRT_2PI) * g * np.exp(-x * x), scratch=2)
relu_grad = _fused(relu, lambda g, y, out: into(out, np.multiply, g, y > 0), name="ReluGrad", scratch=marked)
silu_grad = _fused(silu, _silu_grad, scratch=2)
softplus_grad = _fused(softplus, lambda g, x: g * _logistic(x), scratch=reused(0, 1))
abs_grad = _fused(abs, _abs_grad, scratch=reused(0, 1))


def _gelu_form(approximate: object) -> bool:
    if approximate not in ("none", "tanh"):
        raise ShapeError(f"GeLU: approximate is {approximate!r}; it is 'none' (by erf) or 'tanh'")
    return approximate == "tanh"


def _gelu_type(*operands: DType, approximate: object) -> DType:
    _gelu_form(approximate)
    return real(*operands)


@operator("GeLU", rule="... -> ...", dtype=_gelu_type, flops=14, storage=Storage(scratch=1))
def gelu(x, *, approximate="none"):
    """x times the normal distribution function of x, by erf or by its tanh approximation."""
    part = _gelu_tanh_inner(x) if _gelu_form(approximate) else _erf(x * _SQRT_HALF)
    part += 1
    part *= x
    part *= 0.5
    return part


@gelu.gradient
def _(g, y, x, approximate):
    return gelu_grad(g, x, approximate=approximate)


@operator("GeLUGrad", rule="..., ... -> ...", linear=((0,),), dtype=_gelu_type, flops=24, storage=Storage(scratch=2))
def gelu_grad(g, x, *, approximate="none"):
    """Gradient of GeLU from g and its operand."""
    if _gelu_form(approximate):
        return _gelu_tanh_grad(g, x)
    slope = np.exp(-0.5 * x * x)
    slope *= x * _INV_SQRT_2PI
    slope += 0.5 * (1 + _erf(x * _SQRT_HALF))
    slope *= g
    return slope


@operator("Cast", rule="... -> ...", dtype=lambda x, *, dtype: element_type(dtype), call=("dtype",), flops=0)
def cast(x, *, dtype):
    """The elements as another type; of complex numbers the real part."""
    target = element_type(dtype).numpy
    if x.dtype.kind == "c" and target.kind not in "cb":
        x = x.real
    return x.astype(target, copy=False)


@cast.gradient
def _(g, y, x, dtype):
    return cast(g, dtype=element_type(x.dtype).name) if wants(x) else None


def _number_type(x: DType, value: object) -> DType:
    return _F32 if isinstance(value, float) and not x.is_inexact else x


@operator(
    "ScalarMul",
    rule="... -> ...",
    dtype=lambda x, *, factor: _number_type(x, factor),
    linear=((0,),),
    numbers=("factor",),
)
def scalar_mul(x, *, factor, out=None):
    """x times a number that needs no tensor."""
    return into(out, np.multiply, x, factor)


@scalar_mul.gradient
def _(g, y, x, factor):
    return fit(scalar_mul(g, factor=factor), x) if wants(x) else None


@operator("ScalarAdd", rule="... -> ...", dtype=lambda x, *, addend: _number_type(x, addend), numbers=("addend",))
def scalar_add(x, *, addend, out=None):
    """x plus a number that needs no tensor."""
    return into(out, np.add, x, addend)


@scalar_add.gradient
def _(g, y, x, addend):
    return fit(g, x) if wants(x) else None
