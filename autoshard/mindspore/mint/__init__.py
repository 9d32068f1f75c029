"""MindSpore's mint: functions whose arguments are called as PyTorch's, in terms of those of `ops`.

    from autoshard.mindspore import mint

    y = mint.nn.functional.linear(x, weight, bias)
    y = mint.softmax(mint.matmul(q, mint.transpose(k, -2, -1)), dim=-1)

Names that mean the same in both are those of `ops` themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autoshard.mindspore import ops
from autoshard.mindspore.mint import nn  # noqa: F401  (mint.nn.functional.relu)
from autoshard.util.offered import NotOfferedError

_SAME = (
    "abs", "acos", "acosh", "add", "arange", "argmax", "asin", "asinh", "atan", "atan2", "atanh", "baddbmm", "bmm",
    "broadcast_to", "ceil", "clamp", "cos", "cosh", "div", "divide", "dot", "einsum", "eq",
    "erf", "erfc", "exp", "exp2", "expm1", "floor", "full", "full_like", "greater", "greater_equal",
    "gt", "isclose", "isfinite", "isinf", "le", "lerp", "less", "less_equal", "log", "log10", "log1p",
    "log2", "logical_and", "logical_not", "logical_or", "logical_xor", "logsumexp", "lt", "masked_fill", "matmul",
    "maximum", "minimum", "mul", "ne", "neg", "negative", "not_equal", "ones", "ones_like",
    "outer", "pow", "reciprocal", "remainder", "reshape", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt",
    "square", "sub", "sum", "swapaxes", "t", "tan", "tanh", "topk", "tril", "triu", "trunc", "unbind",
    "unsqueeze", "where", "xlogy", "zeros", "zeros_like",
)  # fmt: skip
"""Whose arguments are called alike in `ops`, as far as scripts of mint give them by name."""


def cat(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Tensors one behind the other along `dim`."""
    return ops.cat(tensors, dim)


concat = cat


def stack(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Tensors of one shape along a new dim."""
    return ops.stack(tensors, dim)


def split(tensor: Any, split_size_or_sections: int | Sequence[int], dim: int = 0) -> Any:
    """Parts of so many elements along `dim`, the last may have less; or parts of the given sizes."""
    return ops.split(tensor, split_size_or_sections, dim)


def transpose(input: Any, dim0: int, dim1: int) -> Any:
    """With two dims exchanged."""
    return ops.swapaxes(input, dim0, dim1)


def permute(input: Any, dims: Sequence[int]) -> Any:
    """Dim i of the result is dim dims[i]."""
    return ops.permute(input, tuple(dims))


def squeeze(input: Any, dim: Any = None) -> Any:
    """Without the dims of size 1 at `dim`, or any."""
    return ops.squeeze(input, dim)


def flatten(input: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    """The dims from `start_dim` to `end_dim` as one."""
    return ops.flatten(input, start_dim=start_dim, end_dim=end_dim)


def chunk(input: Any, chunks: int, dim: int = 0) -> Any:
    """So many parts along `dim`, equal but for the last."""
    return ops.chunk(input, chunks, dim)


def narrow(input: Any, dim: int, start: int, length: int) -> Any:
    """`length` elements from `start` on along `dim`."""
    return ops.narrow(input, dim, start, length)


def index_select(input: Any, dim: int, index: Any) -> Any:
    """Slices along `dim`, one per index of a vector."""
    return ops.index_select(input, dim, index)


def tile(input: Any, dims: Sequence[int]) -> Any:
    """dims[i] copies side by side along dim i."""
    return ops.tile(input, tuple(dims))


def meshgrid(*tensors: Any, indexing: str = "ij") -> Any:
    """For each vector a tensor in which it lies along a dim of its own; "xy" exchanges the first two dims."""
    return ops.meshgrid(*tensors, indexing=indexing)


def count_nonzero(input: Any, dim: Any = None) -> Any:
    """How many elements along dims, or of all, are not 0."""
    return ops.count_nonzero(input, () if dim is None else dim, dtype="i64")


def flip(input: Any, dims: Any) -> Any:
    """In reversed order along dims."""
    return ops.flip(input, dims)


def roll(input: Any, shifts: Any, dims: Any = None) -> Any:
    """Moved along dims, what leaves at the end comes in at the begin."""
    return ops.roll(input, shifts, dims)


def gather(input: Any, dim: int, index: Any) -> Any:
    """result[i, j] = input[i, index[i, j]] for dim 1, and likewise for others."""
    return ops.gather_elements(input, dim, index)


def mean(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The mean of elements along dims, or of all."""
    return ops.mean(input if dtype is None else ops.cast(input, dtype), dim, keepdim)


def prod(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The product of elements along a dim, or of all."""
    return ops.prod(input, dim, keepdim, dtype)


def var(input: Any, dim: Any = None, *, correction: int = 1, keepdim: bool = False) -> Any:
    """The mean square distance from the mean; the sum is divided by the number of elements less `correction`."""
    return ops.var(input, dim, correction, keepdim)


def std(input: Any, dim: Any = None, *, correction: int = 1, keepdim: bool = False) -> Any:
    """The square root of `var`."""
    return ops.std(input, dim, correction, keepdim)


def max(input: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The largest element; along `dim` the largest and their places."""
    return ops.amax(input) if dim is None else ops.max(input, dim, keepdim)


def min(input: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The smallest element; along `dim` the smallest and their places."""
    return ops.amin(input) if dim is None else ops.min(input, dim, keepdim)


def amax(input: Any, dim: Any = (), keepdim: bool = False) -> Any:
    """The largest element along dims, or of all."""
    return ops.amax(input, dim, keepdim)


def amin(input: Any, dim: Any = (), keepdim: bool = False) -> Any:
    """The smallest element along dims, or of all."""
    return ops.amin(input, dim, keepdim)


def all(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Whether all elements along dims are true."""
    return ops.all(input, dim, keepdim)


def any(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Whether any element along dims is true."""
    return ops.any(input, dim, keepdim)


def cumsum(input: Any, dim: int, dtype: Any = None) -> Any:
    """Sums up to each element along `dim`."""
    return ops.cumsum(input, dim, dtype)


def softmax(input: Any, dim: int, *, dtype: Any = None) -> Any:
    """exp(x) divided by its sum along `dim`."""
    return ops.softmax(input, dim, dtype=dtype)


def sort(input: Any, *, dim: int = -1, descending: bool = False) -> Any:
    """The elements in order along `dim`, and their places."""
    return ops.sort(input, dim, descending)


_OWN = [
    "all", "amax", "amin", "any", "cat", "chunk", "concat", "count_nonzero", "cumsum", "flatten", "flip", "gather",
    "index_select", "max", "mean", "meshgrid", "min", "narrow", "permute", "prod", "roll", "softmax", "sort",
    "split", "squeeze", "stack", "std", "tile", "transpose", "var",
]  # fmt: skip
__all__ = sorted([*_SAME, *_OWN, "nn"])  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name in _SAME:
        return getattr(ops, name)
    raise NotOfferedError(f"autoshard.mindspore.mint does not offer MindSpore's {name!r}", name, lambda: __all__)


def __dir__() -> list[str]:
    return __all__
