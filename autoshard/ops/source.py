"""Operators that make a tensor out of attributes alone, and constants shaped like another tensor.

Without operands every dim of the result is a factor of its own: each rank makes just its block.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from autoshard.core.rule import Rule, source_rule
from autoshard.core.tensortype import DType
from autoshard.core.tensortype import dtype as element_type
from autoshard.ops.attributes import Literal, OperatorPlacement
from autoshard.ops.axes import whole_numbers
from autoshard.ops.registry import operator
from autoshard.util.errors import ShapeError


def sizes_of(shape: object, what: str) -> tuple[int, ...]:
    """`shape` as sizes.

    Raises:
        ShapeError: not a tuple of sizes of at least 0.
    """
    sizes = whole_numbers(shape, f"{what}: shape")
    if any(size < 0 for size in sizes):
        raise ShapeError(f"{what}: shape {sizes} has a negative size")
    return sizes


def _fill_rule(*, shape: tuple[int, ...], **_: object) -> Rule:
    return source_rule(sizes_of(shape, "Fill"))


@operator(
    "Fill",
    rule=_fill_rule,
    dtype=lambda *, dtype, **_: element_type(dtype),
    flops=0,
    constant="source",
    numbers=("value",),
)
def fill(*, shape, value=0, dtype="f32"):
    """A tensor of `shape` with the same value everywhere."""
    return np.full(shape, value, element_type(dtype).numpy)


@fill.gradient
def _(g, y, **_):
    return ()


@fill.localize
def _(attrs: Mapping[str, Any], placement: OperatorPlacement) -> dict[str, Any]:
    return {"shape": placement.local_result()}


def _constant_shape(value: object, shape: tuple[int, ...] | None) -> tuple[int, ...]:
    if not isinstance(value, Literal):
        raise ShapeError(f"Constant: value is {value!r}; give an array (or a Literal of one)")
    return value.array.shape if shape is None else shape


def _constant_type(*, value: Literal, **_: object) -> DType:
    _constant_shape(value, None)
    return element_type(value.array.dtype)


def _constant_rule(*, value: object, shape: tuple[int, ...] | None, **_: object) -> Rule:
    return source_rule(_constant_shape(value, shape))


@operator("Constant", rule=_constant_rule, dtype=_constant_type, flops=0, constant="source", numbers=("value",))
def constant(*, value, shape=None, start=()):
    """The given array; `shape` and `start` choose a block of it, which is how a rank makes its share.

    What of a block lies beyond the array is zero.
    """
    if shape is None:
        return value.array
    held = value.array[tuple(slice(first, first + size) for first, size in zip(start, shape, strict=True))]
    if held.shape == tuple(shape):
        return held
    return np.pad(held, [(0, size - part) for size, part in zip(shape, held.shape, strict=True)])


@constant.gradient
def _(g, y, **_):
    return ()


@constant.localize
def _(attrs: Mapping[str, Any], placement: OperatorPlacement) -> dict[str, Any]:
    shape = placement.local_result()
    return {"shape": shape, "start": tuple(placement.result_offset(dim) for dim in range(len(shape)))}


@operator("ZerosLike", rule="... -> ...", flops=0)
def zeros_like(x):
    """Zeros of the type of x."""
    return np.zeros(x.shape, x.dtype)


@operator("OnesLike", rule="... -> ...", flops=0)
def ones_like(x):
    """Ones of the type of x."""
    return np.ones(x.shape, x.dtype)


def _nothing(g: Any, y: Any, x: Any) -> None:
    """The result does not depend on the values of x."""


zeros_like.gradient(_nothing)
ones_like.gradient(_nothing)
