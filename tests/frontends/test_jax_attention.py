"""Attention of imported JAX models is one operator, however it is written, with JAX's numbers on any split."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import flax.linen as linen  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402
from flax import nnx  # noqa: E402

import autoshard as ash  # noqa: E402
from autoshard.ir.graph import walk  # noqa: E402

pytestmark = pytest.mark.jax
BATCH, HEADS, GROUPS, LENGTH, WIDTH = 4, 6, 2, 10, 3
ATTEND = jax.nn.dot_product_attention


def floats(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def repeated(x):
    return jnp.repeat(x, HEADS // GROUPS, axis=2)


def behind():
    return jnp.arange(LENGTH)[:, None] - jnp.arange(LENGTH)


def by_hand(q, k, v, change: Callable = lambda scores: scores, scale: float = 0.4, fill: float = -1e9):
    """Causal attention by einsum, with a change of scores before the mask."""
    scores = change(jnp.einsum("bqhd,bkhd->bhqk", q, repeated(k)) * scale)
    weights = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, fill), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, repeated(v))


def with_sinks(q, k, v, sinks):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, repeated(k))
    last = jnp.broadcast_to(sinks[:, None, None], (*scores.shape[:-1], 1))
    weights = jax.nn.softmax(jnp.concatenate([scores, last], -1))[..., :-1]
    return jnp.einsum("bhqk,bkhd->bqhd", weights, repeated(v))


def grouped(q, k, v):
    """Heads of a group as a dim of their own, in an order of dims that no library has."""
    q = q.reshape(BATCH, LENGTH, GROUPS, HEADS // GROUPS, WIDTH)
    scores = jnp.einsum("bsgrd,btgd->gbrst", q, k) / WIDTH**0.5
    weights = jax.nn.softmax(jnp.where(behind() < 0, jnp.finfo(scores.dtype).min, scores))
    return jnp.einsum("gbrst,btgd->bsgrd", weights, v).reshape(BATCH, LENGTH, HEADS, WIDTH)


def one_head(q, k, v):
    scores = q @ k.T / 1.7
    powers = jnp.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True) @ v


def of_low_precision(q, k, v):
    q, k, v = (one.astype(jnp.bfloat16) for one in (q, repeated(k), repeated(v)))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32)
    weights = jax.nn.softmax(jnp.where(behind() >= 0, scores, -1e30)).astype(jnp.bfloat16)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v).astype(jnp.float32)


def narrow(form):
    """All of a form in bfloat16, the softmax and its weights, too; sums are of float32, as JAX has them."""
    return lambda p, q, k, v: form(*(one.astype(jnp.bfloat16) for one in (q, k, v))).astype(jnp.float32)


def guarded(q, k, v):
    """Weights that are no numbers, of a sample that sees nothing, are made zero."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, repeated(k)) * 0.4
    seen = jnp.asarray(PADDED & (np.arange(BATCH) != 2)[:, None])[:, None, None]
    weights = jnp.nan_to_num(jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)))
    return jnp.einsum("bhqk,bkhd->bqhd", weights, repeated(v))


def over_all(q, k, v):
    """The logarithm of all powers is taken from scores."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, repeated(k)) * 0.4
    weights = jnp.exp(scores - jax.nn.logsumexp(scores, axis=-1, keepdims=True))
    return jnp.einsum("bhqk,bkhd->bqhd", weights, repeated(v))


def divided_behind(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, repeated(k)) * 0.4
    powers = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
    total = powers.sum(-1).transpose(0, 2, 1)[..., None]
    return jnp.einsum("bhqk,bkhd->bqhd", powers, repeated(v)) / total


def with_sinks_in_the_sum(q, k, v, sinks):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, repeated(k))
    most = jnp.maximum(scores.max(-1, keepdims=True), sinks[:, None, None])
    powers = jnp.exp(scores - most)
    total = powers.sum(-1, keepdims=True) + jnp.exp(sinks[:, None, None] - most)
    return jnp.einsum("bhqk,bkhd->bqhd", powers / total, repeated(v))


def where_seen(q, k, v):
    """Weights of what is seen; one sample sees nothing."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, repeated(k)) * 0.4
    seen = jnp.asarray(PADDED & (np.arange(BATCH) != 2)[:, None])[:, None, None]
    weights = jax.nn.softmax(scores, axis=-1, where=seen)
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(seen, weights, 0.0), repeated(v))


