"""Layers: dense, embedding, norms, dropout, activations; their primitives are attributes, to be `.shard`ed.

Weights are [out, in] and names are MindSpore's, so that its models and checkpoints read alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autoshard import ops
from autoshard.trace.cell import Cell
from autoshard.trace.initializer import deferred, next_seed
from autoshard.trace.parameter import Parameter
from autoshard.util.errors import ShapeError, UnknownNameError


class Dense(Cell):
    """x @ weight.T + bias over the last dim of x; weight is [out_channels, in_channels].

    Args:
        activation: a name such as "relu", or a cell or primitive, applied to the result.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        weight_init: Any = "xavier_uniform",
        bias_init: Any = "zeros",
        has_bias: bool = True,
        activation: str | Callable | None = None,
        dtype: str = "f32",
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.has_bias = in_channels, out_channels, has_bias
        self.weight = Parameter(deferred(weight_init, (out_channels, in_channels), dtype))
        self.matmul = ops.MatMul(transpose_b=True)
        if has_bias:
            self.bias = Parameter(deferred(bias_init, (out_channels,), dtype))
            self.bias_add = ops.Add()
        self.activation = get_activation(activation)

    def construct(self, x: Any) -> Any:
        x = self.matmul(x, self.weight)
        if self.has_bias:
            x = self.bias_add(x, self.bias)
        return x if self.activation is None else self.activation(x)


class Embedding(Cell):
    """The rows of `embedding_table` [vocab_size, embedding_size] by whole-number ids of any shape."""

    def __init__(
        self, vocab_size: int, embedding_size: int, embedding_init: Any = "normal", dtype: str = "f32"
    ) -> None:
        super().__init__()
        self.embedding_table = Parameter(deferred(embedding_init, (vocab_size, embedding_size), dtype))
        self.gather = ops.Gather()

    def construct(self, ids: Any) -> Any:
        return self.gather(self.embedding_table, ids, 0)


class LayerNorm(Cell):
    """x without mean and scale over its last dims of `normalized_shape`, times gamma plus beta."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        gamma_init: Any = "ones",
        beta_init: Any = "zeros",
        epsilon: float = 1e-5,
        dtype: str = "f32",
    ) -> None:
        super().__init__()
        shape = _sizes(normalized_shape)
        self.gamma = Parameter(deferred(gamma_init, shape, dtype))
        self.beta = Parameter(deferred(beta_init, shape, dtype))
        self.layer_norm = ops.LayerNorm(begin_norm_axis=-len(shape), epsilon=epsilon)

    def construct(self, x: Any) -> Any:
        return self.layer_norm(x, self.gamma, self.beta)


class RMSNorm(Cell):
    """x divided by its root mean square over its last dims of `normalized_shape`, times gamma."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        gamma_init: Any = "ones",
        epsilon: float = 1e-6,
        dtype: str = "f32",
    ) -> None:
        super().__init__()
        shape = _sizes(normalized_shape)
        self.gamma = Parameter(deferred(gamma_init, shape, dtype))
        self.rms_norm = ops.RmsNorm(begin_norm_axis=-len(shape), epsilon=epsilon)

    def construct(self, x: Any) -> Any:
        return self.rms_norm(x, self.gamma)


class Dropout(Cell):
    """While training, sets a share `p` of the elements to 0 and scales the others by 1 / (1 - p).

    The state `counter` goes up with each use, so that every step drops other elements; `seed` sets this cell
    apart from others and is drawn from the one stream of `set_seed` unless given.
    """

    def __init__(self, p: float = 0.5, seed: int | None = None) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ShapeError(f"Dropout: p is {p}; the share of elements that become 0 is at least 0 and below 1")
        self.p = p
        self.counter = Parameter(np.zeros((), np.int32), requires_grad=False)
        self.dropout = ops.Dropout(rate=p, seed=next_seed() if seed is None else seed)
        self.count = ops.ScalarAdd(addend=1)

    def construct(self, x: Any) -> Any:
        if not self.training or self.p == 0:
            return x
        x = self.dropout(x, self.counter)
        self.counter.assign(self.count(self.counter))
        return x


class Flatten(Cell):
    """All dims but the first as one."""

    def __init__(self) -> None:
        super().__init__()
        self.reshape = ops.Reshape()

    def construct(self, x: Any) -> Any:
        return self.reshape(x, (x.shape[0], -1))


class _Activation(Cell):
    """A cell around one primitive, which it holds under the primitive's own name."""

    primitive: str
    label: str

    def __init__(self, **attrs: Any) -> None:
        super().__init__()
        setattr(self, self.label, getattr(ops, self.primitive)(**attrs))

    def construct(self, x: Any) -> Any:
        return getattr(self, self.label)(x)


class ReLU(_Activation):
    """max(x, 0)."""

    primitive, label = "ReLU", "relu"


class SiLU(_Activation):
    """x * sigmoid(x)."""

    primitive, label = "SiLU", "silu"


class Tanh(_Activation):
    """Hyperbolic tangent."""

    primitive, label = "Tanh", "tanh"


class Sigmoid(_Activation):
    """1 / (1 + exp(-x))."""

    primitive, label = "Sigmoid", "sigmoid"


class GELU(_Activation):
    """x times the normal distribution function of x; `approximate` takes the tanh form."""

    primitive, label = "GeLU", "gelu"

    def __init__(self, approximate: bool = True) -> None:
        super().__init__(approximate="tanh" if approximate else "none")


class Softmax(_Activation):
    """exp(x) divided by its sum along `axis`."""

    primitive, label = "Softmax", "softmax"

    def __init__(self, axis: int = -1) -> None:
        super().__init__(axis=axis)


class LogSoftmax(_Activation):
    """The logarithm of Softmax along `axis`."""

    primitive, label = "LogSoftmax", "log_softmax"

    def __init__(self, axis: int = -1) -> None:
        super().__init__(axis=axis)


_ACTIVATIONS: dict[str, Callable[[], Cell]] = {
    cell.label: cell for cell in (ReLU, SiLU, Tanh, Sigmoid, GELU, Softmax, LogSoftmax)
}


def get_activation(activation: str | Callable | None) -> Any:
    """The cell of that name; anything that can be called is itself.

    Raises:
        UnknownNameError: no such name.
    """
    if not isinstance(activation, str):
        return activation
    if activation not in _ACTIVATIONS:
        raise UnknownNameError(f"unknown activation {activation!r}; known are {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[activation]()


def _sizes(shape: int | Sequence[int]) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)
