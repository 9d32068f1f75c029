"""Padding at the end of dims: what lowering puts around operators whose dims do not divide.

`MaskPadding` overwrites the padding of a block by a number; `neutral_element` is the number that a reduction passes by.
"""

from __future__ import annotations

import math

import numpy as np

from autoshard.core.tensortype import DType
from autoshard.ops.registry import operator


@operator("MaskPadding", rule=None, shape=lambda x, **_: (x,), dtype=lambda x, **_: x, flops=0)
def _mask_padding(x, *, valid, fill):
    """x with `fill` in all places beyond the first `valid[dim]` of some dim."""
    if all(count >= size for count, size in zip(valid, x.shape, strict=True)):
        return x
    inside = tuple(slice(count) for count in valid)
    masked = np.full_like(x, fill)
    masked[inside] = x[inside]
    return masked


mask_padding = _mask_padding


def neutral_element(reduction: str, of: DType) -> float | int | bool:
    """What changes no sum, product, maximum or minimum (`sum`, `prod`, `max`, `min`) of elements of that type."""
    if reduction in ("sum", "prod"):
        return int(reduction == "prod")
    largest = reduction == "min"
    if of.name == "bool":
        return largest
    if not of.is_float:
        signed = of.name.startswith("i")
        high = (1 << (of.bits - signed)) - 1
        return high if largest else -(high + 1) * signed
    return _end(of, largest)


def _end(of: DType, largest: bool) -> float:
    """The largest or smallest float of a type, infinite if it has infinities."""
    if of.itemsize > 1:
        return math.inf if largest else -math.inf
    numbers = np.arange(1 << of.bits, dtype=np.uint8).view(of.numpy).astype(np.float64)
    return float(np.nanmax(numbers) if largest else np.nanmin(numbers))
