"""JAX models whose loss holds a gradient: penalties, products with Hessians, an adapted step, an equation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import autoshard as ash
from tests.frontends.kept_parameters import kept

pytestmark = pytest.mark.jax
RNG = np.random.default_rng(6)


def f(*shape: int) -> jax.Array:
    return jnp.asarray(RNG.normal(size=shape) * 0.5, jnp.float32)


PARAMS = {"w1": f(8, 10), "b1": f(10), "w2": f(10, 6)}
X, Y = f(12, 8), f(12, 6)


def net(p: Any, x: Any, act: Callable = jnp.tanh) -> Any:
    return act(x @ p["w1"] + p["b1"]) @ p["w2"]


def penalty(p: Any, x: Any, y: Any) -> Any:
    slope = jax.grad(lambda x: net(p, x, jax.nn.gelu).sum())(x)
    return jnp.mean((net(p, x, jax.nn.gelu) - y) ** 2) + 0.1 * jnp.mean(slope**2)


def rows(p: Any, x: Any, y: Any) -> Any:
    slopes = jax.vmap(jax.grad(lambda row: net(p, row, jax.nn.silu).sum()))(x)
    return jnp.mean((jnp.sqrt((slopes**2).sum(-1) + 1e-12) - 1) ** 2)


def curvature(p: Any, x: Any, y: Any) -> Any:
    def loss(p: Any) -> Any:
        return jnp.mean((net(p, x, jax.nn.softplus) - y) ** 2)

    _, product = jax.jvp(jax.grad(loss), (p,), (jax.tree.map(jnp.cos, p),))
    return loss(p) + 0.01 * sum(jnp.sum(one**2) for one in jax.tree.leaves(product))


def adapted(p: Any, x: Any, y: Any) -> Any:
    def loss(p: Any, x: Any, y: Any) -> Any:
        return jnp.mean((net(p, x) - y) ** 2)

    slopes = jax.grad(loss)(p, x[:6], y[:6])
    return loss(jax.tree.map(lambda one, slope: one - 0.1 * slope, p, slopes), x[6:], y[6:])


def equation(p: Any, x: Any, y: Any) -> Any:
    """How far a field is from solving an equation with second derivatives, at each row."""

    def field(at: Any) -> Any:
        return net(p, at, jnp.sin)[0]

    return jnp.mean(jax.vmap(lambda at: jnp.trace(jax.hessian(field)(at)) + field(at))(x) ** 2)


def entropy(p: Any, x: Any, y: Any) -> Any:
    def value(x: Any) -> Any:
        return -jnp.mean(jnp.sum(jax.nn.log_softmax(net(p, x)) * jax.nn.softmax(y), -1))

    return value(x) + jnp.sum(jax.grad(value)(x) ** 2)


@pytest.mark.parametrize("loss", [penalty, rows, curvature, adapted, equation, entropy], ids=lambda one: one.__name__)
def test_a_loss_with_a_gradient_trains_as_in_jax(loss: Callable) -> None:
    """Split by each plan, from the same parameters on."""
    rate, wanted = 0.05, []
    params = jax.tree.map(jnp.array, PARAMS)
    model: Any = ash.from_jax(loss, X, Y, params=params, loss=lambda found, *_: found, optimizer=optax.sgd(rate))
    with_slopes = jax.jit(jax.value_and_grad(loss))
    for _ in range(3):
        want, slopes = with_slopes(params, X, Y)
        wanted.append(want)
        params = jax.tree.map(lambda one, slope: one - rate * slope, params, slopes)
    for mesh, search in (("dp=2 tp=3", "sharding_propagation"), ("d=4", "data_parallel")):
        planned = ash.plan(model, mesh=mesh, search=search)
        with kept(planned.traced.parameters.values()):
            found = [np.ravel(planned.run(*model.arrays(X, Y)))[-1] for _ in wanted]
        np.testing.assert_allclose(found, wanted, rtol=1e-4, err_msg=mesh)
