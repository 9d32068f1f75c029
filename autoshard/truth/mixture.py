"""What decoders of experts have in the place of a decoder's layers: latent attention, and experts that tokens choose.

Latent attention: queries, keys and values come of narrow latents (DeepSeek-AI 2024, "DeepSeek-V2", section 2.1).
Experts: each token goes to as many as it chooses, all experts to as many tokens (balanced), and to shared ones
(DeepSeek-AI 2024, "DeepSeek-V3", section 2.1.2; Jiang et al. 2024, "Mixtral of Experts").
"""

from __future__ import annotations

import math
from typing import Any

from autoshard import nn, ops
from autoshard.core.tensortype import dtype
from autoshard.mindspore.nn.layers import weights
from autoshard.truth.rows import DecoderModel


class LatentAttention(nn.Cell):
    """Causal attention whose queries and keys have a part without positions and one that is rotated, the latter of keys
    being one for all heads.

    Args:
        attend: attention of queries, keys and values [batch, heads, sequence, width].
        rotated: rotary positions of [batch, heads, sequence, width].
    """

    def __init__(self, model: DecoderModel, attend: Any, rotated: Any) -> None:
        super().__init__()
        self.model, self.attend, self.rotated = model, attend, rotated
        width, heads = model.head_width, model.heads
        self.query_down = nn.Dense(model.hidden, model.query_latent, has_bias=False)
        self.query_norm, self.key_norm = nn.RMSNorm(model.query_latent), nn.RMSNorm(model.key_latent)
        self.query = nn.Dense(model.query_latent, heads * (width + model.rotary), has_bias=False)
        self.key_down = nn.Dense(model.hidden, model.key_latent, has_bias=False)
        self.key_rotary = nn.Dense(model.hidden, model.rotary, has_bias=False)
        self.key, self.value = (nn.Dense(model.key_latent, heads * width, has_bias=False) for _ in range(2))
        self.output = nn.Dense(heads * width, model.hidden, has_bias=False)

    def construct(self, x: Any) -> Any:
        width = self.model.head_width
        query = self._by_heads(self.query(self.query_norm(self.query_down(x))), width + self.model.rotary)
        latent = self.key_norm(self.key_down(x))
        key, value = (self._by_heads(one(latent), width) for one in (self.key, self.value))
        turned = self.rotated(self._by_heads(self.key_rotary(x), self.model.rotary))
        turned = ops.broadcast_to(turned, shape=(*key.shape[:-1], self.model.rotary))
        query = ops.concat(query[..., :width], self.rotated(query[..., width:]), axis=-1)
        found = self.attend(query, ops.concat(key, turned, axis=-1), value)
        return self.output(ops.reshape(ops.transpose(found, perm=(0, 2, 1, 3)), shape=(*x.shape[:-1], -1)))

    @staticmethod
    def _by_heads(x: Any, width: int) -> Any:
        """[batch, heads, sequence, width] of [batch, sequence, heads * width]."""
        *lead, columns = x.shape
        return ops.transpose(ops.reshape(x, shape=(*lead, columns // width, width)), perm=(0, 2, 1, 3))


class Experts(nn.Cell):
    """Gated feed-forward parts of which each token takes the best few, and one that all take if there is a shared one.

    Args:
        shared: the part for all tokens, or None.
    """

    def __init__(self, model: DecoderModel, shared: nn.Cell | None) -> None:
        super().__init__()
        self.model, self.shared = model, shared
        self.router = nn.Dense(model.hidden, model.experts, has_bias=False)
        wide = (model.experts, model.hidden, model.expert_inner)
        self.gate, self.up = (weights(None, wide, "f32") for _ in range(2))
        self.down = weights(None, (wide[0], wide[2], wide[1]), "f32")

    def construct(self, x: Any) -> Any:
        model = self.model
        scores = ops.softmax(ops.cast(self.router(x), dtype="f32"), axis=-1)
        gates, chosen = ops.top_k(scores, k=model.active)
        gates = ops.cast(gates, dtype=dtype(x.dtype).name)
        room = math.ceil(x.shape[-2] * model.active / model.experts)
        rows = ops.dispatch_tokens(x, chosen, ops.ones_like(gates), experts=model.experts, blocks=1, room=room)
        inner = ops.mul(ops.silu(self._by_expert(rows, self.gate)), self._by_expert(rows, self.up))
        found = ops.combine_tokens(self._by_expert(inner, self.down), chosen, gates, blocks=1, room=room)
        return found if self.shared is None else ops.add(found, self.shared(x))

    @staticmethod
    def _by_expert(rows: Any, weight: Any) -> Any:
        return ops.einsum(rows, weight, equation="berd,edf->berf")
