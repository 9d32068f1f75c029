"""Cells of MindSpore's mint: their arguments and parameters are called as PyTorch's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autoshard.core.tensortype import dtype as element
from autoshard.mindspore import nn as _nn
from autoshard.mindspore.mint.nn import functional  # noqa: F401
from autoshard.mindspore.nn.layers import biases, weights
from autoshard.trace.cell import Cell
from autoshard.trace.initializer import Normal, deferred
from autoshard.trace.parameter import Parameter
from autoshard.util.errors import ShapeError
from autoshard.util.offered import NotOfferedError

_SAME = (
    "BCELoss", "CrossEntropyLoss", "ELU", "Identity", "L1Loss", "LogSigmoid", "MSELoss", "Mish", "NLLLoss",
    "PixelShuffle", "ReLU", "ReLU6", "Sigmoid", "SiLU", "Tanh", "Upsample",
)  # fmt: skip
"""Cells of `nn` that are made and called alike."""


class Linear(Cell):
    """x @ weight.T + bias over the last dim of x; weight is [out_features, in_features]."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, weight_init: Any = None, bias_init: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.in_features, self.out_features, self.has_bias = in_features, out_features, bias
        shape, kind = (out_features, in_features), dtype or "f32"
        self.weight = weights(weight_init, shape, kind)
        if bias:
            self.bias = biases(bias_init, (out_features,), kind, shape)

    def construct(self, input: Any) -> Any:
        return functional.linear(input, self.weight, self.bias if self.has_bias else None)


class LayerNorm(Cell):
    """x without mean and scale over its last dims of `normalized_shape`, times the weight plus the bias."""

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float = 1e-5, elementwise_affine: bool = True,
        bias: bool = True, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.eps, kind = eps, element(dtype or "f32")
        self.scaled, self.shifted = elementwise_affine, elementwise_affine and bias
        if self.scaled:
            self.weight = Parameter(deferred("ones", self.shape, kind))
        if self.shifted:
            self.bias = Parameter(deferred("zeros", self.shape, kind))

    def construct(self, input: Any) -> Any:
        weight, bias = self.weight if self.scaled else None, self.bias if self.shifted else None
        return functional.layer_norm(input, self.shape, weight, bias, self.eps)


class Embedding(Cell):
    """The rows of `weight` [num_embeddings, embedding_dim] by whole numbers."""

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: Any = None, max_norm: Any = None,
        norm_type: float = 2.0, scale_grad_by_freq: bool = False, _weight: Any = None, dtype: Any = "f32",
    ) -> None:  # fmt: skip
        super().__init__()
        if padding_idx is not None or max_norm is not None or scale_grad_by_freq:
            raise ShapeError("mint.nn.Embedding: padding_idx, max_norm and scale_grad_by_freq are not offered here")
        init = Normal(1.0) if _weight is None else _weight
        self.weight = Parameter(deferred(init, (num_embeddings, embedding_dim), element(dtype)))

    def construct(self, input: Any) -> Any:
        return functional.embedding(input, self.weight)


class Dropout(_nn.Dropout):
    """While training, sets a share `p` of the elements to 0 and scales the others so that the mean stays."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        if inplace:
            raise ShapeError("mint.nn.Dropout: inplace=True is not offered; use the result")
        super().__init__(p=p)


class GELU(Cell):
    """x times the normal distribution function of x; "tanh" takes the approximation by tanh."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def construct(self, input: Any) -> Any:
        return functional.gelu(input, approximate=self.approximate)


class Softmax(Cell):
    """exp(x) divided by its sum along `dim`."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def construct(self, input: Any) -> Any:
        return functional.softmax(input, self.dim)


_OWN = ["Dropout", "Embedding", "GELU", "LayerNorm", "Linear", "Softmax"]
__all__ = sorted([*_SAME, *_OWN, "functional"])  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name in _SAME:
        return getattr(_nn, name)
    raise NotOfferedError(f"autoshard.mindspore.mint.nn does not offer MindSpore's {name!r}", name, lambda: __all__)


def __dir__() -> list[str]:
    return __all__
