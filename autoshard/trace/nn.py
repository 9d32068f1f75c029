"""The names for writing models: cells, parameters, layers, losses. One page; the code is in the modules it
names.
"""

from autoshard.trace.attention import FeedForward, MultiHeadAttention, TransformerEncoderLayer
from autoshard.trace.cell import Cell, CellList, SequentialCell
from autoshard.trace.layers import (
    GELU,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    LayerNorm,
    LogSoftmax,
    ReLU,
    RMSNorm,
    Sigmoid,
    SiLU,
    Softmax,
    Tanh,
    get_activation,
)
from autoshard.trace.losses import CrossEntropyLoss, MSELoss, SoftmaxCrossEntropyWithLogits, WithLossCell
from autoshard.trace.optim import SGD, Adam, AdamW, AdamWeightDecay, Momentum, Optimizer
from autoshard.trace.parameter import Parameter

MLP = FeedForward

__all__ = [
    "GELU",
    "MLP",
    "SGD",
    "Adam",
    "AdamW",
    "AdamWeightDecay",
    "Cell",
    "CellList",
    "CrossEntropyLoss",
    "Dense",
    "Dropout",
    "Embedding",
    "FeedForward",
    "Flatten",
    "LayerNorm",
    "LogSoftmax",
    "MSELoss",
    "Momentum",
    "MultiHeadAttention",
    "Optimizer",
    "Parameter",
    "RMSNorm",
    "ReLU",
    "SequentialCell",
    "SiLU",
    "Sigmoid",
    "SoftmaxCrossEntropyWithLogits",
    "Softmax",
    "Tanh",
    "TransformerEncoderLayer",
    "WithLossCell",
    "get_activation",
]
