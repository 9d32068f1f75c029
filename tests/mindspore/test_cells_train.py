"""Every cell trains: one step of each on its own, with torch's gradients, and the same on virtual ranks.

The operand is data times a parameter, so that cells without parameters have something to train, too; the loss is a mean
of squares of what the cell returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import autoshard as ash
import autoshard.mindspore as ms
from autoshard import nn
from autoshard.mindspore import ops
from autoshard.transform import train_step

pytestmark = pytest.mark.torch
RNG = np.random.default_rng(11)


def f(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def share(*shape: int) -> np.ndarray:
    """Numbers between 0 and 1."""
    return RNG.uniform(0.1, 0.9, shape).astype(np.float32)


ROWS, TOKENS, LINES, IMAGE, BODY = f(6, 8), f(2, 6, 8), f(4, 6, 9), f(4, 6, 8, 10), f(4, 6, 3, 4, 5)
CLASSES = np.array([0, 5, 3, 7, 1, 2], np.int32)
Parameters = Mapping[str, torch.Tensor]


class Only(nn.Cell):
    """A cell that is called as `call` says, for one result; parameters keep their names."""

    def __init__(self, cell: Any, call: Callable[..., Any]) -> None:
        super().__init__(auto_prefix=False)
        self.cell, self.call = cell, call

    def construct(self, *operands: Any) -> Any:
        return self.call(self.cell, *operands)


def first(cell: Any, *operands: Any) -> Any:
    return cell(*operands)[0]


_TORCHS = ((".gamma", ".weight"), (".beta", ".bias"), ("dense1", "linear1"), ("dense2", "linear2"))


def module(make: Callable[[], torch.nn.Module], call: Callable[..., Any] | None = None) -> Callable:
    """The first result of a module with such parameters, by torch's names."""

    def run(p: Parameters, x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        held = make().train()
        named = {}
        for name, one in p.items():
            for ours, theirs in _TORCHS:
                name = name.replace(ours, theirs)
            if name in dict(held.named_parameters()):
                named[name] = one

        def apply(*operands: Any) -> Any:
            return torch.func.functional_call(held, named, operands)

        assert len(named) == len(dict(held.named_parameters()))
        found = apply(x, *more) if call is None else call(apply, x, *more)
        return found[0] if isinstance(found, tuple) else found

    return run


def instance_norm(p: Parameters, x: torch.Tensor) -> torch.Tensor:
    return F.instance_norm(x, None, None, p["gamma"], p["beta"])


@dataclass(frozen=True)
class Case:
    """A cell, its first operand, which is trained if it is of floats, further ones, and the same in torch."""

    make: Callable[[], Any]
    x: np.ndarray
    torch: Callable[..., torch.Tensor] | None = None
    more: tuple[np.ndarray, ...] = ()


def pointwise(function: Callable, *args: Any, **named: Any) -> Callable:
    return lambda p, x: function(x, *args, **named)


def batch_norm(p: Parameters, x: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, None, None, p["gamma"], p["beta"], training=True)


def loss_of(function: Callable, **named: Any) -> Callable:
    return lambda p, x, y: function(x, y, **named)


def on_classes(function: Callable) -> Callable:
    return lambda p, x, y: function(x, y.long())


def soft_classes(p: Parameters, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return -(y * torch.log_softmax(x, -1)).sum(-1)


def feed_forward(p: Parameters, x: torch.Tensor, at: str = "") -> torch.Tensor:
    inner = F.linear(x, p[f"{at}mapping.weight"], p[f"{at}mapping.bias"])
    return F.linear(F.gelu(inner, approximate="tanh"), p[f"{at}projection.weight"], p[f"{at}projection.bias"])


def attention(p: Parameters, x: torch.Tensor, at: str = "", causal: bool = False) -> torch.Tensor:
    """Of two heads."""

    def heads(name: str) -> torch.Tensor:
        made = F.linear(x, p[f"{at}{name}.weight"], p[f"{at}{name}.bias"])
        return made.unflatten(-1, (2, -1)).transpose(1, 2)

    query, key, value = map(heads, ("query", "key", "value"))
    made = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
    return F.linear(made.transpose(1, 2).flatten(2), p[f"{at}output.weight"], p[f"{at}output.bias"])


def block(p: Parameters, x: torch.Tensor) -> torch.Tensor:
    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.layer_norm(x, (8,), p[f"{name}.gamma"], p[f"{name}.beta"], 1e-5)

    x = x + attention(p, norm(x, "norm1"), "attention.", causal=True)
    return x + feed_forward(p, norm(x, "norm2"), "feed_forward.")


def two(p: Parameters, x: torch.Tensor) -> torch.Tensor:
    return F.linear(torch.tanh(F.linear(x, p["0.weight"], p["0.bias"])), p["2.weight"], p["2.bias"])


class Listed(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.CellList([nn.Dense(8, 6), nn.Tanh(), nn.Dense(6, 4)])

    def construct(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


def with_loss() -> nn.WithLossCell:
    return nn.WithLossCell(nn.Dense(8, 4), nn.MSELoss())


CASES = {
    "ELU": Case(nn.ELU, ROWS, pointwise(F.elu)),
    "GELU": Case(nn.GELU, ROWS, pointwise(F.gelu, approximate="tanh")),
    "GELU-erf": Case(lambda: nn.GELU(approximate=False), ROWS, pointwise(F.gelu)),
    "FastGelu": Case(nn.FastGelu, ROWS, lambda p, x: x * torch.sigmoid(1.702 * x)),
    "CELU": Case(lambda: nn.CELU(1.5), ROWS, pointwise(F.celu, 1.5)),
    "GLU": Case(nn.GLU, ROWS, pointwise(F.glu)),
    "HShrink": Case(nn.HShrink, ROWS, pointwise(F.hardshrink)),
    "Hardtanh": Case(nn.Hardtanh, ROWS, pointwise(F.hardtanh)),
    "LogSigmoid": Case(nn.LogSigmoid, ROWS, pointwise(F.logsigmoid)),
    "SoftShrink": Case(nn.SoftShrink, ROWS, pointwise(F.softshrink)),
    "Softmin": Case(nn.Softmin, ROWS, pointwise(F.softmin, -1)),
    "Tanhshrink": Case(nn.Tanhshrink, ROWS, pointwise(F.tanhshrink)),
    "Threshold": Case(lambda: nn.Threshold(0.1, 2.0), ROWS, pointwise(F.threshold, 0.1, 2.0)),
    "HSigmoid": Case(nn.HSigmoid, ROWS, pointwise(F.hardsigmoid)),
    "HSwish": Case(nn.HSwish, ROWS, pointwise(F.hardswish)),
    "Identity": Case(nn.Identity, ROWS, lambda p, x: x),
    "LeakyReLU": Case(nn.LeakyReLU, ROWS, pointwise(F.leaky_relu, 0.2)),
    "LogSoftmax": Case(nn.LogSoftmax, ROWS, pointwise(F.log_softmax, -1)),
    "Mish": Case(nn.Mish, ROWS, pointwise(F.mish)),
    "PReLU": Case(lambda: nn.PReLU(6), IMAGE, lambda p, x: F.prelu(x, p["a"])),
    "Pad": Case(lambda: nn.Pad(((1, 0), (2, 3))), ROWS, pointwise(F.pad, (2, 3, 1, 0))),
    "ReLU": Case(nn.ReLU, ROWS, pointwise(F.relu)),
    "ReLU6": Case(nn.ReLU6, ROWS * 5, pointwise(F.relu6)),
    "SeLU": Case(nn.SeLU, ROWS, pointwise(F.selu)),
    "SiLU": Case(nn.SiLU, ROWS, pointwise(F.silu)),
    "Sigmoid": Case(nn.Sigmoid, ROWS, pointwise(torch.sigmoid)),
    "Softmax": Case(nn.Softmax, ROWS, pointwise(F.softmax, -1)),
    "Softmax-first": Case(lambda: nn.Softmax(0), ROWS, pointwise(F.softmax, 0)),
    "Softsign": Case(nn.Softsign, ROWS, pointwise(F.softsign)),
    "Tanh": Case(nn.Tanh, ROWS, pointwise(torch.tanh)),
    "Flatten": Case(nn.Flatten, IMAGE, pointwise(torch.flatten, 1)),
    "Dense": Case(lambda: nn.Dense(8, 10, bias_init="normal", activation="sigmoid"), ROWS,
                  lambda p, x: torch.sigmoid(F.linear(x, p["weight"], p["bias"]))),
    "Dropout": Case(lambda: nn.Dropout(p=0.25), ROWS),
    "Embedding": Case(lambda: nn.Embedding(8, 10), CLASSES, lambda p, x: F.embedding(x.long(), p["embedding_table"])),
    "Embedding-one-hot": Case(lambda: nn.Embedding(8, 10, use_one_hot=True), CLASSES,
                              lambda p, x: F.embedding(x.long(), p["embedding_table"])),
    "Embedding-padding": Case(lambda: nn.Embedding(8, 10, padding_idx=3), CLASSES),
    "Conv1d": Case(lambda: nn.Conv1d(6, 4, 3, has_bias=True), LINES,
                   lambda p, x: F.conv1d(x, p["weight"].reshape(4, 6, 3), p["bias"], padding=1)),
    "Conv2d": Case(lambda: nn.Conv2d(6, 4, 3, has_bias=True), IMAGE,
                   lambda p, x: F.conv2d(x, p["weight"], p["bias"], padding=1)),
    "Conv2d-strided": Case(lambda: nn.Conv2d(6, 4, 3, stride=2, pad_mode="pad", padding=1, group=2), IMAGE,
                           lambda p, x: F.conv2d(x, p["weight"], stride=2, padding=1, groups=2)),
    "AvgPool1d": Case(lambda: nn.AvgPool1d(3, 2), LINES, pointwise(F.avg_pool1d, 3, 2)),
    "AvgPool2d": Case(lambda: nn.AvgPool2d(2, 2), IMAGE, pointwise(F.avg_pool2d, 2, 2)),
    "MaxPool1d": Case(lambda: nn.MaxPool1d(3, 2), LINES, pointwise(F.max_pool1d, 3, 2)),
    "MaxPool2d": Case(lambda: nn.MaxPool2d(3, 2, "same"), IMAGE),
    "MaxPool2d-valid": Case(lambda: nn.MaxPool2d(2, 2), IMAGE, pointwise(F.max_pool2d, 2, 2)),
    "AdaptiveAvgPool2d": Case(lambda: nn.AdaptiveAvgPool2d((4, 5)), IMAGE, pointwise(F.adaptive_avg_pool2d, (4, 5))),
    "BatchNorm1d": Case(lambda: nn.BatchNorm1d(8), ROWS, batch_norm),
    "BatchNorm2d": Case(lambda: nn.BatchNorm2d(6), IMAGE, batch_norm),
    "BatchNorm3d": Case(lambda: nn.BatchNorm3d(6), BODY, batch_norm),
    "SyncBatchNorm": Case(lambda: nn.SyncBatchNorm(6), IMAGE, batch_norm),
    "GroupNorm": Case(lambda: nn.GroupNorm(3, 6), IMAGE, lambda p, x: F.group_norm(x, 3, p["gamma"], p["beta"])),
    "LayerNorm": Case(lambda: nn.LayerNorm((8,), epsilon=1e-5), ROWS,
                      lambda p, x: F.layer_norm(x, (8,), p["gamma"], p["beta"])),
    "LayerNorm-two": Case(lambda: nn.LayerNorm((6, 8), 1, 1, epsilon=1e-5), TOKENS,
                          lambda p, x: F.layer_norm(x, (6, 8), p["gamma"], p["beta"])),
    "RMSNorm": Case(lambda: nn.RMSNorm(8), ROWS, lambda p, x: F.rms_norm(x, (8,), p["gamma"], 1e-6)),
    "InstanceNorm1d": Case(lambda: nn.InstanceNorm1d(6), LINES, instance_norm),
    "InstanceNorm2d": Case(lambda: nn.InstanceNorm2d(6), IMAGE, instance_norm),
    "InstanceNorm3d": Case(lambda: nn.InstanceNorm3d(6), BODY, instance_norm),
    "Conv1dTranspose": Case(lambda: nn.Conv1dTranspose(6, 4, 3, 2, "pad", 1), LINES,
                            lambda p, x: F.conv_transpose1d(x, p["weight"][:, :, 0], None, 2, 1)),
    "Conv2dTranspose": Case(lambda: nn.Conv2dTranspose(6, 4, 3, 2, "pad", 1, has_bias=True), IMAGE,
                            lambda p, x: F.conv_transpose2d(x, p["weight"], p["bias"], 2, 1)),
    "Conv3d": Case(lambda: nn.Conv3d(6, 4, 3, pad_mode="pad", padding=1, has_bias=True), BODY,
                   lambda p, x: F.conv3d(x, p["weight"], p["bias"], 1, 1)),
    "Dropout1d": Case(nn.Dropout1d, LINES),
    "Dropout2d": Case(nn.Dropout2d, IMAGE),
    "Dropout3d": Case(nn.Dropout3d, BODY),
    "Upsample": Case(lambda: nn.Upsample((4, 12), mode="bilinear"), IMAGE,
                     pointwise(F.interpolate, (4, 12), mode="bilinear")),
    "PixelShuffle": Case(lambda: nn.PixelShuffle(2), IMAGE[:, :4], pointwise(F.pixel_shuffle, 2)),
    "PixelUnshuffle": Case(lambda: nn.PixelUnshuffle(2), IMAGE, pointwise(F.pixel_unshuffle, 2)),
    "ClipByNorm": Case(lambda: Only(nn.ClipByNorm(), lambda cell, x: cell(x, 0.5)), ROWS,
                       lambda p, x: x * 0.5 / x.norm()),
    "LSTM": Case(lambda: Only(nn.LSTM(8, 6), first), TOKENS, module(lambda: torch.nn.LSTM(8, 6))),
    "GRU": Case(lambda: Only(nn.GRU(8, 6), first), TOKENS, module(lambda: torch.nn.GRU(8, 6))),
    "RNN": Case(lambda: Only(nn.RNN(8, 6), first), TOKENS, module(lambda: torch.nn.RNN(8, 6))),
    "LSTMCell": Case(lambda: Only(nn.LSTMCell(8, 4), lambda cell, x, h, c: cell(x, (h, c))[0]), ROWS,
                     module(lambda: torch.nn.LSTMCell(8, 4), lambda call, x, h, c: call(x, (h, c))),
                     (f(6, 4), f(6, 4))),
    "GRUCell": Case(lambda: nn.GRUCell(8, 4), ROWS, module(lambda: torch.nn.GRUCell(8, 4)), (f(6, 4),)),
    "RNNCell": Case(lambda: nn.RNNCell(8, 4), ROWS, module(lambda: torch.nn.RNNCell(8, 4)), (f(6, 4),)),
    "MultiheadAttention": Case(
        lambda: Only(nn.MultiheadAttention(8, 2, batch_first=True), lambda cell, x: cell(x, x, x)[0]), TOKENS,
        module(lambda: torch.nn.MultiheadAttention(8, 2, batch_first=True), lambda call, x: call(x, x, x))),
    "TransformerEncoderLayer": Case(lambda: nn.TransformerEncoderLayer(8, 2, 12, 0.0), TOKENS,
                                    module(lambda: torch.nn.TransformerEncoderLayer(8, 2, 12, 0.0))),
    "TransformerDecoderLayer": Case(lambda: nn.TransformerDecoderLayer(8, 2, 12, 0.0), TOKENS,
                                    module(lambda: torch.nn.TransformerDecoderLayer(8, 2, 12, 0.0)), (f(3, 6, 8),)),
    "TransformerEncoder": Case(
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, 0.0), 1, nn.LayerNorm((8,))), TOKENS),
    "TransformerDecoder": Case(
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 12, 0.0), 1), TOKENS,
        module(lambda: torch.nn.TransformerDecoder(torch.nn.TransformerDecoderLayer(8, 2, 12, 0.0), 1)), (f(3, 6, 8),)),
    "CTCLoss": Case(nn.CTCLoss, np.log(share(8, 4, 5)), lambda p, x, *more: F.ctc_loss(x, *more),
                    (np.array([[1, 2], [3, 3], [4, 1], [2, 2]], np.int32), np.array([8, 6, 5, 7], np.int32),
                     np.array([2, 2, 1, 2], np.int32))),
    "SequentialCell": Case(lambda: nn.SequentialCell(nn.Dense(8, 6), nn.Tanh(), nn.Dense(6, 4)), ROWS, two),
    "CellList": Case(Listed, ROWS, lambda p, x: two({k.removeprefix("layers."): v for k, v in p.items()}, x)),
    "WithLossCell": Case(with_loss, ROWS,
                         lambda p, x, y: F.mse_loss(F.linear(x, p["weight"], p["bias"]), y),
                         (f(6, 4),)),
    "MultiHeadAttention": Case(lambda: nn.MultiHeadAttention(8, 2), TOKENS, attention),
    "FeedForward": Case(lambda: nn.FeedForward(8, 12), TOKENS, feed_forward),
    "TransformerBlock": Case(lambda: nn.TransformerBlock(8, 2, 12, causal=True), TOKENS, block),
    "TransformerBlock-rms": Case(lambda: nn.TransformerBlock(8, 2, 12, norm="rms_norm"), TOKENS),
    "BCELoss": Case(nn.BCELoss, share(6, 8), loss_of(F.binary_cross_entropy), (share(6, 8),)),
    "BCEWithLogitsLoss": Case(nn.BCEWithLogitsLoss, ROWS, loss_of(F.binary_cross_entropy_with_logits), (share(6, 8),)),
    "CrossEntropyLoss": Case(nn.CrossEntropyLoss, ROWS, on_classes(F.cross_entropy), (CLASSES,)),
    "HuberLoss": Case(nn.HuberLoss, ROWS, loss_of(F.huber_loss), (f(6, 8),)),
    "KLDivLoss": Case(nn.KLDivLoss, ROWS, loss_of(F.kl_div), (share(6, 8),)),
    "L1Loss": Case(nn.L1Loss, ROWS, loss_of(F.l1_loss), (f(6, 8),)),
    "MAELoss": Case(nn.MAELoss, ROWS, loss_of(F.l1_loss), (f(6, 8),)),
    "MSELoss": Case(nn.MSELoss, ROWS, loss_of(F.mse_loss), (f(6, 8),)),
    "NLLLoss": Case(nn.NLLLoss, ROWS, on_classes(F.nll_loss), (CLASSES,)),
    "SmoothL1Loss": Case(nn.SmoothL1Loss, ROWS, loss_of(F.smooth_l1_loss, reduction="none"), (f(6, 8),)),
    "SoftmaxCrossEntropyWithLogits": Case(nn.SoftmaxCrossEntropyWithLogits, ROWS, soft_classes,
                                          (np.eye(8, dtype=np.float32)[CLASSES],)),
    "SoftmaxCrossEntropyWithLogits-sparse": Case(
        lambda: nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"), ROWS, on_classes(F.cross_entropy),
        (CLASSES,)),
    "TokenLoss": Case(nn.TokenLoss, ROWS, on_classes(F.cross_entropy), (CLASSES,)),
}  # fmt: skip

