"""JAX programs of the kinds that people write, small, with sizes that differ from each other.

MODELS maps a name to a function that makes (program, arguments). All arguments are float arrays or pytrees of them,
so that every program that returns a float scalar can be differentiated too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

MODELS: dict[str, Callable[[], tuple[Callable, tuple]]] = {}


def model(function: Callable) -> Callable:
    MODELS[function.__name__] = function
    return function


def floats(seed: int, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def dense(seed: int, rows: int, columns: int, dtype: Any = np.float32) -> dict[str, np.ndarray]:
    return {"w": (floats(seed, rows, columns) / 3).astype(dtype), "b": floats(seed + 1, columns, dtype=dtype)}


@model
def mlp():
    def loss(params, x):
        h = jax.nn.gelu(x @ params["in"]["w"] + params["in"]["b"])
        return jnp.mean((jax.nn.relu(h) @ params["out"]["w"] + params["out"]["b"]) ** 2)

    return loss, ({"in": dense(0, 6, 10), "out": dense(2, 10, 4)}, floats(4, 8, 6))


@model
def mlp_bf16():
    def loss(params, x):
        h = jnp.tanh(x @ params["w"] + params["b"])
        return jnp.mean(h.astype(jnp.float32) ** 2)

    return loss, (dense(0, 6, 10, jnp.bfloat16), floats(4, 8, 6, dtype=jnp.bfloat16))


def _layer_norm(x, scale, bias):
    centered = x - x.mean(-1, keepdims=True)
    return centered * lax.rsqrt(jnp.var(x, -1, keepdims=True) + 1e-5) * scale + bias


@model
def layer_norm():
    def loss(x, scale, bias):
        return jnp.sum(jnp.sin(_layer_norm(x, scale, bias)))

    return loss, (floats(0, 3, 5, 8), floats(1, 8), floats(2, 8))


def _attention(x, weights, heads):
    batch, length, size = x.shape
    q, k, v = (jnp.reshape(x @ w, (batch, length, heads, size // heads)) for w in weights)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(size // heads)
    mask = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape)


@model
def attention():
    def loss(x, *weights):
        return jnp.sum(_attention(x, weights, 2) ** 2)

    return loss, (floats(0, 3, 5, 8), *(floats(i, 8, 8) / 3 for i in (1, 2, 3)))


@model
def rematerialized():
    @partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
    def layer(x, w):
        return jnp.tanh(jnp.sin(x @ w))

    def loss(x, w):
        for _ in range(3):
            x = layer(x, w)
        return x.sum()

    return loss, (floats(0, 4, 6), floats(1, 6, 6))


@model
def convolution_net():
    def loss(x, kernel, strided):
        numbers = ("NHWC", "HWIO", "NHWC")
        h = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers)
        h = jax.nn.relu(h)
        h = lax.reduce_window(h, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        h = lax.conv_general_dilated(h, strided, (2, 1), [(1, 0), (2, 1)], dimension_numbers=numbers)
        h = lax.reduce_window(h, 0.0, lax.add, (1, 2, 1, 1), (1, 1, 1, 1), "SAME") / 2
        return jnp.sum(h**2)

    return loss, (floats(0, 2, 8, 6, 3), floats(1, 3, 3, 3, 4), floats(2, 2, 3, 4, 5))


@model
def scanned_rnn():
    def loss(w, u, xs):
        def step(h, x):
            h = jnp.tanh(h @ w + x @ u)
            return h, h.sum()

        last, sums = lax.scan(step, jnp.zeros((3, 6)), xs)
        return last.sum() + (sums**2).sum()

    return loss, (floats(0, 6, 6) / 3, floats(1, 4, 6), floats(2, 5, 3, 4))


@model
def fori_loop():
    def loss(x, w):
        return lax.fori_loop(0, 4, lambda i, h: jnp.sin(h @ w) + i, x).sum()

    return loss, (floats(0, 3, 5), floats(1, 5, 5))


@model
def while_loop():
    def program(x):
        def unfinished(state):
            return (state[0] < 10) & (jnp.abs(state[1]).max() > 1e-3)

        return lax.while_loop(unfinished, lambda s: (s[0] + 1, s[1] * 0.5), (0, x))[1]

    return program, (floats(0, 4, 6),)


@model
def branches():
    def loss(x, w):
        y = lax.cond(x.sum() > 0, lambda a: jnp.sin(a @ w), lambda a: a @ w * 2, x)
        index = jnp.clip(jnp.abs(x[0, 0] * 10).astype(jnp.int32), 0, 5)
        y = lax.switch(index, [jnp.sin, jnp.cos, lambda a: a * w[0].sum()], y)
        return y.sum()

    return loss, (floats(0, 3, 5), floats(1, 5, 4))


@model
def custom_gradient():
    @jax.custom_vjp
    def clipped(x):
        return x * 2

    clipped.defvjp(lambda x: (x * 2, x), lambda x, g: (jnp.clip(g * x, -1, 1),))

    def loss(x, w):
        return jnp.sum(clipped(x @ w) ** 2)

    return loss, (floats(0, 4, 6), floats(1, 6, 3))


@model
def mixture_of_experts():
    def loss(x, gate, experts):
        probabilities = jax.nn.softmax(x @ gate)
        weights, chosen = lax.top_k(probabilities, 2)
        dispatch = jax.nn.one_hot(chosen, gate.shape[1]) * weights[..., None]
        outputs = jnp.einsum("td,edf->tef", x, experts)
        return jnp.sum(jnp.einsum("tke,tef->tf", dispatch, jax.nn.relu(outputs)) ** 2)

    return loss, (floats(0, 7, 6), floats(1, 6, 5), floats(2, 5, 6, 4))


@model
def embedding():
    def loss(table, w):
        tokens = jnp.array([[1, 4, 1], [0, 9, 4]])
        return jnp.sum(jnp.sin(table[tokens] @ w))

    return loss, (floats(0, 10, 6), floats(1, 6, 4))


@model
def indexing():
    def loss(x, rows):
        x = x.at[jnp.array([2, 0, 2])].add(rows)
        x = x.at[1, 2:4].set(3.0).at[:, 0].max(0.5)
        taken = jnp.take_along_axis(x, jnp.argsort(x, axis=1), axis=1)
        return jnp.sum(taken[1:, ::2] ** 2) + lax.dynamic_slice(x, (x.astype(int)[0, 0], 1), (2, 3)).sum()

    return loss, (floats(0, 4, 6), floats(1, 3, 6))


@model
def sorting():
    def program(x):
        order = jnp.argsort(x, axis=0, descending=True)
        return jnp.sort(x, axis=1), order, jnp.argmax(x, axis=1), jnp.median(x, axis=0), jnp.unique(x, size=5)

    return program, (floats(0, 5, 7),)


@model
def running_totals():
    def loss(x):
        return jnp.sum(jnp.cumsum(x, 1) * jnp.cumprod(x, 0)) + jnp.sum(lax.cummax(x, 1, reverse=True))

    return loss, (floats(0, 4, 6),)


@model
def random_numbers():
    def program(x):
        key = jax.random.key(7)
        one, two, three = jax.random.split(key, 3)
        drawn = jax.random.normal(one, x.shape) + jax.random.uniform(two, x.shape)
        keep = jax.random.bernoulli(three, 0.7, x.shape)
        return jnp.where(keep, x, 0) + drawn, jax.random.permutation(two, 6), jax.random.randint(one, (5,), 0, 9)

    return program, (floats(0, 4, 6),)


@model
def batch_normalization():
    def loss(x, scale, bias):
        mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
        return jnp.sum(((x - mean) / jnp.sqrt(var + 1e-3) * scale + bias) ** 3)

    return loss, (floats(0, 2, 3, 5, 4), floats(1, 4), floats(2, 4))


@model
def fourier():
    def loss(x):
        return jnp.sum(jnp.abs(jnp.fft.rfft(x, axis=1)) ** 2) + jnp.fft.irfft(jnp.fft.rfft(x) * 2, n=x.shape[1]).sum()

    return loss, (floats(0, 3, 8),)


@model
def cholesky():
    def loss(x, y):
        square = x @ x.T + 5 * jnp.eye(4)
        factor = jnp.linalg.cholesky(square)
        return jnp.sum(jax.scipy.linalg.solve_triangular(factor, y, lower=True)) + jnp.log(jnp.diag(factor)).sum()

    return loss, (floats(0, 4, 6), floats(1, 4, 3))


@model
def linear_solve():
    def loss(x, y):
        return jnp.sum(jnp.linalg.solve(x + 5 * jnp.eye(4), y))

    return loss, (floats(0, 4, 4), floats(1, 4, 3))


@model
def mapped():
    def loss(x, w):
        return jax.vmap(lambda row: lax.map(lambda one: jnp.tanh(one @ w).sum(), row))(x).sum()

    return loss, (floats(0, 3, 4, 6), floats(1, 6, 2))


@model
def losses():
    def loss(logits, targets):
        labels = jnp.argmax(targets, -1)
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)
        return -picked.mean() + jax.nn.logsumexp(logits) + jnp.sum(jax.scipy.special.erf(logits) * logits**3)

    return loss, (floats(0, 4, 6), floats(1, 4, 6))
