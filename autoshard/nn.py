"""Everything to write a model with: MindSpore's cells, layers, losses and optimizers, and a few of our own.

    from autoshard.nn import Cell, Dense, Momentum, SoftmaxCrossEntropyWithLogits

Names that MindSpore has mean what MindSpore's mean: they are those of `autoshard.mindspore.nn`. Our own are RMSNorm,
AdamW (of `autoshard.optim`), MultiHeadAttention, FeedForward, TransformerBlock and TokenLoss.

>>> import numpy as np
>>> from autoshard import evaluate, nn
>>> net = nn.SequentialCell(nn.Dense(12, 64), nn.ReLU(), nn.Dense(64, 20))
>>> evaluate(net, np.ones((16, 12), np.float32)).shape
(16, 20)
"""

from __future__ import annotations

from typing import Any

from autoshard.mindspore import nn as _nn
from autoshard.mindspore.nn import *  # noqa: F403
from autoshard.mindspore.nn.blocks import FeedForward, MultiHeadAttention, TokenLoss, TransformerBlock  # noqa: F401
from autoshard.mindspore.nn.norm import RMSNorm  # noqa: F401
from autoshard.trace.optim import AdamW, Optimizer  # noqa: F401
from autoshard.trace.parameter import Parameter  # noqa: F401

MLP = FeedForward

_OWN = [
    "MLP",
    "AdamW",
    "FeedForward",
    "MultiHeadAttention",
    "Optimizer",
    "Parameter",
    "RMSNorm",
    "TokenLoss",
    "TransformerBlock",
]
__all__ = [*_nn.__all__, *_OWN]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    return getattr(_nn, name)
