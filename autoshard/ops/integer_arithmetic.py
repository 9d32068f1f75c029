"""Arithmetic on whole numbers and on the bits of floats, vectorized, as XLA defines it in every corner case."""

from __future__ import annotations

import numpy as np

from autoshard.core.tensortype import dtype as element_type
from autoshard.ops.unary import native


def _bits(x: np.ndarray) -> int:
    """Bits of one element: 4 for i4, although numpy holds it in 8."""
    return element_type(x.dtype).bits


def _unsigned(x: np.ndarray) -> np.ndarray:
    """The bits of each element as an unsigned number of numpy's."""
    wide = native(x)
    mask = np.array(2 ** _bits(x) - 1, f"u{wide.dtype.itemsize}")
    return wide.astype(mask.dtype) & mask


def remainder(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x - trunc(x / y) * y; x itself where whole y is 0."""
    if element_type(x.dtype).is_float:
        return np.fmod(x, y)
    a, b = native(x), native(y)
    zero = b == 0
    return np.where(zero, a, np.fmod(a, np.where(zero, b.dtype.type(1), b)))


def quotient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """trunc(x / y); of whole numbers all bits set where y is 0, and the least one divided by -1 stays as it is."""
    a, b = native(x), native(y)
    if a.dtype.kind == "f":
        return np.trunc(a / b)
    one = b.dtype.type(1)
    zero = b == 0
    safe = np.where(zero, one, b)
    with np.errstate(over="ignore"):
        exact = (a - np.fmod(a, safe)) // safe
    return np.where(zero, np.invert(b.dtype.type(0)), exact)


def power(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x^y; a negative power of a whole number is 0, except of 1 and -1."""
    a, b = native(x), native(y)
    zero, one = a.dtype.type(0), a.dtype.type(1)
    result = np.power(a, np.where(b < 0, zero, b))
    if a.dtype.kind == "u":
        return result
    sign = np.where(b & 1 == 1, a, a * a)
    return np.where(b < 0, np.where(np.abs(a) == one, sign, zero), result)


def ones(x: np.ndarray) -> np.ndarray:
    """The number of bits that are set, by adding ever wider neighbours."""
    rest = _unsigned(x)
    count = np.zeros_like(rest)
    for bit in range(_bits(x)):
        count += (rest >> rest.dtype.type(bit)) & rest.dtype.type(1)
    return count


def leading_zeros(x: np.ndarray) -> np.ndarray:
    """The number of high bits that are not set, by bisection."""
    rest = _unsigned(x)
    width = rest.dtype.itemsize * 8
    length = np.zeros_like(rest)
    step = width // 2
    while step:
        high = rest >> rest.dtype.type(step) != 0
        length += np.where(high, step, 0).astype(rest.dtype)
        rest = np.where(high, rest >> rest.dtype.type(step), rest)
        step //= 2
    return _bits(x) - (length + (rest != 0)).astype(np.int64)


def _within(y: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Where a shift leaves bits inside, and by how much to shift there, as unsigned numbers."""
    count = _unsigned(y)
    inside = count < bits
    return inside, np.where(inside, count, count.dtype.type(0))


def shift_left(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    inside, count = _within(y, _bits(x))
    moved = _unsigned(x) << count
    return np.where(inside, moved, moved.dtype.type(0)).astype(native(x).dtype).astype(x.dtype)


def shift_right_logical(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    inside, count = _within(y, _bits(x))
    moved = _unsigned(x) >> count
    return np.where(inside, moved, moved.dtype.type(0)).astype(native(x).dtype).astype(x.dtype)


def shift_right_arithmetic(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of unsigned numbers too the highest bit is copied."""
    wide = _signed(x)
    inside, count = _within(y, _bits(x))
    moved = wide >> count.astype(wide.dtype)
    return np.where(inside, moved, wide >> wide.dtype.type(_bits(x) - 1)).astype(x.dtype)


def _signed(x: np.ndarray) -> np.ndarray:
    """The bits of each element as a signed number of numpy's."""
    bits = _unsigned(x)
    unused = bits.dtype.itemsize * 8 - _bits(x)
    high = bits << bits.dtype.type(unused)
    return high.view(f"i{bits.dtype.itemsize}") >> unused


def reduced(x: np.ndarray, exponent_bits: int, mantissa_bits: int) -> np.ndarray:
    """Floats rounded to fewer bits of exponent and mantissa, to even; see ReducePrecision."""
    mantissa = _mantissa(x)
    width = x.dtype.itemsize * 8
    bits = x.view(f"u{x.dtype.itemsize}")
    one = bits.dtype.type(1)
    if mantissa_bits < mantissa:
        last = bits.dtype.type(mantissa - mantissa_bits)
        bias = ((bits >> last) & one) + ((one << (last - one)) - one)
        bits = (bits + bias) & ~((one << last) - one)
    source_bits = width - 1 - mantissa
    if exponent_bits < source_bits:
        bits = _narrowed(bits, mantissa, source_bits, exponent_bits)
    return np.where(np.isnan(x), x, bits.view(x.dtype))


def _narrowed(bits: np.ndarray, mantissa: int, source_bits: int, exponent_bits: int) -> np.ndarray:
    """Overflow to infinity and underflow to zero of floats, given as bits, in a smaller exponent."""
    kind = bits.dtype.type
    field = (1 << source_bits) - 1
    sign = bits & kind(1 << (source_bits + mantissa))
    exponent = ((bits >> kind(mantissa)) & kind(field)).astype(np.int64) - (field >> 1)
    bound = (1 << (exponent_bits - 1)) - 1
    bits = np.where(exponent > bound, sign | kind(field << mantissa), bits)
    return np.where(exponent <= -bound, sign, bits)


def _mantissa(x: np.ndarray) -> int:
    """Stored bits of the mantissa; the names of the smallest floats tell it (f8e4m3fn)."""
    of = element_type(x.dtype)
    if not of.extended:
        return int(np.finfo(x.dtype).nmant)
    return 7 if of.name == "bf16" else int(of.name.partition("m")[2][0])


def multiply_high(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The high half of the bits of a product."""
    a, b = native(x), native(y)
    if _bits(x) <= 32:
        wide = np.int64 if a.dtype.kind == "i" else np.uint64
        return (a.astype(wide) * b.astype(wide)) >> wide(_bits(x))
    high = _high_of_64(a.view(np.uint64), b.view(np.uint64))
    if a.dtype.kind == "i":
        high -= np.where(a < 0, b, 0).view(np.uint64) + np.where(b < 0, a, 0).view(np.uint64)
    return high.view(a.dtype)


def _high_of_64(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The high 64 of the 128 bits of a product, by halves of 32 bits."""
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    a1, a0, b1, b0 = a >> half, a & low, b >> half, b & low
    middle = a1 * b0 + (a0 * b0 >> half)
    other = a0 * b1 + (middle & low)
    return a1 * b1 + (middle >> half) + (other >> half)


def total_order(x: np.ndarray) -> np.ndarray:
    """Whole numbers that are ordered as the floats: -NaN < -inf < ... < -0 < 0 < ... < inf < NaN (IEEE-754)."""
    bits = np.ascontiguousarray(x).view(f"i{x.dtype.itemsize}").reshape(x.shape)
    return np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)


def ranks(x: np.ndarray) -> np.ndarray:
    """Signed numbers, none of them the least of its type, that are ordered as the elements of the last dim."""
    order = total_order(x) if element_type(x.dtype).is_float else native(x)
    return np.unique(order, return_inverse=True)[1].reshape(x.shape).astype(np.int64)