def of_two_products(q, k, v):
    """A latent key that all heads share, and another one (DeepSeek's latent attention, absorbed)."""
    scores = jnp.einsum("bqhd,bkd->bhqk", q, k[:, :, 0]) + jnp.einsum("bqhd,bkd->bhqk", q[..., 1:], v[:, :, 1, 1:])
    weights = jax.nn.softmax(jnp.where(behind() >= 0, scores * 0.4, -1e30))
    return jnp.einsum("bhqk,bkd->bqhd", weights, k[:, :, 0])


SLOPES, BIAS, SINKS = floats(7, HEADS, 1, 1), floats(8, HEADS, LENGTH, LENGTH), floats(9, HEADS)
PADDED = np.arange(LENGTH) < np.array([4, 10, 7, 9])[:, None]
FORMS: dict[str, Callable] = {
    "einsum": lambda p, q, k, v: by_hand(q, k, v),
    "einsum, scaled before": lambda p, q, k, v: by_hand(q / 2, k, v, scale=1.0, fill=-jnp.inf),
    "softcap": lambda p, q, k, v: by_hand(q, k, v, lambda scores: 5 * jnp.tanh(scores / 5)),
    "learned bias": lambda p, q, k, v: by_hand(q, k, v, lambda scores: scores + p["bias"]),
    "slopes (ALiBi)": lambda p, q, k, v: by_hand(q, k, v, lambda scores: scores - SLOPES * behind()),
    "sinks": lambda p, q, k, v: with_sinks(q, k, v, p["sinks"]),
    "groups": lambda p, q, k, v: grouped(q, k, v),
    "vmap": lambda p, q, k, v: jax.vmap(jax.vmap(one_head, 1, 1))(q, repeated(k), repeated(v)),
    "bf16": lambda p, q, k, v: of_low_precision(q, k, v),
    "bf16, narrow": narrow(by_hand),
    "bf16, narrow logarithm": narrow(lambda q, k, v: over_all(q, k, v)),
    "no numbers made zero": lambda p, q, k, v: guarded(q, k, v),
    "library": lambda p, q, k, v: ATTEND(q, k, v),
    "library, causal": lambda p, q, k, v: ATTEND(q, k, v, is_causal=True, scale=0.3),
    "library, window": lambda p, q, k, v: ATTEND(q, k, v, local_window_size=3),
    "library, causal window": lambda p, q, k, v: ATTEND(q, k, v, is_causal=True, local_window_size=(3, 0)),
    "library, bias": lambda p, q, k, v: ATTEND(q, k, v, bias=p["bias"][None]),
    "library, padding": lambda p, q, k, v: ATTEND(q, k, v, mask=jnp.asarray(PADDED)[:, None, None]),
    "flax": lambda p, q, k, v: linen.dot_product_attention(
        q, repeated(k), repeated(v), mask=linen.make_causal_mask(jnp.ones((BATCH, LENGTH)))
    ),
    "nnx": lambda p, q, k, v: nnx.dot_product_attention(q, repeated(k), repeated(v)),
    "logarithm": lambda p, q, k, v: over_all(q, k, v),
    "divided behind": lambda p, q, k, v: divided_behind(q, k, v),
    "sinks in the sum": lambda p, q, k, v: with_sinks_in_the_sum(q, k, v, p["sinks"]),
    "where seen": lambda p, q, k, v: where_seen(q, k, v),
    "two products": lambda p, q, k, v: of_two_products(q, k, v),
    "learned scale": lambda p, q, k, v: by_hand(q, k, v, lambda scores: scores * p["sinks"][:, None, None]),
    "scaled behind the mask": lambda p, q, k, v: by_hand(q, k, v, lambda scores: (scores + p["bias"]) * 0.5),
}
APART: dict[str, Callable] = {
    "over queries": lambda p, q, k, v: jnp.einsum(
        "bhqk,bkhd->bqhd", jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, repeated(k)), 2), repeated(v)
    ),
    "no softmax": lambda p, q, k, v: jnp.einsum(
        "bhqk,bkhd->bqhd", jax.nn.relu(jnp.einsum("bqhd,bkhd->bhqk", q, repeated(k))), repeated(v)
    ),
    "scaled below zero behind the mask": lambda p, q, k, v: by_hand(
        q, k, v, lambda scores: (scores + p["bias"]) * -0.5
    ),
}


