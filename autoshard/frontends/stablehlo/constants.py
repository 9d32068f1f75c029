"""The contents of constants, of every element type: through the bindings where they can, else from MLIR's own text.

The text is exact: floats are printed so that they read back, large constants and NaNs as their bits (MLIR's language
reference, "Dense Elements Attribute").
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from autoshard.core.tensortype import DType, TensorType
from autoshard.frontends.stablehlo.attributes import tensor_type
from autoshard.util.errors import ShapeError

_DENSE = re.compile(r'dense<(?:"0x([0-9A-Fa-f]*)"|(.*?))>\s*:\s*tensor<', re.DOTALL)
_NUMBER = re.compile(r"true|false|[-+\w.]+")


def constant_value(op: Any) -> np.ndarray:
    """The value of a constant operation; of shape () if all its elements are one value.

    Raises:
        ShapeError: the contents are outside the module, or cannot be read.
    """
    of = tensor_type(str(op.results[0].type))
    try:
        attr = op.attributes["value"]
    except TypeError:  # the bindings know no complex elements
        return _from_text(str(op), of)
    if not isinstance(attr, ir.DenseElementsAttr):
        raise ShapeError(f"cannot read a constant of type {of} whose contents are not in the module's text")
    if attr.is_splat:
        splat: Any = attr.get_splat_value()
        return _scalar(splat.value, of.dtype)
    if of.dtype.extended:  # the bindings know no small elements
        return _from_text(str(attr), of)
    return np.array(attr).reshape(of.shape).astype(of.dtype.numpy, copy=False)


def _scalar(value: Any, of: DType) -> np.ndarray:
    """The number in an element type; unsigned ones may come in as negative."""
    if of.name.startswith("u"):
        value %= 2**of.bits
    return np.asarray(value).astype(of.numpy)


def _from_text(text: str, of: TensorType) -> np.ndarray:
    """The array in `dense<...>`."""
    found = _DENSE.search(text)
    if found is None:
        raise ShapeError(f"cannot read the values of a constant of type {of} from {text[:80]!r}")
    if found[1] is not None:
        values = np.frombuffer(bytes.fromhex(found[1]), of.dtype.numpy)
    else:
        values = _numbers(_NUMBER.findall(found[2]), of.dtype)
    return values.reshape(() if len(values) == 1 != of.elements else of.shape)


def _numbers(words: list[str], of: DType) -> np.ndarray:
    if of.name.startswith("c"):
        part = np.dtype(f"f{of.itemsize // 2}")
        return np.array([_float(word, part) for word in words], part).view(of.numpy)
    if of.is_float:
        return np.array([_float(word, of.numpy) for word in words], of.numpy)
    return np.array([int(word) for word in words], np.int64).astype(of.numpy)


def _float(word: str, of: np.dtype) -> np.ndarray:
    """A decimal number, or 0x and the bits of one."""
    if word.startswith("0x"):
        return np.array(int(word, 16), f"u{of.itemsize}").view(of)
    return np.asarray(float(word)).astype(of)
