"""Layers with MindSpore's names, arguments and defaults; their primitives are attributes, to be `.shard`ed.

Weights are [out, in], and parameters have MindSpore's names, so that its checkpoints read alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from inspect import Signature, signature
from typing import Any

import numpy as np

from autoshard import ops as core
from autoshard.core.tensortype import dtype as element
from autoshard.mindspore import ops
from autoshard.mindspore.ops.entries import dims_of
from autoshard.mindspore.ops.neural import with_count
from autoshard.mindspore.ops.primitive import Named, as_tensors
from autoshard.mindspore.ops.shapes import axes as ops_axes
from autoshard.trace.cell import Cell
from autoshard.trace.initializer import Uniform, deferred, next_seed
from autoshard.trace.parameter import Parameter
from autoshard.util.errors import ShapeError, UnknownNameError


def weights(init: Any, shape: tuple[int, ...], dtype: Any) -> Parameter:
    """A weight [out, in, ...]; by default even between -+1 / sqrt(inputs): He's distribution of slope sqrt(5)."""
    return Parameter(deferred(_even(shape) if init is None else init, shape, element(dtype)))


def biases(init: Any, shape: tuple[int, ...], dtype: Any, of: tuple[int, ...]) -> Parameter:
    """A bias beside a weight of shape `of`; by default even between -+1 / sqrt(inputs)."""
    return Parameter(deferred(_even(of) if init is None else init, shape, element(dtype)))


def _even(weight: tuple[int, ...]) -> Uniform:
    return Uniform(1 / math.sqrt(math.prod(weight[1:])))


class Dense(Cell):
    """x @ weight.T + bias over the last dim of x; weight is [out_channels, in_channels].

    Strategies of its primitives are for x as it is, or, as MindSpore has them, for x as a matrix of rows.

    Args:
        activation: a name such as "relu", or a cell or primitive, applied to the result.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        weight_init: Any = None,
        bias_init: Any = None,
        has_bias: bool = True,
        activation: str | Callable | None = None,
        dtype: Any = "f32",
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.has_bias = in_channels, out_channels, has_bias
        shape = (out_channels, in_channels)
        self.weight = weights(weight_init, shape, dtype)
        self.matmul = ops.MatMul(transpose_b=True)
        self.bias_add: Any = ops.Add() if has_bias else None
        if has_bias:
            self.bias = biases(bias_init, (out_channels,), dtype, shape)
        self.reshape = ops.Reshape()
        self.activation = get_activation(activation)

    def construct(self, x: Any) -> Any:
        shape = x.shape
        if len(shape) == 2 or 2 not in (_split_dims(self.matmul, 0), _split_dims(self.bias_add, 0)):
            return self._apply(x)
        return self.reshape(self._apply(self.reshape(x, (-1, shape[-1]))), (*shape[:-1], self.out_channels))

    def _apply(self, x: Any) -> Any:
        x = self.matmul(x, self.weight)
        if self.bias_add is not None:
            x = self.bias_add(x, self.bias)
        return x if self.activation is None else self.activation(x)


def _split_dims(primitive: Any, operand: int) -> int | None:
    """Of how many dims the operand is that a primitive has a strategy for; None if it has none."""
    given = None if primitive is None else primitive.in_strategy
    if given is None or len(given) <= operand:
        return None
    return dims_of(given[operand])


class Embedding(Cell):
    """The rows of `embedding_table` [vocab_size, embedding_size] by whole-number ids of any shape.

    A strategy of `gather` is for the ids as they are, or, as MindSpore has it, for the ids in one dim.

    Ids below 0 count from the back; others outside the table are an error. The row `padding_idx` begins as zeros.
    """

    def __init__(
        self,
        vocab_size: int,
        embedding_size: int,
        use_one_hot: bool = False,
        embedding_table: Any = "normal",
        dtype: Any = "f32",
        padding_idx: int | None = None,
    ) -> None:
        super().__init__()
        self.vocab_size, self.embedding_size, self.use_one_hot = vocab_size, embedding_size, use_one_hot
        table = deferred(embedding_table, (vocab_size, embedding_size), element(dtype))
        if padding_idx is not None:
            if not 0 <= padding_idx < vocab_size:
                raise ShapeError(f"Embedding: padding_idx is {padding_idx}; it is at least 0 and below {vocab_size}")
            rows = table.array()
            rows[padding_idx] = 0
            table = deferred(rows, rows.shape, element(dtype))
        self.embedding_table = Parameter(table)
        self.flat = ops.Reshape()
        if use_one_hot:
            self.one_hot, self.matmul = ops.OneHot(), ops.MatMul()
        else:
            self.gather = ops.Gather()

    def construct(self, ids: Any) -> Any:
        if not self.use_one_hot:
            if len(ids.shape) == 1 or _split_dims(self.gather, 1) != 1:
                return self.gather(self.embedding_table, ids, 0)
            found = self.gather(self.embedding_table, self.flat(ids, (-1,)), 0)
            return self.flat(found, (*ids.shape, self.embedding_size))
        kind = element(self.embedding_table.dtype).numpy
        hot = self.one_hot(self.flat(ids, (-1,)), self.vocab_size, np.ones((), kind), np.zeros((), kind))
        return self.flat(self.matmul(hot, self.embedding_table), (*ids.shape, self.embedding_size))


class _DropoutOfCount(core.primitive_class(core.dropout)):  # type: ignore[misc]
    """Dropout of a tensor and the number of its uses; MindSpore's strategy is of the tensor alone."""

    def shard(self, in_strategy: Any = None, out_strategy: Any = None) -> Any:
        """Fix the split by MindSpore's one tuple."""
        return super().shard(with_count(in_strategy), out_strategy)


