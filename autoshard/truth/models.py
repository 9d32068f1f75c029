"""The training step of a row as a graph: a decoder of one kind, its loss, gradient and Adam.

Parameters are f32 and computed with in the row's type, cast where they are used, as in mixed precision. No numbers are
made: parameters are deferred, inputs are types.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from autoshard import nn, ops, optim
from autoshard.core.tensortype import DType, TensorType, dtype
from autoshard.ir.graph import Node
from autoshard.trace.parameter import computed_in
from autoshard.transform.train import TrainStep, train_step
from autoshard.truth.mixture import Experts, LatentAttention
from autoshard.truth.rows import DecoderModel, Row

FUSED, APART, WIDE = "fused", "apart", "wide"
"""Attention as one operator, taken apart, or taken apart with scores in f32 around the softmax."""


class Attention(nn.Cell):
    """Causal attention by heads, of which groups share keys and values: FUSED, APART or WIDE."""

    def __init__(self, model: DecoderModel, how: str) -> None:
        super().__init__()
        self.heads, self.width = model.heads, model.head_width or model.hidden // model.heads
        self.how, self.rotary = how, model.is_llama
        narrow, bias = (model.kv_heads or model.heads) * self.width, model.builder == "gpt"
        wide = model.heads * self.width
        self.query = nn.Dense(model.hidden, wide, has_bias=bias)
        self.key, self.value = (nn.Dense(model.hidden, narrow, has_bias=bias) for _ in range(2))
        self.output = nn.Dense(wide, model.hidden, has_bias=bias)
        self.dropout = nn.Dropout(p=model.dropout)

    def construct(self, x: Any) -> Any:
        query, key, value = (self._by_heads(one) for one in (self.query(x), self.key(x), self.value(x)))
        if self.rotary:
            query, key = _rotated(query), _rotated(key)
        found = (_attention if self.how == FUSED else self._apart)(query, key, value)
        return self.output(ops.reshape(ops.transpose(found, perm=(0, 2, 1, 3)), shape=(*x.shape[:-1], -1)))

    def _by_heads(self, x: Any) -> Any:
        """[batch, heads, sequence, width] of [batch, sequence, heads * width]."""
        *lead, columns = x.shape
        split = ops.reshape(x, shape=(*lead, columns // self.width, self.width))
        return ops.transpose(split, perm=(0, 2, 1, 3))

    def _apart(self, query: Any, key: Any, value: Any) -> Any:
        key, value = _repeated(key, self.heads), _repeated(value, self.heads)
        scores, kind = ops.batch_matmul(query, key, transpose_b=True), dtype(query.dtype).name
        if self.how == WIDE:
            scores = ops.cast(scores, dtype="f32")
        scores = ops.scalar_mul(scores, factor=1 / math.sqrt(self.width))
        size = scores.shape[-1]
        places = ops.reshape(np.arange(size, dtype=np.int32), shape=(size, 1))
        later = ops.less(places, np.arange(size, dtype=np.int32))
        weights = ops.softmax(ops.masked_fill(scores, later, value=-1e4), axis=-1)
        if self.how == WIDE:
            weights = ops.cast(weights, dtype=kind)
        return ops.batch_matmul(self.dropout(weights), value)


def _rotated(x: Any) -> Any:
    """Rotary positions (Su et al. 2021): x * cos + (its halves exchanged, the second negated) * sin."""
    length, width = x.shape[-2:]
    cos, sin = (ops.cast(table, dtype=dtype(x.dtype).name) for table in _turns(length, width))
    turned = ops.concat(ops.neg(x[..., width // 2 :]), x[..., : width // 2], axis=-1)
    return ops.add(ops.mul(x, cos), ops.mul(turned, sin))


@lru_cache(maxsize=1)
def _turns(length: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines by position and column, of all layers the same arrays: they are large in long sequences."""
    rates = np.float32(5e5) ** (-np.arange(width // 2, dtype=np.float32) / (width // 2))
    angles = np.outer(np.arange(length, dtype=np.float32), np.tile(rates, 2))
    return np.cos(angles), np.sin(angles)


def _attention(query: Any, key: Any, value: Any) -> Any:
    """Attention as one operator; heads that share keys and values are a dim of their own."""
    batch, heads, length, width = query.shape
    groups = key.shape[1]
    if groups == heads:
        return ops.attention(query, key, value, causal=True)
    key, value = (ops.reshape(one, shape=(batch, groups, 1, length, width)) for one in (key, value))
    query = ops.reshape(query, shape=(batch, groups, heads // groups, length, width))
    return ops.reshape(ops.attention(query, key, value, causal=True), shape=(batch, heads, length, width))


def _repeated(x: Any, heads: int) -> Any:
    """Keys or values of groups, for each head of a group."""
    batch, groups, length, width = x.shape
    if groups == heads:
        return x
    spread = ops.broadcast_to(
        ops.reshape(x, shape=(batch, groups, 1, length, width)), shape=(batch, groups, heads // groups, length, width)
    )
    return ops.reshape(spread, shape=(batch, heads, length, width))


class Gated(nn.Cell):
    """A feed-forward part whose columns are gated: down(silu(gate(x)) * up(x)) (Shazeer 2020)."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Dense(hidden, inner, has_bias=False) for _ in range(2))
        self.down = nn.Dense(inner, hidden, has_bias=False)

    def construct(self, x: Any) -> Any:
        return self.down(ops.mul(ops.silu(self.gate(x)), self.up(x)))


class Layer(nn.Cell):
    """Attention and feed-forward part, each behind a norm, with dropout and a residual."""

    def __init__(self, model: DecoderModel, how: str) -> None:
        super().__init__()
        self.before, self.between = _norm(model), _norm(model)
        self.attention = LatentAttention(model, _attention, _rotated) if model.query_latent else Attention(model, how)
        self.inner = _feed_forward(model)
        self.dropouts = nn.CellList([nn.Dropout(p=model.dropout) for _ in range(2)])

    def construct(self, x: Any) -> Any:
        x = ops.add(x, self.dropouts[0](self.attention(self.before(x))))
        return ops.add(x, self.dropouts[1](self.inner(self.between(x))))


def _feed_forward(model: DecoderModel) -> nn.Cell:
    if model.experts:
        return Experts(model, Gated(model.hidden, model.shared_inner) if model.shared_inner else None)
    if model.is_llama:
        return Gated(model.hidden, model.inner)
    return nn.FeedForward(model.hidden, model.inner, has_bias=model.builder == "gpt")


class LossApart(nn.Cell):
    """The mean loss of the next tokens in PyTorch's eager kernels, which keep the logarithms of a softmax in f32 and
    make their gradient from one of ones and zeros (`torch.nn.functional.cross_entropy`)."""

    def construct(self, logits: Any, labels: Any) -> Any:
        every = ops.log_softmax(logits, axis=-1)
        true = ops.gather_d(every, ops.reshape(labels, shape=(*labels.shape, 1)), dim=-1)
        return ops.neg(ops.reduce_mean(true, axis=(0, 1, 2)))


class Decoder(nn.Cell):
    """Embedding, layers, norm, logits; returns the mean loss of the next tokens."""

    def __init__(self, model: DecoderModel, sequence: int, how: str, loss: str, kind: DType) -> None:
        super().__init__()
        self.kind = kind
        self.tied = not model.is_llama
        self.embedding = nn.Embedding(model.vocabulary, model.hidden)
        if self.tied:
            self.positions = nn.Embedding(sequence, model.hidden)
        else:
            self.head = nn.Dense(model.hidden, model.vocabulary, has_bias=False)
        self.layers = nn.CellList([Layer(model, how) for _ in range(model.layers)])
        self.norm = _norm(model)
        self.loss = LossApart() if loss == APART else nn.TokenLoss()

    def construct(self, words: Any, labels: Any) -> Any:
        with computed_in(self.kind):
            logits = self._logits(words)
        return self.loss(ops.cast(logits, dtype="f32"), labels)

    def _logits(self, words: Any) -> Any:
        x = self.embedding(words)
        if self.tied:
            x = ops.add(x, self.positions(np.arange(words.shape[1], dtype=np.int32)))
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        table = self.embedding.embedding_table
        return ops.matmul(x, table, transpose_b=True) if self.tied else self.head(x)


def _norm(model: DecoderModel) -> nn.Cell:
    return nn.RMSNorm(model.hidden) if model.is_llama else nn.LayerNorm(model.hidden)


_LAYER = re.compile(r"(^|\.)layers\.(?P<layer>\d+)\.(?P<rest>.+)$")


def _within_layer(node: Node) -> str:
    """The name of a node inside of its layer; empty for what lies outside of layers."""
    found = _LAYER.search(node.label)
    return found["rest"] if found else ""


def _made_again(recompute: str, fusion: str) -> Callable[[Node], bool] | None:
    """Which nodes the backward pass makes again."""
    if recompute == "none" and fusion not in ("none", "eager"):  # a kernel of a gated unit keeps what it reads alone
        return lambda node: _within_layer(node) in ("inner.silu", "inner.shared.silu")
    if recompute == "full":  # all of a layer but for the sum that leaves it
        return lambda node: _within_layer(node) not in ("", "add_1")
    if recompute == "attention":  # scores and weights (Korthikanti et al. 2022, section 5)
        return _is_score
    if recompute == "products":
        seen: list[Node] = []
        return lambda node: _every_second(node, seen)
    return None


def _is_score(node: Node) -> bool:
    rest = _within_layer(node)
    if not rest.startswith("attention."):
        return False
    shapes = [one.shape for one in node.result_types]
    return any(len(shape) == 4 and shape[-1] == shape[-2] for shape in shapes) or node.op.name == "BatchMatMul"


def _every_second(node: Node, seen: list[Node]) -> bool:
    """Every second product, and all that is no product (torchtitan's "selective" by operator)."""
    if not _within_layer(node) or node.op.name == "Attention":
        return False
    if node.op.has_rule and len(node.operands) > 1 and node.rule.contracted:
        seen.append(node)
        return len(seen) % 2 == 0
    return _within_layer(node) != "add_1"


def attention_of(row: Row) -> str:
    """How a row's attention is made. Megatron-LM's kernel of scale, mask and softmax (megatron/model/fused_softmax.py,
    2021) takes up to 2,048 keys, and heads of all sequences on a device that are a multiple of 4; else its softmax is
    several operators in f32."""
    if row.attention != "apart":
        return FUSED
    heads = row.micro_batch * row.model.heads // row.axes.tp
    takes = 16 < row.sequence <= 2048 and row.sequence % 4 == heads % 4 == 0
    return APART if takes or row.fusion != "kernels" else WIDE


def step_of(row: Row, layers: int, samples: int) -> TrainStep:
    """The training step of a row's model with so many layers, on so many sequences in all."""
    model = row.model
    sized = DecoderModel(**{**{name: getattr(model, name) for name in model.__struct_fields__}, "layers": layers})
    kind = dtype("f16" if row.precision == "f16" else "bf16")
    network = Decoder(sized, row.sequence, attention_of(row), row.loss, kind)
    network.set_train()
    words = TensorType((samples, row.sequence), dtype("i32"))
    optimizer = optim.Adam(network.trainable_params(), 1e-4)
    again = _made_again(row.recompute, row.fusion)
    weights = {one.name for one in network.trainable_params()} if row.plan.startswith("zero3_keep") else set()

    def made_again(node: Node) -> bool:
        """Weights that are gathered for both passes are cast once for both."""
        return again is not None and not (node.op.name == "Cast" and node.operands[0].name in weights) and again(node)

    recompute = None if again is None else made_again
    return train_step(network, optimizer, words, words, recompute=recompute, rewrite=None)
