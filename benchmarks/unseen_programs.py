"""Training steps that no price was fitted to, beside the four of `cost_truth.py`: `cost_truth.py --unseen`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autoshard import nn, ops
from autoshard.core.tensortype import TensorType
from autoshard.transform.train import train_step

Parts = tuple[int, int] | None
Make = Callable[[Parts], Any]


def unseen_programs() -> dict[str, Make]:
    """Training steps by name, as `cost_truth.programs` has them."""
    return {"deep layers": _deep, "convolutions": _pictures, "grouped Llama": _llama, "long sequences": _long}


def _shard(dense: Any, parts: Parts, rank: int) -> None:
    if parts is not None:
        dense.matmul.shard(((parts[0], *(1,) * (rank - 1)), (parts[1], 1)))


class _Deep(nn.Cell):
    """Four layers between which tanh stands, classes at the end."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        sizes = (200, 360, 360, 240, 64)
        self.layers = nn.CellList([nn.Dense(few, many) for few, many in zip(sizes, sizes[1:], strict=False)])
        self.tanh, self.loss = nn.Tanh(), nn.TokenLoss()
        for dense in list(self.layers)[::2]:
            _shard(dense, parts, 2)

    def construct(self, x, labels):
        *layers, last = self.layers
        for dense in layers:
            x = self.tanh(dense(x))
        return self.loss(last(x), labels)


def _deep(parts: Parts) -> Any:
    network = _Deep(parts)
    step = nn.AdamWeightDecay(network.trainable_params(), 1e-3)
    return train_step(network, step, TensorType.of((192, 200), "f32"), TensorType.of((192,), "i32"))


class _Pictures(nn.Cell):
    """Three convolutions, norms by batch and by groups, pools of both kinds, two dense layers."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.conv1, self.conv2, self.conv3 = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 24, 3), nn.Conv2d(24, 24, 3)
        self.norm1, self.norm2, self.relu = nn.BatchNorm2d(16), nn.GroupNorm(4, 24), nn.ReLU()
        self.max, self.mean, self.flatten = nn.MaxPool2d(2, 2), nn.AvgPool2d(2, 2), nn.Flatten()
        self.dense1, self.dense2, self.loss = nn.Dense(24 * 36, 96), nn.Dense(96, 16), nn.TokenLoss()
        _shard(self.dense1, parts, 2)

    def construct(self, x, labels):
        x = self.max(self.relu(self.norm1(self.conv1(x))))
        x = self.mean(self.relu(self.norm2(self.conv2(x))))
        x = self.flatten(self.relu(self.conv3(x)))
        return self.loss(self.dense2(self.relu(self.dense1(x))), labels)


def _pictures(parts: Parts) -> Any:
    network = _Pictures(parts)
    step = nn.Momentum(network.trainable_params(), 0.01, 0.9)
    return train_step(network, step, TensorType.of((16, 3, 24, 24), "f32"), TensorType.of((16,), "i32"))


class _Layer(nn.Cell):
    """A layer of Llama, in which three queries share a key."""

    def __init__(self, hidden: int, heads: int, keys: int, parts: Parts) -> None:
        super().__init__()
        self.heads, self.keys, self.size = heads, keys, hidden // heads
        few, inner = keys * self.size, hidden * 5 // 2
        self.norm1, self.norm2 = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.query, self.key, self.value, self.output, self.gate, self.up, self.down = (
            nn.Dense(one, other, has_bias=False)
            for one, other in (
                (hidden, hidden), (hidden, few), (hidden, few), (hidden, hidden),
                (hidden, inner), (hidden, inner), (inner, hidden),
            )
        )  # fmt: skip
        for dense in (self.query, self.gate, self.up):
            _shard(dense, parts, 3)

    def construct(self, x):
        x = ops.add(x, self._attention(self.norm1(x)))
        y = self.norm2(x)
        return ops.add(x, self.down(ops.mul(ops.silu(self.gate(y)), self.up(y))))

    def _attention(self, x):
        q, k, v = self._by_heads(self.query(x)), self._by_heads(self.key(x)), self._by_heads(self.value(x))
        k, v = (self._repeated(one) for one in (k, v))
        scores = ops.mul(ops.BatchMatMul(transpose_b=True)(q, k), self.size**-0.5)
        context = ops.BatchMatMul()(ops.Softmax(axis=-1)(scores), v)
        return self.output(ops.Reshape()(ops.Transpose()(context, (0, 2, 1, 3)), x.shape))

    def _by_heads(self, x):
        heads = x.shape[-1] // self.size
        return ops.Transpose()(ops.Reshape()(x, (*x.shape[:2], heads, self.size)), (0, 2, 1, 3))

    def _repeated(self, x):
        batch, heads, sequence, size = x.shape
        shared = self.heads // self.keys
        wide = ops.broadcast_to(
            ops.Reshape()(x, (batch, heads, 1, sequence, size)), (batch, heads, shared, sequence, size)
        )
        return ops.Reshape()(wide, (batch, heads * shared, sequence, size))


class _Llama(nn.Cell):
    def __init__(self, hidden: int, heads: int, keys: int, layers: int, parts: Parts) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(3 * hidden, hidden), nn.RMSNorm(hidden)
        self.layers = nn.CellList([_Layer(hidden, heads, keys, parts) for _ in range(layers)])
        self.head, self.loss = nn.Dense(hidden, 3 * hidden, has_bias=False), nn.TokenLoss()

    def construct(self, ids, labels):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.loss(self.head(self.norm(x)), labels)


def _llama(parts: Parts) -> Any:
    return _tokens(_Llama(192, 24, 8, 2, parts), 8, 48)


def _long(parts: Parts) -> Any:
    return _tokens(_Llama(64, 8, 8, 1, parts), 8, 320)


def _tokens(network: Any, batch: int, sequence: int) -> Any:
    tokens = TensorType.of((batch, sequence), "i32")
    return train_step(network, nn.AdamWeightDecay(network.trainable_params(), 1e-3), tokens, tokens)
