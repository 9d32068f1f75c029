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
    ELU,
    GELU,
    Dense,
    Dropout,
    Embedding,
    FastGelu,
    Flatten,
    HSigmoid,
    HSwish,
    Identity,
    LeakyReLU,
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
    Softsign,
    Tanh,
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
from autoshard.mindspore.nn.norm import BatchNorm1d, BatchNorm2d, BatchNorm3d, GroupNorm, LayerNorm
from autoshard.mindspore.nn.optim import SGD, Adam, AdamWeightDecay, Momentum
from autoshard.trace.cell import Cell, CellList, SequentialCell
from autoshard.util.offered import NotOfferedError

_ABOVE = dict.fromkeys(("TrainOneStepCell", "TrainOneStepWithLossScaleCell"), "autoshard.mindspore.one_step")

__all__ = [
    "ELU", "GELU", "SGD", "AdaptiveAvgPool2d", "Adam", "AdamWeightDecay", "AvgPool1d", "AvgPool2d", "BCELoss",
    "BCEWithLogitsLoss", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "Cell", "CellList", "Conv1d", "Conv2d",
    "CosineDecayLR", "CrossEntropyLoss", "Dense", "Dropout", "DynamicLossScaleUpdateCell", "Embedding",
    "ExponentialDecayLR", "FastGelu", "FixedLossScaleUpdateCell", "Flatten", "GradAccumulationCell", "GroupNorm",
    "HSigmoid", "HSwish", "HuberLoss", "Identity", "InverseDecayLR", "KLDivLoss", "L1Loss", "LayerNorm", "LeakyReLU",
    "LogSoftmax", "LossBase", "MAELoss", "MSELoss", "MaxPool1d", "MaxPool2d", "Mish", "Momentum", "NLLLoss",
    "NaturalExpDecayLR", "PReLU", "Pad", "PipelineCell", "PolynomialDecayLR", "ReLU", "ReLU6", "SeLU", "SequentialCell",
    "SiLU", "Sigmoid", "SmoothL1Loss", "Softmax", "SoftmaxCrossEntropyWithLogits", "Softsign", "Tanh", "WarmUpLR",
    "WithLossCell", "cosine_decay_lr", "exponential_decay_lr", "get_activation", "inverse_decay_lr",
    "natural_exp_decay_lr", "piecewise_constant_lr", "polynomial_decay_lr", "warmup_lr",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _ABOVE:
        return getattr(import_module(_ABOVE[name]), name)
    raise NotOfferedError(
        f"autoshard.mindspore.nn does not offer MindSpore's {name!r}", name, lambda: __all__, INSTEAD.get(name, "")
    )


def __dir__() -> list[str]:
    return [*__all__, *_ABOVE]
