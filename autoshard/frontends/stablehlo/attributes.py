"""MLIR attributes and types as plain Python values."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from autoshard.core.tensortype import DYNAMIC, TOKEN, DType, TensorType, dtype
from autoshard.util.errors import ShapeError

# JAX puts one behind each operation inside a manual computation; on a number it says nothing.
CONSTRAINT = "sdy.sharding_constraint"
_CONSTANTS = ("stablehlo.constant", "sdy.constant")
_ELEMENTS = {"i1": "bool", "complex<f32>": "c64", "complex<f64>": "c128", "f4E2M1FN": "f4e2m1fn"}


def is_constant(value: Any) -> bool:
    """Whether an operation makes the value that is a constant."""
    return not isinstance(value.owner, ir.Block) and value.owner.name in _CONSTANTS


def constants_outside(block: Any) -> list[Any]:
    """The operations outside of a block that make constants which it uses, each once."""
    operations = [op.operation for op in block.operations]
    inside = {value for op in operations for value in op.results}
    used = dict.fromkeys(value for op in operations for value in op.operands)
    return [value.owner for value in used if value not in inside and is_constant(value)]


def attribute(op: Any, name: str, default: Any = None) -> Any:
    """The attribute of an operation as a Python value: int, float, bool, str, tuple or array; `default` if absent."""
    attributes = op.attributes
    return value_of(attributes[name]) if name in attributes else default


def value_of(attr: Any) -> Any:
    """A Python value for an attribute; its text where there is no natural value."""
    if isinstance(attr, ir.BoolAttr | ir.IntegerAttr | ir.FloatAttr | ir.StringAttr):
        return attr.value
    if isinstance(attr, ir.FlatSymbolRefAttr):
        return attr.value
    if isinstance(attr, ir.DenseI64ArrayAttr | ir.DenseI32ArrayAttr | ir.DenseBoolArrayAttr):
        return tuple(attr)
    if isinstance(attr, ir.DenseElementsAttr | ir.DenseResourceElementsAttr):
        return array_of(attr)
    if isinstance(attr, ir.ArrayAttr):
        return tuple(value_of(item) for item in attr)
    return str(attr)


def array_of(attr: Any) -> np.ndarray:
    """The contents of a dense attribute, shaped; a splat is broadcast without being written out."""
    of = tensor_type(str(attr.type))
    if attr.is_splat:
        return np.broadcast_to(np.asarray(_element(attr.get_splat_value(), of.dtype)), of.shape)
    return _dense(attr, of)


def _dense(attr: Any, of: TensorType) -> np.ndarray:
    try:
        return np.array(attr).reshape(of.shape).astype(of.dtype.numpy)
    except (TypeError, ValueError, RuntimeError):
        raise ShapeError(f"cannot read the values of a constant of type {of}") from None


def _element(attr: Any, of: DType) -> Any:
    if hasattr(attr, "value"):
        return np.asarray(attr.value).astype(of.numpy)
    raise ShapeError(f"cannot read the value of a constant of type {of}")


@lru_cache(maxsize=1 << 12)
def tensor_type(text: str) -> TensorType:
    """The type written `tensor<8x16xf32>`, or a token.

    Raises:
        ShapeError: a dynamic shape, a tuple, or an element type that JAX does not emit.
    """
    of = any_tensor_type(text)
    if not of.is_static:
        raise ShapeError(f"cannot import {text}: its shape is dynamic; every size has to be known")
    return of


@lru_cache(maxsize=1 << 12)
def any_tensor_type(text: str) -> TensorType:
    """As `tensor_type`, but sizes may be DYNAMIC: `tensor<?x16xf32>`."""
    if text in ("!stablehlo.token", "!mhlo.token"):
        return TensorType((), TOKEN)
    if not text.startswith("tensor<"):
        raise ShapeError(f"cannot import a value of type {text}: only tensors of static shape and tokens are")
    body = text[len("tensor<") : -1].split(",", 1)[0].strip()
    *sizes, element = body.split("x") if "complex" not in body else _complex(body)
    return TensorType(tuple(DYNAMIC if size == "?" else int(size) for size in sizes), element_type(element))


def _complex(body: str) -> list[str]:
    before, _, element = body.partition("complex")
    return [*before.split("x")[:-1], f"complex{element}"]


@lru_cache(maxsize=64)
def element_type(text: str) -> DType:
    """The element type that MLIR writes `f32`, `bf16`, `i1`, `ui8`, `complex<f32>`, `f8E4M3FN`, ..."""
    name = _ELEMENTS.get(text, text)
    name = f"u{name[2:]}" if name.startswith("ui") else name.lower()
    try:
        return dtype(name)
    except ShapeError:
        raise ShapeError(f"cannot import the element type {text}") from None