OTHERS = {
    "Adagrad", "Adam", "AdamW", "AdamWeightDecay", "Cell", "DynamicLossScaleUpdateCell", "FTRL",
    "FixedLossScaleUpdateCell", "GradAccumulationCell", "Lamb", "LossBase", "MLP", "Momentum", "Optimizer",
    "Parameter", "PipelineCell", "RMSProp", "SGD", "Transformer", "get_activation",
    *(name for name in nn.__all__ if name.endswith(("DecayLR", "WarmUpLR", "_lr"))),
}  # fmt: skip
"""No layers and no losses: optimizers, learning rates, ...; MLP is FeedForward, a Transformer is its parts."""


class Squares(nn.Cell):
    """The mean of squares of what a cell makes of its operand: data, if of floats times a parameter."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.cell = case.make()
        floats = case.x.dtype.kind == "f"
        self.factor = ms.Parameter(np.ones_like(case.x), name="factor") if floats else None
        self.scale, self.square, self.mean = ops.Mul(), ops.Square(), ops.ReduceMean()

    def construct(self, x: Any, *more: Any) -> Any:
        operand = x if self.factor is None else self.scale(x, self.factor)
        return self.mean(self.square(self.cell(operand, *more)))


def prepared(case: Case) -> Squares:
    """The network with parameters that are drawn anew, so that none is 0 or 1 throughout."""
    ms.set_seed(3)
    net = Squares(case)
    net.set_train()
    rng = np.random.default_rng(4)
    for name, one in net.parameters_dict().items():
        if name.startswith("cell.") and one.requires_grad:
            one.set_data(rng.uniform(0.2, 1.2, one.shape).astype(np.float32))
    return net


def values(net: Squares) -> dict[str, np.ndarray]:
    return {name: one.asnumpy().copy() for name, one in net.parameters_dict().items()}


def trained(case: Case, **planned: Any) -> tuple[float, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The loss, and parameters before and after a step of gradient descent with rate 1."""
    net = prepared(case)
    before = values(net)
    step = train_step(net, nn.SGD(net.trainable_params(), 1.0), case.x, *case.more)
    if not planned:
        return float(step(case.x, *case.more)), before, values(net)
    loss = ash.plan(step.traced, **planned).session.call(case.x, *case.more)
    return float(np.asarray(loss)), before, values(net)


