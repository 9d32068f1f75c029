"""Overloads of complex numbers and Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from autoshard import ops
from autoshard.frontends.torch.table import Call, axis, do, number, translates


@translates("aten.view_as_complex.default")
def _(call: Call, x: Any) -> Any:
    parts = do(ops.split, x, axis=len(x.shape) - 1, output_num=2, sizes=(1, 1))
    real, imaginary = (do(ops.squeeze, one, axis=(len(x.shape) - 1,)) for one in parts)
    return do(ops.complex_number, real, imaginary)


@translates("aten.view_as_real.default")
def _(call: Call, x: Any) -> Any:
    return do(ops.stack, do(ops.real_part, x), do(ops.imaginary_part, x), axis=len(x.shape))


@translates("aten.complex.default")
def _(call: Call, real: Any, imaginary: Any) -> Any:
    return do(ops.complex_number, real, imaginary)


@translates("aten.polar.default")
def _(call: Call, size: Any, angle: Any) -> Any:
    return do(ops.complex_number, do(ops.mul, size, do(ops.cos, angle)), do(ops.mul, size, do(ops.sin, angle)))


@translates("aten.real.default")
def _(call: Call, x: Any) -> Any:
    return do(ops.real_part, x)


@translates("aten.imag.default")
def _(call: Call, x: Any) -> Any:
    return do(ops.imaginary_part, x)


@translates("aten._conj.default", "aten._conj_physical.default", "aten.conj.default")
def _(call: Call, x: Any) -> Any:
    return do(ops.complex_number, do(ops.real_part, x), do(ops.neg, do(ops.imaginary_part, x)))


@translates("aten._neg_view.default")
def _(call: Call, x: Any) -> Any:
    return do(ops.neg, x)


@translates("aten.resolve_conj.default", "aten.resolve_neg.default")
def _(call: Call, x: Any) -> Any:
    return x


# -- Fourier transforms; a normalization of 0 is none, 1 divides by the root of the length, 2 by the length


def _transformed(x: Any, dims: Sequence[int], kind: str, lengths: Sequence[int]) -> Any:
    """The transform over some dims in the order given, the last of which is the one that RFFT and IRFFT halve."""
    rank = len(x.shape)
    dims = [axis(dim, rank) for dim in dims]
    order = [*(i for i in range(rank) if i not in dims), *dims]
    moved = x if order == list(range(rank)) else do(ops.transpose, x, perm=tuple(order))
    found = do(ops.fft, moved, kind=kind, length=tuple(lengths))
    return found if moved is x else do(ops.transpose, found, perm=tuple(order.index(i) for i in range(rank)))


def _normalized(call: Call, x: Any, count: int, mode: int, inverse: bool) -> Any:
    """An inverse transform of ours divides by the count already."""
    factor = {0: 1.0, 1: 1 / math.sqrt(count), 2: 1 / count}[mode] * (count if inverse else 1)
    if math.isclose(factor, 1, rel_tol=1e-12):
        return x
    if call.dtype.is_float:
        return do(ops.scalar_mul, x, factor=factor)
    return do(ops.mul, x, number(factor, call.dtype))


@translates("aten._fft_c2c.default")
def _(call: Call, x: Any, dims: Sequence[int], normalization: int, forward: bool) -> Any:
    lengths = [x.shape[dim] for dim in dims]
    if len(lengths) > 3:
        call.refuse("a Fourier transform over more than three dims")
    found = _transformed(x, dims, "FFT" if forward else "IFFT", lengths)
    return _normalized(call, found, math.prod(lengths), normalization, not forward)


@translates("aten._fft_r2c.default")
def _(call: Call, x: Any, dims: Sequence[int], normalization: int, onesided: bool) -> Any:
    lengths = [x.shape[dim] for dim in dims]
    if not onesided:
        x = do(ops.complex_number, x, do(ops.scalar_mul, x, factor=0.0))
    found = _transformed(x, dims, "RFFT" if onesided else "FFT", lengths)
    return _normalized(call, found, math.prod(lengths), normalization, False)


@translates("aten._fft_c2r.default")
def _(call: Call, x: Any, dims: Sequence[int], normalization: int, last: int) -> Any:
    lengths = [*(x.shape[dim] for dim in dims[:-1]), last]
    found = _transformed(x, dims, "IRFFT", lengths)
    return _normalized(call, found, math.prod(lengths), normalization, True)
