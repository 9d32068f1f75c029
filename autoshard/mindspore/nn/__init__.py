"""Cells, layers, losses and optimizers with MindSpore's names, arguments, defaults and results.

from autoshard.mindspore import nn

net = nn.SequentialCell(nn.Dense(64, 256, activation="relu"), nn.Dense(256, 10))
optimizer = nn.Momentum(net.trainable_params(), 0.01, 0.9)
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from autoshard.mindspore.instead import INSTEAD
from autoshard.mindspore.nn.conv import (
    AdaptiveAvgPool2d,
    AvgPool1d,
    AvgPool2d,
    Conv1d,
    Conv2d,
    MaxPool1d,
    MaxPool2d,
)
from autoshard.mindspore.nn.dynamic_lr import (
    cosine_decay_lr,
    exponential_decay_lr,
    inverse_decay_lr,
    natural_exp_decay_lr,
    piecewise_constant_lr,
    polynomial_decay_lr,
    warmup_lr,
)
from autoshard.mindspore.nn.layers import (
    CELU,
    ELU,
    GELU,
    GLU,
    Dense,
    Dropout,
    Embedding,
    FastGelu,
    Flatten,
    Hardtanh,
    HShrink,
    HSigmoid,
    HSwish,
    Identity,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    Mish,
    Pad,
    PReLU,
    ReLU,
    ReLU6,
    SeLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softmin,
    SoftShrink,
    Softsign,
    Tanh,
    Tanhshrink,
    Threshold,
    get_activation,
)
from autoshard.mindspore.nn.learning_rate_schedule import (
    CosineDecayLR,
    ExponentialDecayLR,
    InverseDecayLR,
    NaturalExpDecayLR,
    PolynomialDecayLR,
    WarmUpLR,
)
from autoshard.mindspore.nn.loss import (
    BCELoss,
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    LossBase,
    MAELoss,
    MSELoss,
    NLLLoss,
    SmoothL1Loss,
    SoftmaxCrossEntropyWithLogits,
    WithLossCell,
)
from autoshard.mindspore.nn.loss_scale import DynamicLossScaleUpdateCell, FixedLossScaleUpdateCell
from autoshard.mindspore.nn.micro_batches import GradAccumulationCell, PipelineCell
from autoshard.mindspore.nn.norm import BatchNorm1d, BatchNorm2d, BatchNorm3d, GroupNorm, LayerNorm, SyncBatchNorm
from autoshard.mindspore.nn.optim import SGD, Adam, AdamWeightDecay, Momentum
from autoshard.mindspore.nn.optim_formulas import FTRL, Adagrad, Lamb, RMSProp
from autoshard.trace.cell import Cell, CellList, SequentialCell
from autoshard.util.offered import NotOfferedError

_ABOVE = {
    **dict.fromkeys(("TrainOneStepCell", "TrainOneStepWithLossScaleCell"), "autoshard.mindspore.one_step"),
    **dict.fromkeys(
        ("Accuracy", "Loss", "MAE", "MSE", "Metric", "Top1CategoricalAccuracy", "Top5CategoricalAccuracy",
         "TopKCategoricalAccuracy", "get_metric_fn"),
        "autoshard.mindspore.metrics",
    ),
}  # fmt: skip

__all__ = [
    "CELU", "ELU", "FTRL", "GELU", "GLU", "SGD", "Adagrad", "Adam", "AdamWeightDecay", "AdaptiveAvgPool2d",
    "AvgPool1d", "AvgPool2d", "BCELoss", "BCEWithLogitsLoss", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "Cell",
    "CellList", "Conv1d", "Conv2d", "CosineDecayLR", "CrossEntropyLoss", "Dense", "Dropout",
    "DynamicLossScaleUpdateCell", "Embedding", "ExponentialDecayLR", "FastGelu", "FixedLossScaleUpdateCell",
    "Flatten", "GradAccumulationCell", "GroupNorm", "HShrink", "HSigmoid", "HSwish", "Hardtanh", "HuberLoss",
    "Identity", "InverseDecayLR", "KLDivLoss", "L1Loss", "Lamb", "LayerNorm", "LeakyReLU", "LogSigmoid",
    "LogSoftmax", "LossBase", "MAELoss", "MSELoss", "MaxPool1d", "MaxPool2d", "Mish", "Momentum", "NLLLoss",
    "NaturalExpDecayLR", "PReLU", "Pad", "PipelineCell", "RMSProp", "PolynomialDecayLR", "ReLU", "ReLU6", "SeLU",
    "SequentialCell", "SiLU", "Sigmoid", "SmoothL1Loss", "SoftShrink", "Softmax", "SoftmaxCrossEntropyWithLogits",
    "Softmin", "Softsign", "SyncBatchNorm", "Tanh", "Tanhshrink", "Threshold", "WarmUpLR", "WithLossCell",
    "cosine_decay_lr", "exponential_decay_lr", "get_activation", "inverse_decay_lr", "natural_exp_decay_lr",
    "piecewise_constant_lr", "polynomial_decay_lr", "warmup_lr",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _ABOVE:
        return getattr(import_module(_ABOVE[name]), name)
    raise NotOfferedError(
        f"autoshard.mindspore.nn does not offer MindSpore's {name!r}", name, lambda: __all__, INSTEAD.get(name, "")
    )


def __dir__() -> list[str]:
    return [*__all__, *_ABOVE]
