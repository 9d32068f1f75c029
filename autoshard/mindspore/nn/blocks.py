"""Transformer blocks: attention by heads, the feed-forward part, and the layer that joins them.

Queries, keys and values have matrix products of their own, whose result dim is heads-major: splitting it by a
divisor of the number of heads leaves whole heads on each rank (Shoeybi et al. 2019, section 3).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from autoshard import ops as core
from autoshard.core.tensortype import dtype
from autoshard.mindspore import ops
from autoshard.mindspore.nn.layers import Dense, Dropout, get_activation
from autoshard.mindspore.nn.loss import LossBase
from autoshard.mindspore.nn.norm import LayerNorm, RMSNorm
from autoshard.trace.cell import Cell
from autoshard.util.errors import ShapeError


class MultiHeadAttention(Cell):
    """Scaled dot-product attention by heads (Vaswani et al. 2017).

    Args:
        hidden_size: width of the tokens, a multiple of num_heads.
        causal: whether a token sees only itself and earlier ones.
        seq_length: tokens per sequence, needed where tokens come flattened as [batch * seq, hidden].
        dropout: share of attention weights dropped in training.

    `construct(x, memory=None, mask=None)`: x is [batch, seq, hidden] or flattened; keys and values come from
    `memory` (of x's form; x itself by default); mask is bool, broadcast to [batch, heads, seq, memory seq],
    true where a token must not look.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        causal: bool = False,
        seq_length: int | None = None,
        dropout: float = 0.0,
        has_bias: bool = True,
        dtype: str = "f32",
    ) -> None:
        super().__init__()
        if hidden_size % num_heads:
            raise ShapeError(f"MultiHeadAttention: {num_heads} heads do not divide hidden_size {hidden_size}")
        self.num_heads, self.head_size = num_heads, hidden_size // num_heads
        self.causal, self.seq_length = causal, seq_length
        dense = {"has_bias": has_bias, "dtype": dtype}
        self.query = Dense(hidden_size, hidden_size, **dense)
        self.key = Dense(hidden_size, hidden_size, **dense)
        self.value = Dense(hidden_size, hidden_size, **dense)
        self.output = Dense(hidden_size, hidden_size, **dense)
        self.split_heads, self.merge_heads = ops.Reshape(), ops.Reshape()
        self.heads_first, self.tokens_first = ops.Transpose(), ops.Transpose()
        self.scale = core.primitive_class(core.scalar_mul)(factor=1 / math.sqrt(self.head_size))
        self.scores = ops.BatchMatMul(transpose_b=True)
        self.masked = ops.MaskedFill()
        self.softmax = ops.Softmax(axis=-1)
        self.dropout = Dropout(p=dropout)
        self.context = ops.BatchMatMul()

    def construct(self, x: Any, memory: Any = None, mask: Any = None) -> Any:
        source = x if memory is None else memory
        query = self.scale(self._heads(self.query(x)))
        scores = self.scores(query, self._heads(self.key(source)))
        for hidden in (self._later(scores.shape) if self.causal else None, mask):
            if hidden is not None:
                scores = self.masked(scores, hidden, float(np.finfo(dtype(scores.dtype).numpy).min) / 2)
        weights = self.dropout(self.softmax(scores))
        context = self.tokens_first(self.context(weights, self._heads(self.value(source))), (0, 2, 1, 3))
        return self.output(self.merge_heads(context, (*x.shape[:-1], self.num_heads * self.head_size)))

    def _heads(self, x: Any) -> Any:
        """[batch, heads, seq, head size]."""
        length = x.shape[1] if len(x.shape) == 3 else self.seq_length
        if len(x.shape) == 2 and (not length or x.shape[0] % length):
            raise ShapeError(
                f"MultiHeadAttention: flattened tokens {tuple(x.shape)} need seq_length, a divisor of "
                f"{x.shape[0]}, "
                f"not {self.seq_length}"
            )
        apart = self.split_heads(x, (-1, length, self.num_heads, self.head_size))
        return self.heads_first(apart, (0, 2, 1, 3))

    @staticmethod
    def _later(scores: tuple[int, ...]) -> np.ndarray:
        """Where a key stands after the query; the last query sees all keys."""
        rows, columns = scores[-2:]
        return np.triu(np.ones((rows, columns), bool), columns - rows + 1)


class FeedForward(Cell):
    """Two dense layers with an activation between them."""

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        activation: str = "gelu",
        dropout: float = 0.0,
        has_bias: bool = True,
        dtype: str = "f32",
    ) -> None:
        super().__init__()
        self.mapping = Dense(hidden_size, ffn_hidden_size, has_bias=has_bias, dtype=dtype)
        self.activation = get_activation(activation)
        self.projection = Dense(ffn_hidden_size, hidden_size, has_bias=has_bias, dtype=dtype)
        self.dropout = Dropout(p=dropout)

    def construct(self, x: Any) -> Any:
        return self.dropout(self.projection(self.activation(self.mapping(x))))


class TransformerBlock(Cell):
    """Attention and feed-forward part, each behind a norm and with a residual (pre-norm, Xiong et al. 2020).

    Args:
        norm: "layer_norm" or "rms_norm".
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        ffn_hidden_size: int,
        causal: bool = False,
        seq_length: int | None = None,
        dropout: float = 0.0,
        activation: str = "gelu",
        norm: str = "layer_norm",
        dtype: str = "f32",
    ) -> None:
        super().__init__()
        norms = {"layer_norm": partial(LayerNorm, epsilon=1e-5), "rms_norm": RMSNorm}
        if norm not in norms:
            raise ShapeError(f"TransformerBlock: norm is {norm!r}; it is one of {', '.join(norms)}")
        self.norm1 = norms[norm](hidden_size, dtype=dtype)
        self.attention = MultiHeadAttention(hidden_size, num_heads, causal, seq_length, dropout, dtype=dtype)
        self.dropout = Dropout(p=dropout)
        self.add1 = ops.Add()
        self.norm2 = norms[norm](hidden_size, dtype=dtype)
        self.feed_forward = FeedForward(hidden_size, ffn_hidden_size, activation, dropout, dtype=dtype)
        self.add2 = ops.Add()

    def construct(self, x: Any, mask: Any = None) -> Any:
        x = self.add1(x, self.dropout(self.attention(self.norm1(x), mask=mask)))
        return self.add2(x, self.feed_forward(self.norm2(x)))


class TokenLoss(LossBase):
    """The cross entropy of logits [..., c] with class numbers [...], or of [n, c] with class probabilities."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.sparse_softmax_cross_entropy = core.primitive_class(core.sparse_softmax_cross_entropy_with_logits)()
        self.softmax_cross_entropy = ops.SoftmaxCrossEntropyWithLogits()

    def construct(self, logits: Any, labels: Any) -> Any:
        if dtype(labels.dtype).is_float:
            return self.get_loss(self.softmax_cross_entropy(logits, labels)[0])
        return self.get_loss(self.sparse_softmax_cross_entropy(logits, labels))
