"""Attention and Transformer layers with MindSpore's names, arguments, defaults and results (Vaswani et al. 2017)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from autoshard import ops as core
from autoshard.core.tensortype import dtype as element
from autoshard.mindspore.common.initializer import XavierUniform
from autoshard.mindspore.nn.layers import Dense, Dropout
from autoshard.mindspore.nn.norm import LayerNorm
from autoshard.mindspore.ops import functional
from autoshard.mindspore.ops.functional.layers import dense
from autoshard.mindspore.ops.primitive import as_tensors
from autoshard.trace.cell import Cell, CellList
from autoshard.trace.initializer import deferred
from autoshard.trace.parameter import Parameter
from autoshard.util.errors import ShapeError


def _xavier(shape: tuple[int, ...], dtype: Any) -> Parameter:
    return Parameter(deferred(XavierUniform(), shape, element(dtype)))


class MultiheadAttention(Cell):
    """Scaled dot-product attention by heads: queries, keys and values, each through a product of its own.

    Args:
        embed_dim: width of queries and of the result, a multiple of num_heads.
        dropout: share of attention weights dropped in training.
        add_bias_kv, add_zero_attn: MindSpore's; False only.
        kdim, vdim: widths of keys and values, where they are others.
        batch_first: tensors are [batch, tokens, width], not [tokens, batch, width]; without batches [tokens, width].

    `construct(query, key, value, key_padding_mask=None, need_weights=True, attn_mask=None, average_attn_weights=True)`:
    masks of bools are true where nobody looks, those of floats are added to the scores. `key_padding_mask` is [batch,
    keys], `attn_mask` [queries, keys] or [batch * heads, queries, keys]. Gives the attention and, with `need_weights`,
    the weights [batch, queries, keys], their mean over heads, or, without `average_attn_weights`, those of each head.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        has_bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        dtype: Any = "f32",
    ) -> None:
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads:
            raise ShapeError(f"MultiheadAttention: {num_heads} heads do not divide embed_dim {embed_dim}")
        if add_bias_kv or add_zero_attn:
            raise ShapeError("MultiheadAttention: add_bias_kv and add_zero_attn are not offered; leave them False")
        self.embed_dim, self.num_heads, self.batch_first = embed_dim, num_heads, batch_first
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self.alike = self.kdim == self.vdim == embed_dim
        if self.alike:
            self.in_proj_weight = _xavier((3 * embed_dim, embed_dim), dtype)
        else:
            for name, width in (("q", embed_dim), ("k", self.kdim), ("v", self.vdim)):
                setattr(self, f"{name}_proj_weight", _xavier((embed_dim, width), dtype))
        self.has_bias = has_bias
        if has_bias:
            self.in_proj_bias = Parameter(deferred("zeros", (3 * embed_dim,), element(dtype)))
        self.out_proj = Dense(embed_dim, embed_dim, has_bias=has_bias, dtype=dtype)
        self.dropout = Dropout(p=dropout) if dropout else None

    def construct(
        self,
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
    ) -> Any:
        self._check(query, key, value)
        alone = len(query.shape) == 2
        given = (query, key, value)
        q, k, v = (
            self._heads(self._batched(one), weight, bias)
            for one, weight, bias in zip(given, self._weights(), self._biases(), strict=True)
        )
        scores = core.batch_matmul(core.scalar_mul(q, factor=1 / math.sqrt(q.shape[-1])), k, transpose_b=True)
        scores = _masked(scores, self._by_head(attn_mask, scores), "attn_mask")
        if key_padding_mask is not None:
            keys = functional.reshape(key_padding_mask, (1 if alone else -1, 1, 1, key_padding_mask.shape[-1]))  # type: ignore[attr-defined]
            scores = _masked(scores, keys, "key_padding_mask")
        weights = core.softmax(scores, axis=-1)
        weights = weights if self.dropout is None else self.dropout(weights)
        found = core.transpose(core.batch_matmul(weights, v), perm=(0, 2, 1, 3))
        found = self.out_proj(core.reshape(found, shape=(*found.shape[:2], self.embed_dim)))
        if alone:
            found = core.squeeze(found, axis=(0,))
        elif not self.batch_first:
            found = core.transpose(found, perm=(1, 0, 2))
        if not need_weights:
            return as_tensors((found,))
        weights = core.reduce_mean(weights, axis=(1,)) if average_attn_weights else weights
        return as_tensors((found, core.squeeze(weights, axis=(0,)) if alone else weights))

    def _check(self, query: Any, key: Any, value: Any) -> None:
        shapes = [tuple(one.shape) for one in (query, key, value)]
        widths, ranks = [shape[-1:] for shape in shapes], {len(shape) for shape in shapes}
        if ranks not in ({2}, {3}) or widths != [(self.embed_dim,), (self.kdim,), (self.vdim,)]:
            dims = "batch, tokens" if self.batch_first else "tokens, batch"
            raise ShapeError(
                f"MultiheadAttention: query, key and value are {', '.join(map(str, shapes))}; they are [{dims}, width] "
                f"(or all [tokens, width]) of widths {self.embed_dim}, {self.kdim} and {self.vdim}"
            )

    def _batched(self, x: Any) -> Any:
        """[batch, tokens, width]."""
        if len(x.shape) == 2:
            return core.expand_dims(x, axis=0)
        return x if self.batch_first else core.transpose(x, perm=(1, 0, 2))

    def _weights(self) -> tuple[Any, ...]:
        if self.alike:
            return core.split(self.in_proj_weight, axis=0, output_num=3)
        return tuple(getattr(self, f"{name}_proj_weight") for name in "qkv")

    def _biases(self) -> tuple[Any, ...]:
        return core.split(self.in_proj_bias, axis=0, output_num=3) if self.has_bias else (None,) * 3

    def _heads(self, x: Any, weight: Any, bias: Any) -> Any:
        """[batch, heads, tokens, size]."""
        y = dense(x, weight, bias)
        apart = core.reshape(y, shape=(*y.shape[:2], self.num_heads, self.embed_dim // self.num_heads))
        return core.transpose(apart, perm=(0, 2, 1, 3))

    def _by_head(self, mask: Any, scores: Any) -> Any:
        """A mask as the scores are, [batch, heads, queries, keys], or as it stretches over them."""
        if mask is None:
            return None
        batch, heads, rows, columns = scores.shape
        if tuple(mask.shape) not in ((rows, columns), (batch * heads, rows, columns)):
            raise ShapeError(
                f"MultiheadAttention: attn_mask is {tuple(mask.shape)}; it is {(rows, columns)} or "
                f"{(batch * heads, rows, columns)}"
            )
        return mask if len(mask.shape) == 2 else core.reshape(mask, shape=(batch, heads, rows, columns))


def _masked(scores: Any, mask: Any, what: str) -> Any:
    if mask is None:
        return scores
    kind = element(mask.dtype)
    if kind.name == "bool":
        return core.masked_fill(scores, mask, value=-math.inf)
    if not kind.is_float:
        raise ShapeError(f"MultiheadAttention: {what} is of {kind}; it is of bools or of floats")
    return core.add(scores, core.cast(mask, dtype=element(scores.dtype).name))


def _activation(given: Any, what: str) -> Any:
    if callable(given):
        return given
    known: dict[Any, Callable] = {"relu": functional.relu, "gelu": functional.gelu}  # type: ignore[attr-defined]
    if given not in known:
        raise ShapeError(f"{what}: activation is {given!r}; it is 'relu', 'gelu', or a cell or function")
    return known[given]


class _TransformerLayer(Cell):
    """What layers of encoders and decoders have in common."""

    attentions: tuple[str, ...]
    self_attn: MultiheadAttention
    multihead_attn: MultiheadAttention
    norm1: LayerNorm
    norm2: LayerNorm
    norm3: LayerNorm
    dropout1: Dropout
    dropout2: Dropout
    dropout3: Dropout

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Any = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        dtype: Any = "f32",
    ) -> None:
        super().__init__()
        made = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, dtype)
        self.again: Callable[[], _TransformerLayer] = partial(type(self), *made)  # another one, with weights of its own
        for name in self.attentions:
            setattr(self, name, MultiheadAttention(d_model, nhead, dropout, batch_first=batch_first, dtype=dtype))
        self.dense1 = Dense(d_model, dim_feedforward, dtype=dtype)
        self.dropout = Dropout(p=dropout)
        self.dense2 = Dense(dim_feedforward, d_model, dtype=dtype)
        self.norm_first = norm_first
        for i in range(1, len(self.attentions) + 2):
            setattr(self, f"norm{i}", LayerNorm((d_model,), epsilon=layer_norm_eps, dtype=dtype))
            setattr(self, f"dropout{i}", Dropout(p=dropout))
        self.activation = _activation(activation, type(self).__name__)

    def _joined(self, x: Any, norm: Any, part: Callable[[Any], Any]) -> Any:
        return core.add(x, part(norm(x))) if self.norm_first else norm(core.add(x, part(x)))

    def _fed(self, x: Any, drop: Any) -> Any:
        return drop(self.dense2(self.dropout(self.activation(self.dense1(x)))))


