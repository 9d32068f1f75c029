"""Methods that MindSpore's tensors have of the functions of `ops`: `x.masked_fill(mask, 0.0)`, `x.topk(2)`.

A tensor of a trace, a parameter and an array have them alike; what one of them has already stays as it is there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autoshard.core.tensortype import dtype
from autoshard.mindspore.ops import functional
from autoshard.mindspore.ops.functional import moving
from autoshard.mindspore.tensor import Tensor, from_numpy, tensor
from autoshard.trace.arithmetic import Arithmetic
from autoshard.util.errors import ShapeError

__all__ = ["Tensor", "from_numpy", "tensor"]

_FUNCTIONS = (
    "add", "addcdiv", "addcmul", "amax", "amin", "arccos", "arcsin", "arctan", "atan2", "bitwise_and", "bitwise_or",
    "bitwise_xor", "bmm", "ceil", "chunk", "cos", "cosh", "count_nonzero", "div", "divide", "eq", "equal", "erf",
    "erfc", "expand_as", "expm1", "flip", "floor", "floor_divide", "fmod", "gather", "gather_elements", "gather_nd",
    "ge", "greater", "greater_equal", "gt", "index_select", "isclose", "isfinite", "isinf", "isnan", "le", "lerp",
    "less", "less_equal", "log10", "log1p", "log2", "log_softmax", "logical_and", "logical_not", "logical_or",
    "logical_xor", "logsumexp", "lt", "masked_fill", "matmul", "maximum", "minimum", "mm", "moveaxis", "movedim", "mul",
    "multiply", "narrow", "ne", "neg", "negative", "norm", "not_equal", "outer", "reciprocal", "remainder",
    "repeat_interleave", "roll", "rsqrt", "sigmoid", "sign", "sin", "sinh", "softmax", "split", "square", "sub",
    "subtract", "swapdims", "tan", "tile", "topk", "tril", "triu", "true_divide", "trunc", "unbind", "view_as",
)  # fmt: skip
"""Whose functions take the tensor first, and then what the method takes."""
_TYPES = {"float": "f32", "half": "f16", "bfloat16": "bf16", "int": "i32", "long": "i64", "bool": "bool"}


def _repeat(self: Any, *repeats: Any, **axis: Any) -> Any:
    """The whole so many times along each dim; elements along an `axis` that is named, as former releases have it."""
    if axis:
        return moving.repeat_interleave(self, *repeats, **axis)
    counts = tuple(repeats[0]) if len(repeats) == 1 and isinstance(repeats[0], tuple | list) else repeats
    if len(counts) < self.ndim:
        raise ShapeError(
            f"Tensor.repeat{counts} of {tuple(self.shape)} takes a number for each dim; for elements that are repeated "
            "say x.repeat(n, axis=0) or x.repeat_interleave(n)"
        )
    return functional.tile(self, counts)  # type: ignore[attr-defined]


def _as_type(kind: str) -> Callable:
    return lambda self: self.astype(dtype(kind))


_METHODS: dict[str, Callable] = {
    **{name: getattr(functional, name) for name in _FUNCTIONS},
    **{name: _as_type(kind) for name, kind in _TYPES.items()},
    "contiguous": lambda self: self,
    "dim": lambda self: self.ndim,
    "ndimension": lambda self: self.ndim,
    "numel": lambda self: self.size,
    "type_as": lambda self, other: self.astype(other.dtype),
}

for _name, _method in _METHODS.items():
    for _kind in (Arithmetic, Tensor):
        if not hasattr(_kind, _name):
            setattr(_kind, _name, _method)
for _kind in (Arithmetic, Tensor):  # numpy means something else by it
    setattr(_kind, "repeat", _repeat)  # noqa: B010
