"""Small models whose training steps are measured: most operators that models have, at sizes of several caches."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from autoshard import nn, ops
from autoshard.core.tensortype import TensorType
from autoshard.transform.train import TrainStep, train_step

_RATE = 1e-4
"""The learning rate: numbers stay finite for as many steps as are timed."""


def training_steps(width: int, ranks: int) -> Iterator[TrainStep]:
    """Steps of MLPs, of a decoder with biases and Adam, of one with gates and grouped queries, and of a convolution
    net; their batches are of 8 or more, and so many ranks divide them. Of the MLPs one has few rows, so that its
    updates move more than caches hold, and one many, so that its activations do."""
    for name, count, wide, activation in (
        ("layers", 2 * width, width, nn.ReLU()),
        ("layers of few rows", 16, 3 * width, nn.ReLU()),
        ("layers of many rows", 16 * width, width // 4, nn.GELU()),
    ):
        rows, layers = TensorType.of((_shared(count, ranks), wide), "f32"), _Layers(wide, activation)
        yield train_step(layers, nn.Momentum(layers.trainable_params(), _RATE, 0.9), rows, rows, name=name)
    samples = _shared(8, ranks)
    tokens = TensorType.of((samples, max(8, width // 4)), "i32")
    decoder = _Decoder(width)
    step = nn.Adam(decoder.trainable_params(), _RATE)
    # As it is written, for products and softmax of attention that stays apart are measured, too.
    yield train_step(decoder, step, tokens, tokens, name="decoder", rewrite=None)
    gated = _Gated(width, tokens.shape[1])
    yield train_step(gated, nn.AdamWeightDecay(gated.trainable_params(), _RATE), tokens, tokens, name="gated decoder")
    side = 4 * round(math.sqrt(width) / 2)
    pictures, convolutions = TensorType.of((samples, 3, side, side), "f32"), _Convolutions(width // 8)
    step = nn.SGD(convolutions.trainable_params(), _RATE)
    yield train_step(convolutions, step, pictures, TensorType.of((samples,), "i32"), name="convolutions")


def _shared(count: int, ranks: int) -> int:
    """The least multiple of the ranks that is not below."""
    return -(-count // ranks) * ranks


class _Layers(nn.Cell):
    def __init__(self, width: int, activation: nn.Cell) -> None:
        super().__init__()
        self.dense1, self.activation, self.dense2 = nn.Dense(width, 4 * width), activation, nn.Dense(4 * width, width)
        self.loss = nn.MSELoss()

    def construct(self, x, y):
        return self.loss(self.dense2(self.activation(self.dense1(x))), y)


class _Decoder(nn.Cell):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(2 * width, width)
        self.layer = nn.TransformerBlock(width, 4, 4 * width, causal=True)
        self.head, self.loss = nn.Dense(width, 2 * width, has_bias=False), nn.TokenLoss()

    def construct(self, ids, labels):
        return self.loss(self.head(self.layer(self.embed(ids))), labels)


class _Gated(nn.Cell):
    """RMSNorm, turned queries and keys (Su et al. 2021), two queries to a key, and a gated feed-forward part."""

    heads, shared = 4, 2

    def __init__(self, width: int, sequence: int) -> None:
        super().__init__()
        self.size, grown = width // self.heads, 3 * width
        few = width // self.shared
        self.embed, self.norm1, self.norm2 = nn.Embedding(2 * width, width), nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.key, self.value, self.output, self.gate, self.up, self.down, self.head = (
            nn.Dense(inner, outer, has_bias=False)
            for inner, outer in (
                (width, width), (width, few), (width, few), (width, width),
                (width, grown), (width, grown), (grown, width), (width, 2 * width),
            )
        )  # fmt: skip
        angles = np.outer(np.arange(sequence), 1e4 ** -np.linspace(0, 1, self.size // 2, endpoint=False))
        self.cos, self.sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        self.later = np.triu(np.ones((sequence, sequence), bool), 1)
        self.loss = nn.TokenLoss()

    def construct(self, ids, labels):
        x = self.embed(ids)
        x = ops.add(x, self._attention(self.norm1(x)))
        y = self.norm2(x)
        x = ops.add(x, self.down(ops.mul(ops.silu(self.gate(y)), self.up(y))))
        return self.loss(self.head(x), labels)

    def _attention(self, x):
        few = self.heads // self.shared
        q, k = (self._turned(self._by_heads(of(x), n)) for of, n in ((self.query, self.heads), (self.key, few)))
        v = self._by_heads(self.value(x), few)
        k, v = (self._repeated(one) for one in (k, v))
        scores = ops.mul(ops.BatchMatMul(transpose_b=True)(q, k), 1 / math.sqrt(self.size))
        weights = ops.Softmax(axis=-1)(ops.MaskedFill()(scores, self.later, -1e9))
        context = ops.Transpose()(ops.BatchMatMul()(weights, v), (0, 2, 1, 3))
        return self.output(ops.Reshape()(context, x.shape))

    def _by_heads(self, x, heads):
        return ops.Transpose()(ops.Reshape()(x, (*x.shape[:2], heads, self.size)), (0, 2, 1, 3))

    def _turned(self, x):
        half = self.size // 2
        left, right = x[..., :half], x[..., half:]
        turned = ops.sub(ops.mul(left, self.cos), ops.mul(right, self.sin))
        return ops.concat((turned, ops.add(ops.mul(left, self.sin), ops.mul(right, self.cos))), -1)

    def _repeated(self, x):
        batch, heads, sequence, size = x.shape
        wide = ops.broadcast_to(
            ops.Reshape()(x, (batch, heads, 1, sequence, size)), (batch, heads, self.shared, sequence, size)
        )
        return ops.Reshape()(wide, (batch, heads * self.shared, sequence, size))


class _Convolutions(nn.Cell):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, channels, 3), nn.Conv2d(channels, channels, 3)
        self.norm, self.relu, self.pool = nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(2, 2)
        self.head, self.loss = nn.Dense(channels, 16), nn.TokenLoss()

    def construct(self, x, labels):
        x = self.pool(self.relu(self.norm(self.conv1(x))))
        x = self.relu(self.conv2(x))
        return self.loss(self.head(ops.reduce_mean(x, (2, 3))), labels)