class Dropout(Cell):
    """While training, sets elements to 0 and scales the others so that the mean stays.

    The state `counter` goes up with each use, so that every step drops other elements; the seed sets this cell apart
    from others and is drawn from the one stream of `set_seed`.

    Args:
        keep_prob: the share of elements that stays, MindSpore's first argument.
        p: instead of it, the share that becomes 0.
        dtype: accepted for the sake of MindSpore's scripts; the result has the type of x.
        seed: what tells its numbers apart from those of other cells.
    """

    def __init__(
        self, keep_prob: float = 0.5, p: float | None = None, dtype: Any = "f32", *, seed: int | None = None
    ) -> None:
        super().__init__()
        if p is None and not 0 < keep_prob <= 1:
            raise ShapeError(
                f"Dropout: keep_prob is {keep_prob}; the share of elements that stay is above 0, at most 1"
            )
        if p is not None and not 0 <= p < 1:
            raise ShapeError(f"Dropout: p is {p}; the share of elements that become 0 is at least 0 and below 1")
        self.keep_prob, self.p = keep_prob, p
        self.rate = 1 - keep_prob if p is None else p
        self.counter = Parameter(np.zeros((), np.int32), requires_grad=False)
        self.dropout = _DropoutOfCount(rate=self.rate, seed=next_seed() if seed is None else seed)
        self.count = core.primitive_class(core.scalar_add)(addend=1)

    def construct(self, x: Any) -> Any:
        if not self.training or self.rate == 0:
            return x
        x = self.dropout(x, self.counter)
        self.counter.assign(self.count(self.counter))
        return as_tensors(x)


class _ChannelDropout(Cell):
    """While training, sets whole channels (dim 1) of samples to 0 and scales the others so that the mean stays.

    Args:
        p: the share of channels that becomes 0.
    """

    ranks: tuple[int, ...]

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if isinstance(p, bool) or not 0 <= p <= 1:
            raise ShapeError(f"{type(self).__name__}: p is {p!r}; the share of channels is between 0 and 1")
        self.p = p
        self.dropout = Dropout(p=p) if 0 < p < 1 else None

    def construct(self, x: Any) -> Any:
        if len(x.shape) not in self.ranks:
            dims = " or ".join(map(str, self.ranks))
            raise ShapeError(f"{type(self).__name__}: x is {tuple(x.shape)}; it has {dims} dims")
        if not self.training or self.p == 0:
            return x
        if self.dropout is None:
            return as_tensors(core.zeros_like(x))
        lead = len(x.shape) - max(self.ranks) + 2  # batch and channels
        shape = (*x.shape[:lead], *(1,) * (len(x.shape) - lead))
        kept = self.dropout(core.fill(shape=shape, value=1, dtype=element(x.dtype).name))
        return as_tensors(core.mul(x, kept))


