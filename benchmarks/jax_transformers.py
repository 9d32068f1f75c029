"""Annotated transformers and their parts: attention, experts, vocabularies, GPT blocks; see `jax_programs`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.jax_program import (
    CUBE,
    GRID,
    LINE,
    WHOLE,
    Made,
    entropy,
    floats,
    ints,
    norm,
    program,
    trained,
)

# -- attention


def attend(query: jax.Array, key: jax.Array, value: jax.Array, causal: bool = True) -> jax.Array:
    """Attention of (batch, length, heads, width)."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / jnp.sqrt(jnp.float32(query.shape[-1]))
    if causal:
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        scores = jnp.where(seen, scores, -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), value)


def self_attention(x: jax.Array, weights: Any, heads: int) -> jax.Array:
    batch, length, width = x.shape
    query, key, value = ((x @ one).reshape(batch, length, heads, width // heads) for one in weights[:3])
    return attend(query, key, value).reshape(batch, length, width) @ weights[3]


def attention_weights(width: int, columns: P, rows: P) -> tuple:
    return tuple(floats(width, width, spec=columns) for _ in range(3)) + (floats(width, width, spec=rows),)


@program(GRID, batch=2, length=6, width=16, heads=4)
def attention_heads(mesh, batch=8, length=256, width=256, heads=8):
    def forward(x, weights):
        return self_attention(x, weights, heads)

    weights = attention_weights(width, P(None, "model"), P("model", None))
    return Made(forward, (floats(batch, length, width, spec=P("data", None, None)), weights), P("data", None, None))


@program(GRID, batch=2, length=6, width=16, heads=4)
def attention_heads_training(mesh, batch=8, length=256, width=256, heads=8):
    def loss(weights, x):
        return (self_attention(x, weights, heads) ** 2).mean()

    weights = attention_weights(width, P(None, "model"), P("model", None))
    return trained(loss, weights, floats(batch, length, width, spec=P("data", None, None)))


@program(LINE, batch=2, length=16, width=12, heads=3)
def attention_sequence(mesh, batch=4, length=1024, width=128, heads=4):
    """Queries, keys and values split by position."""

    def forward(x, weights):
        return self_attention(x, weights, heads)

    return Made(
        forward,
        (floats(batch, length, width, spec=P(None, "x", None)), attention_weights(width, WHOLE, WHOLE)),
        P(None, "x", None),
    )


@program(LINE, batch=2, length=16, width=16, heads=8)
def attention_ulysses(mesh, batch=4, length=1024, width=256, heads=8):
    """Tokens split by position outside, by heads inside of attention."""

    def forward(x, weights):
        query, key, value = ((x @ one).reshape(batch, length, heads, width // heads) for one in weights[:3])
        by_heads = NamedSharding(mesh, P(None, None, "x", None))
        query, key, value = (lax.with_sharding_constraint(one, by_heads) for one in (query, key, value))
        out = lax.with_sharding_constraint(attend(query, key, value), by_heads)
        return out.reshape(batch, length, width) @ weights[3]

    return Made(
        forward,
        (floats(batch, length, width, spec=P(None, "x", None)), attention_weights(width, WHOLE, WHOLE)),
        P(None, "x", None),
    )


# -- experts


def dispatch(x: jax.Array, router: jax.Array, capacity: int) -> jax.Array:
    """Which token takes which place of which expert, weighted: (tokens, experts, capacity)."""
    gates = jax.nn.softmax(x @ router)
    experts = gates.shape[-1]
    chosen = jax.nn.one_hot(gates.argmax(-1), experts)
    place = (jnp.cumsum(chosen, axis=0) * chosen).sum(-1) - 1
    places = jax.nn.one_hot(place.astype(jnp.int32), capacity)
    return (gates * chosen)[:, :, None] * places[:, None, :]


def expert_layer(groups: jax.Array, router: jax.Array, up: jax.Array, down: jax.Array, capacity: int) -> jax.Array:
    """Mixture of experts over (groups, tokens, width), by einsums as in GShard."""
    combine = jax.vmap(lambda x: dispatch(x, router, capacity))(groups)
    taken = (combine > 0).astype(groups.dtype)
    inside = jnp.einsum("gtec,gtm->egcm", taken, groups)
    inside = jax.nn.relu(jnp.einsum("egcm,emh->egch", inside, up))
    outside = jnp.einsum("egch,ehm->egcm", inside, down)
    return jnp.einsum("gtec,egcm->gtm", combine, outside)


@program(LINE, groups=8, tokens=6, width=4, hidden=6, experts=8, capacity=3)
def moe_forward(mesh, groups=8, tokens=128, width=128, hidden=512, experts=8, capacity=32):
    def forward(x, router, up, down):
        return expert_layer(x, router, up, down, capacity)

    weights = (
        floats(width, experts),
        floats(experts, width, hidden, spec=P("x")),
        floats(experts, hidden, width, spec=P("x")),
    )
    return Made(forward, (floats(groups, tokens, width, spec=P("x")), *weights), P("x"))


@program(GRID, groups=8, tokens=6, width=4, hidden=8, experts=4, capacity=3)
def moe_training(mesh, groups=8, tokens=128, width=128, hidden=512, experts=4, capacity=48):
    def loss(parameters, x):
        router, up, down = parameters
        return (expert_layer(x, router, up, down, capacity) ** 2).mean()

    weights = (
        floats(width, experts),
        floats(experts, width, hidden, spec=P("model")),
        floats(experts, hidden, width, spec=P("model")),
    )
    return trained(loss, weights, floats(groups, tokens, width, spec=P(("data", "model"))))


# -- vocabularies


@program(GRID, batch=4, length=5, width=6, words=16)
def embedding_vocabulary(mesh, batch=16, length=128, width=256, words=8192):
    def forward(table, tokens):
        return norm(table[tokens])

    arguments = floats(words, width, spec=P("model", None)), ints(batch, length, spec=P("data", None))
    return Made(forward, arguments, P("data", None, None))


@program(GRID, batch=4, length=5, width=6, words=16)
def loss_vocabulary_training(mesh, batch=8, length=64, width=256, words=8192):
    """A projection to scores that lie split by words, and cross entropy."""

    def loss(weight, x, labels):
        return entropy(x @ weight, labels)

    arguments = floats(batch, length, width, spec=P("data", None, None)), ints(batch, length, spec=P("data", None))
    return trained(loss, floats(width, words, spec=P(None, "model")), *arguments)


@program(GRID, batch=4, length=5, width=8, words=16)
def embedding_training(mesh, batch=8, length=64, width=128, words=4096):
    """One table embeds and projects."""

    def loss(table, tokens):
        x = jnp.tanh(table[tokens[:, :-1]])
        return entropy(x @ table.T, tokens[:, 1:])

    return trained(loss, floats(words, width, spec=P("model", None)), ints(batch, length + 1, spec=P("data", None)))


# -- a transformer


@program(GRID, batch=2, length=4, width=16, heads=4, words=16, layers=1)
def gpt_forward(mesh, batch=8, length=128, width=256, heads=8, words=4096, layers=2):
    def forward(parameters, tokens):
        return gpt(parameters, tokens, heads)

    parameters = gpt_parameters(layers, length, width, words, P(None, "model"), P("model", None))
    return Made(forward, (parameters, ints(batch, length, spec=P("data", None))), P("data", None, "model"))


@program(GRID, batch=2, length=4, width=16, heads=4, words=16, layers=1)
def gpt_training(mesh, batch=8, length=128, width=256, heads=8, words=4096, layers=2):
    def loss(parameters, tokens):
        return entropy(gpt(parameters, tokens[:, :-1], heads), tokens[:, 1:])

    parameters = gpt_parameters(layers, length, width, words, P(None, "model"), P("model", None))
    return trained(loss, parameters, ints(batch, length + 1, spec=P("data", None)))


@program(CUBE, batch=4, length=4, width=16, heads=4, words=16, layers=1)
def gpt_fsdp_training(mesh, batch=8, length=128, width=256, heads=8, words=4096, layers=2):
    """Data, parameters split in storage, and tensor parallel."""

    def loss(parameters, tokens):
        return entropy(gpt(parameters, tokens[:, :-1], heads), tokens[:, 1:])

    parameters = gpt_parameters(layers, length, width, words, P("fsdp", "model"), P("model", "fsdp"))
    return trained(loss, parameters, ints(batch, length + 1, spec=P(("data", "fsdp"), None)))


def gpt_parameters(layers: int, length: int, width: int, words: int, columns: P, rows: P) -> dict[str, Any]:
    layer = {
        "attention": attention_weights(width, columns, rows),
        "up": floats(width, 4 * width, spec=columns),
        "down": floats(4 * width, width, spec=rows),
    }
    return {"words": floats(words, width, spec=rows), "places": floats(length, width), "layers": [layer] * layers}


def gpt(parameters: Any, tokens: jax.Array, heads: int) -> jax.Array:
    x = parameters["words"][tokens] + parameters["places"]
    for layer in parameters["layers"]:
        x = x + self_attention(norm(x), layer["attention"], heads)
        x = x + jax.nn.gelu(norm(x) @ layer["up"]) @ layer["down"]
    return norm(x) @ parameters["words"].T


@program(GRID, batch=2, length=6, width=32, heads=8, groups=4)
def grouped_query(mesh, batch=8, length=128, width=256, heads=8, groups=4):
    def forward(x, wq, wk, wv, wo):
        q = (x @ wq).reshape(batch, length, groups, heads // groups, width // heads)
        k, v = ((x @ w).reshape(batch, length, groups, width // heads) for w in (wk, wv))
        s = jax.nn.softmax(jnp.einsum("bqghd,bkgd->bghqk", q, k))
        return jnp.einsum("bghqk,bkgd->bqghd", s, v).reshape(batch, length, width) @ wo

    kv = width // heads * groups
    return Made(
        forward,
        (
            floats(batch, length, width, spec=P("data")),
            floats(width, width, spec=P(None, "model")),
            floats(width, kv, spec=P(None, "model")),
            floats(width, kv, spec=P(None, "model")),
            floats(width, width, spec=P("model", None)),
        ),
        P("data"),
    )


@program(GRID, batch=2, length=6, width=16, heads=4)
def decode_cache(mesh, batch=8, length=512, width=256, heads=8):
    def step(x, wq, wk, wv, wo, ck, cv, at):
        q, k, v = ((x @ w).reshape(batch, 1, heads, width // heads) for w in (wq, wk, wv))
        ck = lax.dynamic_update_slice(ck, k, (0, at, 0, 0))
        cv = lax.dynamic_update_slice(cv, v, (0, at, 0, 0))
        o = attend(q, ck, cv, causal=False).reshape(batch, 1, width)
        return o @ wo, ck, cv

    col, row = P(None, "model"), P("model", None)
    cache = P("data", None, "model", None)
    args = (
        floats(batch, 1, width, spec=P("data")),
        *(floats(width, width, spec=col) for _ in range(3)),
        floats(width, width, spec=row),
        floats(batch, length, heads, width // heads, spec=cache),
        floats(batch, length, heads, width // heads, spec=cache),
        ints(),
    )
    return Made(step, args, (P("data"), cache, cache))


@program(LINE, batch=2, length=8, width=16, heads=8)
def ulysses_training(mesh, batch=4, length=512, width=256, heads=8):
    def loss(weights, x):
        q, k, v = ((x @ one).reshape(batch, length, heads, width // heads) for one in weights[:3])
        by = NamedSharding(mesh, P(None, None, "x", None))
        q, k, v = (lax.with_sharding_constraint(one, by) for one in (q, k, v))
        return ((attend(q, k, v).reshape(batch, length, width) @ weights[3]) ** 2).mean()

    return trained(loss, attention_weights(width, WHOLE, WHOLE), floats(batch, length, width, spec=P(None, "x", None)))


@program(GRID, batch=2, length=4, width=16, heads=4, layers=2)
def scan_transformer_training(mesh, batch=8, length=128, width=256, heads=8, layers=3):
    def loss(weights, x):
        def layer(x, w):
            x = x + self_attention(norm(x), w[:4], heads)
            return x + jax.nn.gelu(norm(x) @ w[4]) @ w[5], None

        return (lax.scan(layer, x, weights)[0] ** 2).mean()

    c, r = P(None, None, "model"), P(None, "model", None)
    w = tuple(floats(layers, width, width, spec=c) for _ in range(3)) + (
        floats(layers, width, width, spec=r),
        floats(layers, width, 4 * width, spec=c),
        floats(layers, 4 * width, width, spec=r),
    )
    return trained(loss, w, floats(batch, length, width, spec=P("data", None, None)))
