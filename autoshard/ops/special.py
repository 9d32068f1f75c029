"""Special functions that other modules lack: Bessel, incomplete gamma, scaled error functions, parts of a float."""

from __future__ import annotations

import math

import numpy as np

from autoshard.core.tensortype import dtype
from autoshard.ops.hlo_chlo import bessel_i1e, polygamma
from autoshard.ops.pointwise import add, div, equal, mul, select, slope, sub
from autoshard.ops.registry import Operator, operator
from autoshard.ops.source import fill
from autoshard.ops.unary import (
    elementwise,
    exp,
    fit,
    native,
    real,
    reciprocal,
    scalar_add,
    scalar_mul,
    scipy_special,
    sign,
    square,
    wants,
)


def _one(name: str, function: str, meaning: str) -> Operator:
    return elementwise(1, name, scipy_special(function), meaning, real, 20)


def _two(name: str, function: str, meaning: str) -> Operator:
    return elementwise(2, name, scipy_special(function), meaning, real, 40)


# -- Bessel functions

bessel_i0 = _one("BesselI0", "i0", "The modified Bessel function of the first kind, of order 0.")
bessel_i0e = _one("BesselI0e", "i0e", "BesselI0 times exp(-|x|).")
bessel_i1 = _one("BesselI1", "i1", "The modified Bessel function of the first kind, of order 1.")
bessel_j0 = _one("BesselJ0", "j0", "The Bessel function of the first kind, of order 0.")
bessel_j1 = _one("BesselJ1", "j1", "The Bessel function of the first kind, of order 1.")
bessel_y0 = _one("BesselY0", "y0", "The Bessel function of the second kind, of order 0.")
bessel_y1 = _one("BesselY1", "y1", "The Bessel function of the second kind, of order 1.")
bessel_k0 = _one("BesselK0", "k0", "The modified Bessel function of the second kind, of order 0.")
bessel_k0e = _one("BesselK0e", "k0e", "BesselK0 times exp(x).")
bessel_k1 = _one("BesselK1", "k1", "The modified Bessel function of the second kind, of order 1.")
bessel_k1e = _one("BesselK1e", "k1e", "BesselK1 times exp(x).")


@operator("SphericalBesselJ0", rule="... -> ...", dtype=real, flops=12)
def spherical_bessel_j0(x):
    """sin(x) / x, 1 at 0."""
    with np.errstate(all="ignore"):
        return np.where(x == 0, 1, np.where(np.isinf(x), 0, np.sin(x) / x))


@operator("AiryAi", rule="... -> ...", dtype=real, flops=40)
def airy_ai(x):
    """The Airy function Ai."""
    return scipy_special("airy")(x)[0]


# -- error functions

erfcx = _one("Erfcx", "erfcx", "exp(x^2) erfc(x), which does not become 0 as soon as erfc.")
ndtri = _one("Ndtri", "ndtri", "The inverse of the normal distribution function.")
log_ndtr = _one("LogNdtr", "log_ndtr", "The logarithm of the normal distribution function.")

# -- gamma functions

igamma = _two("Igamma", "gammainc", "The lower incomplete gamma function, regularized, of order x.")
igammac = _two("Igammac", "gammaincc", "The upper incomplete gamma function, regularized, of order x.")

# -- gradients


def _i1_slope(y, x):
    """i0 - i1 / x, a half at 0."""
    at_zero = _is_zero(x)
    return select(at_zero, _half(x), sub(bessel_i0(x), div(y, select(at_zero, _half(x), x))))


def _i1e_slope(y, x):
    """i0e - i1e (sign(x) + 1 / x), a half at 0."""
    at_zero = _is_zero(x)
    safe = select(at_zero, _half(x), x)
    return select(at_zero, _half(x), sub(bessel_i0e(x), mul(y, add(sign(x), reciprocal(safe)))))


def _is_zero(x):
    return equal(x, fill(shape=tuple(x.shape), value=0.0, dtype=_name(x)))


def _half(x):
    return fill(shape=tuple(x.shape), value=0.5, dtype=_name(x))


def _name(x):
    return dtype(x.dtype).name


slope(bessel_i0, lambda y, x: bessel_i1(x))
slope(bessel_i0e, lambda y, x: sub(bessel_i1e(x), mul(sign(x), y)))
slope(bessel_i1, _i1_slope)
slope(bessel_i1e, _i1e_slope)
slope(erfcx, lambda y, x: scalar_add(scalar_mul(mul(x, y), factor=2.0), addend=-2 / math.sqrt(math.pi)))
slope(ndtri, lambda y, x: scalar_mul(exp(scalar_mul(square(y), factor=0.5)), factor=math.sqrt(2 * math.pi)))
slope(
    log_ndtr,
    lambda y, x: scalar_mul(reciprocal(erfcx(scalar_mul(x, factor=-math.sqrt(0.5)))), factor=math.sqrt(2 / math.pi)),
)


@polygamma.gradient
def _(g, y, n, x):
    """The next derivative; there is none for the order."""
    return None, fit(mul(g, polygamma(scalar_add(n, addend=1.0), x)), x) if wants(x) else None


# -- parts of a float


@operator("Frexp", rule="... -> ..., ...", dtype=lambda x: (x, "i32"), flops=2)
def frexp(x):
    """A fraction of at least a half and less than one, and the power of two that it is multiplied by."""
    return np.frexp(native(x))


@frexp.gradient
def _(g, y, x):
    return None if g[0] is None else frexp_grad(g[0], y[1])


@operator("FrexpGrad", rule="..., ... -> ...", dtype=lambda g, power: g, linear=((0,),), flops=2)
def frexp_grad(g, power):
    """g over two to the power."""
    return np.ldexp(native(g), -power)
