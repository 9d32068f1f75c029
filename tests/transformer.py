"""A transformer of one block that tests plan and train: annotated on two operators only."""

from __future__ import annotations

import numpy as np

from autoshard import nn
from autoshard.trace.initializer import set_seed

TOKENS, SEQUENCE, BATCH = 30, 12, 8


class Transformer(nn.Cell):
    """Embedding, one block of attention and MLP with layer norms, vocabulary projection; returns the mean loss."""

    def __init__(self, data_parts: int, tensor_parts: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, 32)
        self.block = nn.TransformerBlock(32, 8, 48, causal=True)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Dense(32, TOKENS, has_bias=False)
        self.loss = nn.TokenLoss()
        columns = ((data_parts, 1, 1), (tensor_parts, 1))
        self.block.attention.query.matmul.shard(columns)
        self.block.feed_forward.mapping.matmul.shard(columns)

    def construct(self, ids, labels):
        return self.loss(self.head(self.norm(self.block(self.embed(ids)))), labels)


def build(data_parts: int, tensor_parts: int, eps: float = 1e-8) -> tuple[Transformer, nn.Adam]:
    """The model, with the same initial values each time, and its optimizer; with a larger `eps` it divides by no
    gradient that is mere rounding."""
    set_seed(5)
    network = Transformer(data_parts, tensor_parts)
    return network, nn.Adam(network.trainable_params(), learning_rate=3e-3, eps=eps)


def batches(steps: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Token sequences that follow a rule, so that the loss can fall: each token is the last one times three."""
    rng = np.random.default_rng(0)
    start = rng.integers(1, TOKENS, (steps, BATCH, 1))
    tokens = start * 3 ** np.arange(SEQUENCE + 1) % TOKENS
    return [(row[:, :-1].astype(np.int32), row[:, 1:].astype(np.int32)) for row in tokens]
