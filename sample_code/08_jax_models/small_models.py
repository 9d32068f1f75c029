"""The models: a decoder and a convolutional network of flax linen, a ViT of flax nnx, a GPT and an MoE of plain JAX."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

WORDS, WIDTH, HEADS, LAYERS, LENGTH, CLASSES, EXPERTS, CHOSEN = 64, 32, 4, 2, 16, 8, 4, 2
Params = dict[str, Any]


# -- flax linen


class Block(nn.Module):
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        y = nn.LayerNorm(dtype=self.dtype, name="norm1")(x)
        x = x + nn.MultiHeadDotProductAttention(HEADS, dtype=self.dtype, name="attention")(y, mask=mask)
        y = nn.LayerNorm(dtype=self.dtype, name="norm2")(x)
        y = nn.gelu(nn.Dense(4 * WIDTH, dtype=self.dtype, name="up")(y))
        return x + nn.Dense(WIDTH, dtype=self.dtype, name="down")(y)


class Decoder(nn.Module):
    """Logits of the next word, [batch, length, words], from words, [batch, length]."""

    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        embed = nn.Embed(WORDS, WIDTH, dtype=self.dtype, name="embed")
        x = embed(tokens) + nn.Embed(LENGTH, WIDTH, dtype=self.dtype, name="places")(jnp.arange(tokens.shape[1]))
        mask = nn.make_causal_mask(tokens)
        for i in range(LAYERS):
            x = Block(self.dtype, name=f"layers_{i}")(x, mask)
        return embed.attend(nn.LayerNorm(dtype=self.dtype, name="norm")(x))


class Convolutional(nn.Module):
    """Logits of classes, [batch, classes], from images, [batch, height, width, 3]."""

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        x = nn.Conv(16, (3, 3), name="stem")(images)
        x = nn.relu(nn.BatchNorm(use_running_average=not train, name="norm")(x))
        x = nn.max_pool(x, (2, 2), strides=(2, 2))
        y = nn.relu(nn.GroupNorm(num_groups=4, name="norm1")(nn.Conv(32, (3, 3), name="conv1")(x)))
        x = x + nn.Conv(16, (3, 3), name="conv2")(y)
        x = nn.Conv(32, (2, 2), strides=(2, 2), name="down")(nn.relu(x))
        return nn.Dense(CLASSES, name="head")(nn.relu(x).mean((1, 2)))


# -- flax nnx


class ViTBlock(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm1, self.norm2 = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs), nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.norm1(x))
        return x + self.down(nnx.gelu(self.up(self.norm2(x))))


class ViT(nnx.Module):
    """Logits of classes, [batch, classes], from images, [batch, 16, 16, 3]."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.patches = nnx.Conv(3, WIDTH, (4, 4), strides=(4, 4), rngs=rngs)
        self.places = nnx.Param(0.02 * jax.random.normal(rngs.params(), (1, 16, WIDTH)))
        self.blocks = nnx.List([ViTBlock(rngs) for _ in range(LAYERS)])
        self.norm, self.head = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.Linear(WIDTH, CLASSES, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = self.patches(images)
        x = x.reshape(x.shape[0], -1, WIDTH) + self.places[...]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


# -- plain JAX


def _normal(key: jax.Array, *shape: int) -> jax.Array:
    return jax.random.normal(key, shape) * shape[-2] ** -0.5


def _rms(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


def _attention(x: jax.Array, layer: Params) -> jax.Array:
    q, k, v = (jnp.einsum("bsd,dhk->bshk", x, layer[name]) for name in ("query", "key", "value"))
    scores = jnp.einsum("bqhk,bshk->bhqs", q, k) * q.shape[-1] ** -0.5
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1)
    return jnp.einsum("bhqs,bshk,hkd->bqd", weights, v, layer["out"])


def gpt_params() -> Params:
    keys = iter(jax.random.split(jax.random.key(0), 8))
    size = WIDTH // HEADS
    heads = {name: 0.2 * _normal(next(keys), LAYERS, WIDTH, HEADS, size) for name in ("query", "key", "value")}
    layers = {
        **heads,
        "out": 0.2 * _normal(next(keys), LAYERS, HEADS, size, WIDTH),
        "up": _normal(next(keys), LAYERS, WIDTH, 4 * WIDTH),
        "down": _normal(next(keys), LAYERS, 4 * WIDTH, WIDTH),
        "scale1": jnp.ones((LAYERS, WIDTH)),
        "scale2": jnp.ones((LAYERS, WIDTH)),
    }
    embed, places = _normal(next(keys), WORDS, WIDTH), 0.1 * _normal(next(keys), LENGTH, WIDTH)
    return {"embed": embed, "places": places, "layers": layers, "scale": jnp.ones(WIDTH)}


def gpt(params: Params, tokens: jax.Array) -> jax.Array:
    """Logits of the next word, [batch, length, words]; the layers' parameters are stacked, and scanned."""

    def layer(x: jax.Array, one: Params) -> tuple[jax.Array, None]:
        x = x + _attention(_rms(x, one["scale1"]), one)
        return x + jax.nn.gelu(_rms(x, one["scale2"]) @ one["up"]) @ one["down"], None

    x = params["embed"][tokens] + params["places"]
    x, _ = jax.lax.scan(layer, x, params["layers"])
    return _rms(x, params["scale"]) @ params["embed"].T


def mixture_params() -> Params:
    keys = iter(jax.random.split(jax.random.key(0), 4))
    experts = {"up": _normal(next(keys), EXPERTS, WIDTH, 48), "down": _normal(next(keys), EXPERTS, 48, WIDTH)}
    return {"embed": _normal(next(keys), WORDS, WIDTH), "gate": _normal(next(keys), WIDTH, EXPERTS), "experts": experts}


def mixture(params: Params, tokens: jax.Array) -> jax.Array:
    """Logits of the next word, [batch, length, words]; each word goes to the best of the experts, as far as these have
    room: the dispatch of GShard (Lepikhin et al. 2020), as products with one-hot tensors."""
    x = params["embed"][tokens]
    room = CHOSEN * tokens.shape[1] // EXPERTS + 2
    chances = jax.nn.softmax(x @ params["gate"])
    best, which = jax.lax.top_k(chances, CHOSEN)
    chosen = jax.nn.one_hot(which, EXPERTS)  # batch, length, choice, expert
    before = jnp.cumsum(chosen.reshape(*tokens.shape[:1], -1, EXPERTS), 1).reshape(chosen.shape) - chosen
    place = jax.nn.one_hot(jnp.sum(before * chosen, -1).astype(jnp.int32), room)
    send = jnp.einsum("bsce,bscr->bser", chosen, place)
    weigh = jnp.einsum("bsc,bsce,bscr->bser", best / best.sum(-1, keepdims=True), chosen, place)
    inside = jnp.einsum("bser,bsd->ebrd", send, x)
    hidden = jax.nn.silu(jnp.einsum("ebrd,edf->ebrf", inside, params["experts"]["up"]))
    done = jnp.einsum("ebrf,efd->ebrd", hidden, params["experts"]["down"])
    return (x + jnp.einsum("bser,ebrd->bsd", weigh, done)) @ params["embed"].T