class Dropout1d(_ChannelDropout):
    __doc__ = _ChannelDropout.__doc__
    ranks = (2, 3)


class Dropout2d(_ChannelDropout):
    __doc__ = _ChannelDropout.__doc__
    ranks = (4,)


class Dropout3d(_ChannelDropout):
    __doc__ = _ChannelDropout.__doc__
    ranks = (5,)


class Flatten(Cell):
    """The dims from `start_dim` to `end_dim` as one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim
        self.reshape = ops.Reshape()

    def construct(self, x: Any) -> Any:
        rank = len(x.shape)
        first, last = self.start_dim % rank, self.end_dim % rank
        whole = math.prod(x.shape[first : last + 1])
        return self.reshape(x, (*x.shape[:first], whole, *x.shape[last + 1 :]))


class Identity(Cell):
    """The tensor itself; arguments are taken and make no difference."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def construct(self, input: Any) -> Any:
        return input


class ClipByNorm(Cell):
    """`construct(x, clip_norm)`: x clip_norm / norm where the norm over `axis` (by default all) is larger, else x."""

    def __init__(self, axis: Any = None) -> None:
        super().__init__()
        self.axis = axis

    def construct(self, x: Any, clip_norm: Any) -> Any:
        norm = core.sqrt(core.reduce_sum(core.square(x), axis=ops_axes(self.axis), keep_dims=True))
        limit = core.cast(clip_norm, dtype=element(x.dtype).name) if hasattr(clip_norm, "dtype") else float(clip_norm)
        return as_tensors(core.div(core.mul(x, limit), core.maximum(norm, limit)))


class Pad(Cell):
    """Zeros around: paddings[i] = (before, after) along dim i."""

    def __init__(self, paddings: Any, mode: str = "CONSTANT") -> None:
        super().__init__()
        if mode != "CONSTANT":
            raise ShapeError(f"Pad: mode is {mode!r}; only 'CONSTANT' is offered here")
        self.pad = ops.Pad(paddings)

    def construct(self, x: Any) -> Any:
        return self.pad(x)


# -- activations


class _Activation(Cell):
    """A cell around one primitive, which it holds under the primitive's own name, and is made with what that is."""

    primitive: type[Named]
    label: str

    def __init__(self, *args: Any, **attrs: Any) -> None:
        super().__init__()
        setattr(self, self.label, self.primitive(*args, **attrs))

    def construct(self, x: Any) -> Any:
        return getattr(self, self.label)(x)


def _of_primitive(name: str, primitive: type[Named], label: str) -> type[_Activation]:
    made = {"primitive": primitive, "label": label, "made_with": primitive.made_with}
    members = {**made, "__signature__": primitive.made_with, "__doc__": primitive.__doc__, "__module__": __name__}
    return type(name, (_Activation,), members)


ReLU = _of_primitive("ReLU", ops.ReLU, "relu")
ReLU6 = _of_primitive("ReLU6", ops.ReLU6, "relu6")
Tanh = _of_primitive("Tanh", ops.Tanh, "tanh")
Sigmoid = _of_primitive("Sigmoid", ops.Sigmoid, "sigmoid")
HSigmoid = _of_primitive("HSigmoid", ops.HSigmoid, "hsigmoid")
HSwish = _of_primitive("HSwish", ops.HSwish, "hswish")
Mish = _of_primitive("Mish", ops.Mish, "mish")
SeLU = _of_primitive("SeLU", ops.SeLU, "selu")
Softsign = _of_primitive("Softsign", ops.Softsign, "softsign")
FastGelu = _of_primitive("FastGelu", ops.FastGeLU, "fast_gelu")
Softmax = _of_primitive("Softmax", ops.Softmax, "softmax")
LogSoftmax = _of_primitive("LogSoftmax", ops.LogSoftmax, "log_softmax")
ELU = _of_primitive("ELU", ops.Elu, "elu")
CELU = _of_primitive("CELU", ops.CeLU, "celu")
SoftShrink = _of_primitive("SoftShrink", ops.SoftShrink, "softshrink")
HShrink = _of_primitive("HShrink", ops.HShrink, "hshrink")


