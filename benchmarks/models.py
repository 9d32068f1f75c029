"""Models that several benchmarks plan or run."""

from __future__ import annotations

from autoshard import nn
from autoshard.core.tensortype import TensorType
from autoshard.transform.train import TrainStep, train_step


class Transformer(nn.Cell):
    """A decoder-only transformer that returns its loss; two operators of each layer are annotated.

    data_parts and tensor_parts split the batch and, in each layer, the query and the first feed-forward matrix.
    """

    def __init__(
        self, layers: int, hidden: int, heads: int, vocabulary: int, data_parts: int, tensor_parts: int
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, hidden)
        self.blocks = nn.CellList([nn.TransformerBlock(hidden, heads, 4 * hidden, causal=True) for _ in range(layers)])
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Dense(hidden, vocabulary, has_bias=False)
        self.loss = nn.TokenLoss()
        columns = ((data_parts, 1, 1), (tensor_parts, 1))
        for block in self.blocks:
            block.attention.query.matmul.shard(columns)
            block.feed_forward.mapping.matmul.shard(columns)

    def construct(self, ids, labels):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.loss(self.head(self.norm(x)), labels)


def transformer_step(
    layers: int,
    data_parts: int,
    tensor_parts: int,
    *,
    hidden: int = 1024,
    heads: int = 16,
    vocabulary: int = 32000,
    sequence: int = 1024,
    batch: int = 64,
) -> TrainStep:
    """Forward, gradient and Adam update of the transformer as one graph."""
    network = Transformer(layers, hidden, heads, vocabulary, data_parts, tensor_parts)
    tokens = TensorType.of((batch, sequence), "i32")
    return train_step(network, nn.Adam(network.trainable_params(), learning_rate=1e-3), tokens, tokens)
