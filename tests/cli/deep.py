"""A language model of twelve layers, whose plan is longer than a screen."""

from __future__ import annotations

import numpy as np

from autoshard import nn
from autoshard.trace.initializer import set_seed
from autoshard.transform.train import train_step


class Deep(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(600, 128)
        self.blocks = nn.CellList([nn.TransformerBlock(128, 8, 384, causal=True) for _ in range(12)])
        self.head = nn.Dense(128, 600, has_bias=False)
        self.loss = nn.TokenLoss()

    def construct(self, ids, labels):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.loss(self.head(x), labels)


def training():
    set_seed(3)
    network, ids = Deep(), np.zeros((16, 24), np.int32)
    return train_step(network, nn.Adam(network.trainable_params(), learning_rate=1e-3), ids, ids)