class _Function(Cell):
    """A cell around a function of x, made with the function's further arguments."""

    function: Callable
    made_with: Signature

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__()
        bound = self.made_with.bind(*args, **given)
        bound.apply_defaults()
        self.given = bound.args

    def construct(self, x: Any) -> Any:
        return type(self).function(x, *self.given)


def _of_function(name: str, function: Callable, *names: str) -> type[_Function]:
    """The cell of a function; `names` are those of the further arguments, where they differ."""
    _, *rest = (one for one in signature(function).parameters.values() if one.kind is one.POSITIONAL_OR_KEYWORD)
    made = Signature(
        [one.replace(name=own) for one, own in zip(rest, names or [one.name for one in rest], strict=True)]
    )
    members = {"function": staticmethod(function), "made_with": made, "__signature__": made}
    return type(name, (_Function,), {**members, "__doc__": function.__doc__, "__module__": __name__})


LogSigmoid = _of_function("LogSigmoid", ops.logsigmoid)
Tanhshrink = _of_function("Tanhshrink", ops.tanhshrink)
Hardtanh = _of_function("Hardtanh", ops.hardtanh)
Threshold = _of_function("Threshold", ops.threshold, "threshold", "value")
GLU = _of_function("GLU", ops.glu)
Softmin = _of_function("Softmin", ops.softmin)


class SiLU(Cell):
    """x * sigmoid(x)."""

    def __init__(self) -> None:
        super().__init__()
        self.silu = core.primitive_class(core.silu)()

    def construct(self, x: Any) -> Any:
        return as_tensors(self.silu(x))


class GELU(Cell):
    """x times the normal distribution function of x; `approximate` takes the tanh form."""

    def __init__(self, approximate: bool = True) -> None:
        super().__init__()
        self.gelu = core.primitive_class(core.gelu)(approximate="tanh" if approximate else "none")

    def construct(self, x: Any) -> Any:
        return as_tensors(self.gelu(x))


class LeakyReLU(Cell):
    """x where it is at least 0, else alpha x."""

    def __init__(self, alpha: float = 0.2) -> None:
        super().__init__()
        self.alpha = alpha

    def construct(self, x: Any) -> Any:
        return ops.leaky_relu(x, self.alpha)


class PReLU(Cell):
    """x where it is at least 0, else x times the parameter `w` of its channel (dim 1), or the only one."""

    def __init__(self, channel: int = 1, w: Any = 0.25) -> None:
        super().__init__()
        numbers = np.full((channel,), w, np.float32) if isinstance(w, int | float) else np.asarray(w, np.float32)
        self.w = Parameter(numbers, name="a")
        self.prelu = ops.PReLU()

    def construct(self, x: Any) -> Any:
        return self.prelu(x, self.w)


_ACTIVATIONS: dict[str, Callable[[], Cell]] = {
    "softmax": Softmax, "logsoftmax": LogSoftmax, "relu": ReLU, "relu6": ReLU6, "tanh": Tanh, "gelu": GELU, "elu": ELU,
    "sigmoid": Sigmoid, "prelu": PReLU, "leakyrelu": LeakyReLU, "hswish": HSwish, "hsigmoid": HSigmoid,
    "softsign": Softsign, "selu": SeLU, "silu": SiLU, "log_softmax": LogSoftmax,
}  # fmt: skip


def get_activation(name: str | Callable | None) -> Any:
    """The cell of that name; anything that can be called is itself.

    Raises:
        UnknownNameError: no such name.
    """
    if not isinstance(name, str):
        return name
    if name not in _ACTIVATIONS:
        raise UnknownNameError(f"unknown activation {name!r}; known are {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]()