@cache
def trained_whole(name: str) -> tuple[float, dict[str, np.ndarray], dict[str, np.ndarray]]:
    return trained(CASES[name])


def test_every_cell_has_a_case() -> None:
    assert set(nn.__all__) - OTHERS == {name.split("-")[0] for name in CASES}


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.torch])
def test_gradients_are_torchs(name: str) -> None:
    case = CASES[name]
    loss, before, after = trained_whole(name)
    tensors = {k: torch.tensor(v, requires_grad=v.dtype.kind == "f") for k, v in before.items()}
    x = torch.tensor(case.x) * tensors.get("factor", 1)
    parameters = {k.removeprefix("cell."): v for k, v in tensors.items()}
    assert case.torch is not None
    want = case.torch(parameters, x, *map(torch.tensor, case.more)).square().mean()
    want.backward()
    np.testing.assert_allclose(loss, float(want), rtol=1e-5)
    gradients = {key: one.grad.numpy() for key, one in tensors.items() if one.grad is not None}
    largest = max(1.0, *(float(np.abs(one).max()) for one in gradients.values()))
    for key, gradient in gradients.items():
        np.testing.assert_allclose(before[key] - after[key], gradient, rtol=2e-4, atol=2e-6 * largest, err_msg=key)


MESHES = {"dp=2 tp=3": "sharding_propagation", "x=2 y=2": "optimal", "d=2": "data_parallel", "a=3 b=2": "batch"}


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", CASES)
def test_a_split_step_is_the_whole_one(name: str, mesh: str) -> None:
    case = CASES[name]
    want, before, whole = trained_whole(name)
    loss, _, split = trained(case, mesh=mesh, search=MESHES[mesh])
    np.testing.assert_allclose(loss, want, rtol=1e-5)
    largest = max(1.0, *(float(np.abs(one).max()) for one in whole.values()))
    for key in before:
        np.testing.assert_allclose(split[key], whole[key], rtol=2e-4, atol=2e-6 * largest, err_msg=key)