class TransformerEncoderLayer(_TransformerLayer):
    """Self-attention and a feed-forward part, each with a residual and a norm, which stands behind them, or with
    `norm_first` before them.

    `construct(src, src_mask=None, src_key_padding_mask=None)`: tensors and masks as of MultiheadAttention.
    """

    attentions = ("self_attn",)

    def construct(self, src: Any, src_mask: Any = None, src_key_padding_mask: Any = None) -> Any:
        def attend(x: Any) -> Any:
            masks = {"attn_mask": src_mask, "key_padding_mask": src_key_padding_mask}
            return self.dropout1(self.self_attn(x, x, x, need_weights=False, **masks)[0])

        x = self._joined(src, self.norm1, attend)
        return as_tensors(self._joined(x, self.norm2, lambda x: self._fed(x, self.dropout2)))


class TransformerDecoderLayer(_TransformerLayer):
    """Self-attention, attention to a memory and a feed-forward part, each with a residual and a norm, which stands
    behind them, or with `norm_first` before them.

    `construct(tgt, memory, tgt_mask=None, memory_mask=None, tgt_key_padding_mask=None, memory_key_padding_mask=None)`:
    tensors and masks as of MultiheadAttention.
    """

    attentions = ("self_attn", "multihead_attn")

    def construct(
        self,
        tgt: Any,
        memory: Any,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
    ) -> Any:
        def attend(x: Any) -> Any:
            masks = {"attn_mask": tgt_mask, "key_padding_mask": tgt_key_padding_mask}
            return self.dropout1(self.self_attn(x, x, x, need_weights=False, **masks)[0])

        def look(x: Any) -> Any:
            masks = {"attn_mask": memory_mask, "key_padding_mask": memory_key_padding_mask}
            return self.dropout2(self.multihead_attn(x, memory, memory, need_weights=False, **masks)[0])

        x = self._joined(tgt, self.norm1, attend)
        x = self._joined(x, self.norm2, look)
        return as_tensors(self._joined(x, self.norm3, lambda x: self._fed(x, self.dropout3)))


