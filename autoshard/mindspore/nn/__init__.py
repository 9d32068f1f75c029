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
    Conv3d,
    MaxPool1d,
    MaxPool2d,
)
from autoshard.mindspore.nn.conv_transposed import Conv1dTranspose, Conv2dTranspose
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
    ClipByNorm,
    Dense,
    Dropout,
    Dropout1d,
    Dropout2d,
    Dropout3d,
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
    CTCLoss,
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
from autoshard.mindspore.nn.norm import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    SyncBatchNorm,
)
from autoshard.mindspore.nn.optim import SGD, Adam, AdamWeightDecay, Momentum
from autoshard.mindspore.nn.optim_formulas import FTRL, Adagrad, Lamb, RMSProp
from autoshard.mindspore.nn.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from autoshard.mindspore.nn.transformer import (
    MultiheadAttention,
    Transformer,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)
from autoshard.mindspore.nn.vision import PixelShuffle, PixelUnshuffle, Upsample
from autoshard.trace.cell import Cell, CellList, SequentialCell
from autoshard.util.offered import NotOfferedError

_ABOVE = {
    "EmbeddingLookup": "autoshard.mindspore.embedding_lookup",
    **dict.fromkeys(("TrainOneStepCell", "TrainOneStepWithLossScaleCell"), "autoshard.mindspore.one_step"),
    **dict.fromkeys(
        ("Accuracy", "Loss", "MAE", "MSE", "Metric", "Top1CategoricalAccuracy", "Top5CategoricalAccuracy",
         "TopKCategoricalAccuracy", "get_metric_fn", "F1", "Fbeta", "Precision", "Recall"),
        "autoshard.mindspore.metrics",
    ),
}  # fmt: skip

__all__ = [
    "Adagrad", "Adam", "AdamWeightDecay", "AdaptiveAvgPool2d", "AvgPool1d", "AvgPool2d", "BCELoss",
    "BCEWithLogitsLoss", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "CELU", "CTCLoss", "Cell", "CellList",
    "ClipByNorm", "Conv1d", "Conv1dTranspose", "Conv2d", "Conv2dTranspose", "Conv3d", "CosineDecayLR",
    "CrossEntropyLoss", "Dense", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "DynamicLossScaleUpdateCell",
    "ELU", "Embedding", "ExponentialDecayLR", "FTRL", "FastGelu", "FixedLossScaleUpdateCell", "Flatten", "GELU",
    "GLU", "GRU", "GRUCell", "GradAccumulationCell", "GroupNorm", "HShrink", "HSigmoid", "HSwish", "Hardtanh",
    "HuberLoss", "Identity", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "InverseDecayLR", "KLDivLoss",
    "L1Loss", "LSTM", "LSTMCell", "Lamb", "LayerNorm", "LeakyReLU", "LogSigmoid", "LogSoftmax", "LossBase", "MAELoss",
    "MSELoss", "MaxPool1d", "MaxPool2d", "Mish", "Momentum", "MultiheadAttention", "NLLLoss", "NaturalExpDecayLR",
    "PReLU", "Pad", "PipelineCell", "PixelShuffle", "PixelUnshuffle", "PolynomialDecayLR", "RMSProp", "RNN",
    "RNNCell", "ReLU", "ReLU6", "SGD", "SeLU", "SequentialCell", "SiLU", "Sigmoid", "SmoothL1Loss", "SoftShrink",
    "Softmax", "SoftmaxCrossEntropyWithLogits", "Softmin", "Softsign", "SyncBatchNorm", "Tanh", "Tanhshrink",
    "Threshold", "Transformer", "TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder",
    "TransformerEncoderLayer", "Upsample", "WarmUpLR", "WithLossCell", "cosine_decay_lr", "exponential_decay_lr",
    "get_activation", "inverse_decay_lr", "natural_exp_decay_lr", "piecewise_constant_lr", "polynomial_decay_lr",
    "warmup_lr",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _ABOVE:
        return getattr(import_module(_ABOVE[name]), name)
    raise NotOfferedError(
        f"autoshard.mindspore.nn does not offer MindSpore's {name!r}", name, lambda: __all__, INSTEAD.get(name, "")
    )


def __dir__() -> list[str]:
    return [*__all__, *_ABOVE]
