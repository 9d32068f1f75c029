"""A GPT training step as a StableHLO module with Megatron's shardings on two mesh axes, for any number of layers.

Layers are unrolled. The batch is split along `data`; the first projections of attention and of the feed-forward part
are split by column along `model`, the second ones by row, the embedding by vocabulary. No devices are needed.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

WIDTH, HEADS, LENGTH, BATCH, WORDS = 1024, 16, 512, 32, 32000
COLUMNS, ROWS, WHOLE = PartitionSpec(None, "model"), PartitionSpec("model", None), PartitionSpec()


def module(layers: int, data: int = 2, model: int = 4) -> str:
    """The module's text: one step of gradient descent, from parameters and tokens to loss and new parameters."""
    mesh = AbstractMesh((data, model), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

    def weight(shape: tuple[int, ...], spec: PartitionSpec) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))

    def layer() -> dict[str, Any]:
        return {
            "norm1": weight((WIDTH,), WHOLE),
            "qkv": weight((WIDTH, 3 * WIDTH), COLUMNS),
            "out": weight((WIDTH, WIDTH), ROWS),
            "norm2": weight((WIDTH,), WHOLE),
            "up": weight((WIDTH, 4 * WIDTH), COLUMNS),
            "down": weight((4 * WIDTH, WIDTH), ROWS),
        }

    parameters = {
        "words": weight((WORDS, WIDTH), ROWS),
        "places": weight((LENGTH, WIDTH), WHOLE),
        "norm": weight((WIDTH,), WHOLE),
        "layers": [layer() for _ in range(layers)],
    }
    along_data = NamedSharding(mesh, PartitionSpec("data", None))
    tokens = jax.ShapeDtypeStruct((BATCH, LENGTH + 1), jnp.int32, sharding=along_data)
    return jax.jit(_step).trace(parameters, tokens).lower(lowering_platforms=("tpu",)).as_text()


def _step(parameters: Any, tokens: jax.Array) -> tuple[jax.Array, Any]:
    loss, gradients = jax.value_and_grad(_loss)(parameters, tokens)
    return loss, jax.tree.map(lambda value, gradient: value - 1e-3 * gradient, parameters, gradients)


def _loss(parameters: Any, tokens: jax.Array) -> jax.Array:
    x = parameters["words"][tokens[:, :-1]] + parameters["places"]
    for layer in parameters["layers"]:
        x = x + _attention(_norm(x, layer["norm1"]), layer)
        x = x + jax.nn.gelu(_norm(x, layer["norm2"]) @ layer["up"]) @ layer["down"]
    scores = jax.nn.log_softmax(_norm(x, parameters["norm"]) @ parameters["words"].T)
    return -jnp.mean(jnp.take_along_axis(scores, tokens[:, 1:, None], axis=-1))


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


def _attention(x: jax.Array, layer: Any) -> jax.Array:
    batch, length, width = x.shape
    each = (batch, length, HEADS, width // HEADS)
    query, key, value = (part.reshape(each) for part in jnp.split(x @ layer["qkv"], 3, axis=-1))
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / jnp.sqrt(jnp.float32(each[-1]))
    seen = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e9), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(batch, length, width) @ layer["out"]