class _LayerStack(Cell):
    """`num_layers` layers that are made as the given one is, each with weights of its own, and a norm at the end."""

    of: str

    def __init__(self, layer: Any, num_layers: int, norm: Any) -> None:
        super().__init__()
        if not isinstance(layer, _TransformerLayer):
            raise ShapeError(f"{type(self).__name__}: its layer is {layer!r}; it is one of nn.{self.of}")
        self.layers = CellList([layer.again() for _ in range(num_layers)])
        self.num_layers, self.norm = num_layers, norm

    def _ended(self, x: Any) -> Any:
        return x if self.norm is None else self.norm(x)


class TransformerEncoder(_LayerStack):
    """Layers made as `encoder_layer` is, one behind the other, each with weights of its own; a norm at the end."""

    of = "TransformerEncoderLayer"

    def __init__(self, encoder_layer: Any, num_layers: int, norm: Any = None) -> None:
        super().__init__(encoder_layer, num_layers, norm)

    def construct(self, src: Any, src_mask: Any = None, src_key_padding_mask: Any = None) -> Any:
        for layer in self.layers:
            src = layer(src, src_mask, src_key_padding_mask)
        return self._ended(src)


class TransformerDecoder(_LayerStack):
    """Layers made as `decoder_layer` is, one behind the other, each with weights of its own; a norm at the end."""

    of = "TransformerDecoderLayer"

    def __init__(self, decoder_layer: Any, num_layers: int, norm: Any = None) -> None:
        super().__init__(decoder_layer, num_layers, norm)

    def construct(
        self,
        tgt: Any,
        memory: Any,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
    ) -> Any:
        masks = tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask
        for layer in self.layers:
            tgt = layer(tgt, memory, *masks)
        return self._ended(tgt)


class Transformer(Cell):
    """An encoder, and a decoder that attends to what it gives; both end in a norm.

    `construct(src, tgt, src_mask=None, tgt_mask=None, memory_mask=None, src_key_padding_mask=None,
    tgt_key_padding_mask=None, memory_key_padding_mask=None)`: tensors and masks as of MultiheadAttention. Weights of
    two dims begin as Xavier's distribution.

    Example:
        >>> import numpy as np
        >>> from autoshard.mindspore import nn
        >>> net = nn.Transformer(16, 4, 1, 1, 32, batch_first=True)
        >>> net(np.ones((2, 5, 16), np.float32), np.ones((2, 3, 16), np.float32)).shape
        (2, 3, 16)
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Any = "relu",
        custom_encoder: Any = None,
        custom_decoder: Any = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        dtype: Any = "f32",
    ) -> None:
        super().__init__()
        made = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, dtype)
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first
        self.encoder = custom_encoder or TransformerEncoder(
            TransformerEncoderLayer(*made), num_encoder_layers, LayerNorm((d_model,), epsilon=layer_norm_eps)
        )
        self.decoder = custom_decoder or TransformerDecoder(
            TransformerDecoderLayer(*made), num_decoder_layers, LayerNorm((d_model,), epsilon=layer_norm_eps)
        )
        for one in self.get_parameters():
            if len(one.shape) > 1:
                one.data = deferred(XavierUniform(), tuple(one.shape), one.dtype)

    def construct(
        self,
        src: Any,
        tgt: Any,
        src_mask: Any = None,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        src_key_padding_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
    ) -> Any:
        if src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            raise ShapeError(
                f"Transformer: src is {tuple(src.shape)} and tgt {tuple(tgt.shape)}; their last dim is {self.d_model}"
            )
        memory = self.encoder(src, src_mask, src_key_padding_mask)
        return self.decoder(tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
