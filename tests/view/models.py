"""Models whose plans the view's tests look at: a language model of four layers, and one with names that bite."""

from __future__ import annotations

from functools import cache

import numpy as np

import autoshard
import autoshard.ops as ops
from autoshard import nn
from autoshard.api import Planned
from autoshard.trace.cell import Cell
from autoshard.trace.function import Traced
from autoshard.trace.initializer import set_seed
from autoshard.trace.parameter import Parameter
from autoshard.transform.train import train_step

WORDS, WIDTH = 600, 128


class LanguageModel(nn.Cell):
    """Embedding, four blocks, vocabulary projection; returns the mean loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.CellList([nn.TransformerBlock(WIDTH, 8, 3 * WIDTH, causal=True) for _ in range(4)])
        self.head = nn.Dense(WIDTH, WORDS, has_bias=False)
        self.loss = nn.TokenLoss()

    def construct(self, ids, labels):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.loss(self.head(x), labels)


def training() -> Traced:
    """A step of training, traced."""
    set_seed(3)
    network, ids = LanguageModel(), np.zeros((16, 24), np.int32)
    return train_step(network, nn.Adam(network.trainable_params(), learning_rate=1e-3), ids, ids)


@cache
def trained(mode: str) -> Planned:
    """The step planned on two by four devices, by a mode."""
    return autoshard.plan(training(), (), "dp=2 tp=4", search=mode, hardware="h100")


BITING = "</script><script>window.bitten = 1</script>", "<img src=x onerror=window.bitten=1>", "`${window.bitten=1}`'\""


class Biting(Cell):
    """Products whose operators and parameters have names that would run if they were taken for HTML."""

    def __init__(self) -> None:
        super().__init__()
        for i, name in enumerate(BITING):
            setattr(self, f"weight{i}", Parameter(np.ones((40, 40), np.float32), name=name))
            setattr(self, name, ops.MatMul())
        getattr(self, BITING[0]).shard(((2, 1), (1, 4)))

    def construct(self, x):
        for i, name in enumerate(BITING):
            x = getattr(self, name)(x, getattr(self, f"weight{i}"))
        return x


@cache
def biting() -> Planned:
    named = type(f"</title>{BITING[0]}", (Biting,), {})
    return autoshard.plan(named(), (np.ones((48, 40), np.float32),), devices=8)