def params() -> dict[str, np.ndarray]:
    sizes = {"query": HEADS, "key": GROUPS, "value": GROUPS}
    made = {name: floats(i, 8, size, WIDTH) for i, (name, size) in enumerate(sizes.items())}
    return {**made, "bias": BIAS, "sinks": SINKS, "out": floats(5, HEADS, WIDTH, 5) / 3}


def net(form: Callable) -> Callable:
    def run(params: Any, x: Any) -> Any:
        q, k, v = (jnp.einsum("bsm,mhd->bshd", x, params[name]) for name in ("query", "key", "value"))
        return jnp.mean(jnp.einsum("bshd,hdm->bsm", form(params, q, k, v), params["out"]) ** 2)

    return run


@pytest.mark.parametrize("name", FORMS)
def test_one_operator_in_all_splits(name):
    """A step of training on ranks that split the batch and, where they divide, heads: JAX's loss and gradients."""
    x, tolerance = floats(3, BATCH, LENGTH, 8), 3e-2 if name.startswith("bf16") else 1e-3
    model = ash.from_jax(net(FORMS[name]), x, params=params(), loss="output", optimizer=optax.sgd(0.1))
    names = [node.op.name for node in model.traced.graph.nodes]
    assert names.count("Attention") == 1 and "DotGeneral" in names
    assert not any(node.results[0].type.shape[-2:] == (LENGTH, LENGTH) for node in _scores(model))
    loss = ash.plan(model, mesh="dp=2 tp=2", search="megatron").run(x)
    np.testing.assert_allclose(loss, model.reference()[0], rtol=tolerance)
    state, wanted = model.state(), model.reference_state()
    for key, value in wanted.items():
        most = tolerance * np.abs(value).max(initial=0)
        np.testing.assert_allclose(np.asarray(state[key], np.float32), value, tolerance, most, err_msg=key)


def _scores(model: Any) -> list:
    """Exponentials: none of them is of scores any more."""
    return [node for node in model.traced.graph.nodes if node.op.name in ("Exp", "Softmax") and "grad" not in node.name]


@pytest.mark.parametrize("name", APART)
def test_what_is_something_else_stays_apart(name):
    x = floats(3, BATCH, LENGTH, 8)
    model = ash.from_jax(net(APART[name]), x, params=params(), loss="output")
    assert "Attention" not in [node.op.name for node in model.traced.graph.nodes]
    found = ash.plan(model, mesh="dp=2", search="data_parallel").run(x)
    np.testing.assert_allclose(found, model.reference()[0], rtol=1e-4)


def test_in_a_loop_over_layers():
    """Where a model is evaluated its layers stay in a loop, and attention in it is one operator, too."""
    layers = {name: np.stack([value, value[::-1]]) for name, value in params().items()}

    def run(params: Any, x: Any) -> Any:
        def layer(x: Any, p: Any) -> tuple[Any, None]:
            q, k, v = (jnp.einsum("bsm,mhd->bshd", x, p[name]) for name in ("query", "key", "value"))
            return x.at[..., :5].add(jnp.einsum("bshd,hdm->bsm", by_hand(q, k, v), p["out"])), None

        return jax.lax.scan(layer, x, params)[0]

    x = floats(6, BATCH, LENGTH, 8)
    model = ash.from_jax(run, x, params=layers)
    names = [node.op.name for node in walk(model.traced.graph.nodes)]
    assert names.count("Attention") == 1 and "Exp" not in names
    got = ash.plan(model, mesh="dp=2 tp=3").run(*model.arrays(x))
    np.testing.assert_allclose(got, run(layers, x), rtol=1e-4, atol=1e-5)
