"""Functions of layers of MindSpore's mint; those that mean the same in both are those of `ops` themselves."""

from __future__ import annotations

from typing import Any

from autoshard.mindspore import ops
from autoshard.util.offered import NotOfferedError

_SAME = (
    "adaptive_avg_pool2d", "binary_cross_entropy", "cross_entropy", "elu",
    "embedding", "gelu", "hardsigmoid", "hardswish", "interpolate", "kl_div", "l1_loss", "layer_norm", "logsigmoid",
    "max_pool2d", "mish", "mse_loss", "nll_loss", "relu", "relu6", "sigmoid", "silu", "softplus",
    "softshrink", "tanh",
)  # fmt: skip


def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """input times the transposed weight [out, in], plus the bias."""
    return ops.dense(input, weight, bias)


def softmax(input: Any, dim: int | None = None, dtype: Any = None) -> Any:
    """exp(x) divided by its sum along `dim`, by default the last."""
    return ops.softmax(input, -1 if dim is None else dim, dtype=dtype)


def log_softmax(input: Any, dim: int | None = None, dtype: Any = None) -> Any:
    """The logarithm of `softmax`."""
    return ops.log_softmax(input if dtype is None else ops.cast(input, dtype), -1 if dim is None else dim)


def one_hot(tensor: Any, num_classes: int) -> Any:
    """1 where a new last dim has the class, else 0, of the type int64."""
    return ops.one_hot(tensor, num_classes)


def smooth_l1_loss(input: Any, target: Any, reduction: str = "mean", beta: float = 1.0) -> Any:
    """d^2 / (2 beta) of differences d below beta, else |d| - beta / 2."""
    return ops.smooth_l1_loss(input, target, beta, reduction)


def binary_cross_entropy_with_logits(
    input: Any, target: Any, weight: Any = None, reduction: str = "mean", pos_weight: Any = None
) -> Any:
    """The cross entropy of the sigmoid of logits with probabilities."""
    return ops.binary_cross_entropy_with_logits(input, target, weight, pos_weight, reduction)


def leaky_relu(input: Any, negative_slope: float = 0.01) -> Any:
    """x where it is at least 0, else x times the slope."""
    return ops.leaky_relu(input, negative_slope)


def group_norm(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """x without mean and scale of each group of channels of a sample, times the weight plus the bias."""
    return ops.group_norm(input, num_groups, weight, bias, eps)


def conv2d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Any:
    """Sums of products under windows of weight [out, C / groups, h, w]; padding is a number, or two, or a word."""
    if isinstance(padding, str):
        return ops.conv2d(input, weight, bias, stride, padding, 0, dilation, groups)
    return ops.conv2d(input, weight, bias, stride, "pad", padding, dilation, groups)


_OWN = [
    "binary_cross_entropy_with_logits", "conv2d", "group_norm", "leaky_relu", "linear", "log_softmax", "one_hot",
    "smooth_l1_loss", "softmax",
]  # fmt: skip
__all__ = sorted([*_SAME, *_OWN])  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name in _SAME:
        return getattr(ops, name)
    raise NotOfferedError(
        f"autoshard.mindspore.mint.nn.functional does not offer MindSpore's {name!r}", name, lambda: __all__
    )


def __dir__() -> list[str]:
    return __all__
