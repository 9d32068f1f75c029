"""Gradients of parts of complex numbers, and of Fourier transforms.

The gradient c of a complex value z is the one with dL = Re(c dz), so that a function that is differentiable in the
complex sense has the same gradient formula as of real numbers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from autoshard.core.tensortype import dtype
from autoshard.ops.hlo_chlo import conj
from autoshard.ops.hlo_linalg import fft
from autoshard.ops.hlo_pointwise import complex_number, imaginary_part, real_part
from autoshard.ops.pointwise import mul
from autoshard.ops.slices import pad
from autoshard.ops.source import zeros_like
from autoshard.ops.unary import fit, neg


def _is_complex(x: Any) -> bool:
    return dtype(x.dtype).name in ("c64", "c128")


@complex_number.gradient
def _(g, y, real, imag):
    return fit(real_part(g), real), fit(neg(imaginary_part(g)), imag)


@real_part.gradient
def _(g, y, x):
    return complex_number(g, zeros_like(g)) if _is_complex(x) else g


@imaginary_part.gradient
def _(g, y, x):
    return complex_number(zeros_like(g), neg(g)) if _is_complex(x) else None


@conj.gradient
def _(g, y, x):
    return conj(g)


@fft.gradient
def _(g, y, x, kind, length):
    """The transposed transform: a transform again, as its matrix is symmetric."""
    if kind in ("FFT", "IFFT"):
        return fft(g, kind=kind, length=length)
    if kind == "RFFT":
        more = length[-1] - g.shape[-1]
        wide = pad(g, paddings=(*((0, 0),) * (len(g.shape) - 1), (0, more))) if more else g
        return real_part(fft(wide, kind="FFT", length=length))
    # Of a real result each frequency but the first and, of an even length, the last stands for two.
    half, count = x.shape[-1], math.prod(length)
    weights = np.full(half, 2 / count, np.float64)
    weights[0] = 1 / count
    if length[-1] % 2 == 0:
        weights[-1] = 1 / count
    # Part by part: a product with real weights is of their type.
    weights = weights.astype(dtype(g.dtype).numpy)
    turned = fft(g, kind="RFFT", length=length)
    return complex_number(mul(real_part(turned), weights), neg(mul(imaginary_part(turned), weights)))
