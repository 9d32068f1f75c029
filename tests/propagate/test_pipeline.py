"""The whole pipeline against Shardy's, to the last operation: models that JAX lowers, and a module of many features."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from autoshard.propagate.pipeline import run_pipeline
from tests.propagate.compare import check, load, module_text
from tests.propagate.shardy import PIPELINES

pytestmark = pytest.mark.jax
PIPELINE = PIPELINES["full"]
MESH = AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))


def array(*shape: int, spec: tuple = (), dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(MESH, PartitionSpec(*spec)))


def constrained(x: jax.Array, *spec: str | None) -> jax.Array:
    return jax.lax.with_sharding_constraint(x, NamedSharding(MESH, PartitionSpec(*spec)))


def lowered(function: Callable, *args: Any) -> str:
    return jax.jit(function).trace(*args).lower(lowering_platforms=("cpu",)).as_text()


# -- models with calls of all kinds


def dense(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.nn.gelu(x @ w)


def network(x: jax.Array, w1: jax.Array, w2: jax.Array) -> jax.Array:
    return dense(dense(x, w1), w2) + 1.0


@jax.custom_vjp
def clipped(x: jax.Array) -> jax.Array:
    return jnp.clip(x, -1.0, 1.0)


clipped.defvjp(lambda x: (clipped(x), x), lambda x, g: (jnp.where(jnp.abs(x) < 1.0, g, 0.1 * g),))


def nested(x: jax.Array, w1: jax.Array, w2: jax.Array) -> jax.Array:
    inner = jax.jit(dense)
    return jax.jit(lambda x: inner(inner(x, w1), w2))(x) + inner(x, w1) @ w2


def scanned(x: jax.Array, w1: jax.Array, w2: jax.Array) -> jax.Array:
    def layer(x: jax.Array, shift: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = constrained(clipped(x @ w1) @ w2, "data", None) + shift
        return y, y.sum()

    y, sums = jax.lax.scan(layer, x, jnp.arange(5.0))
    return y * sums.mean()


def chosen(x: jax.Array, w1: jax.Array, w2: jax.Array) -> jax.Array:
    y = jax.lax.cond(x.sum() > 0, lambda x: jnp.tanh(x @ w1), lambda x: jnp.zeros_like(x @ w1), x)
    return jnp.concatenate([y @ w2, x], axis=0)


ARGS = array(8, 16, spec=("data",)), array(16, 32, spec=(None, "model")), array(32, 16, spec=("model",))
FORWARD = [network, nested, scanned, chosen]


def loss(function: Callable, x: jax.Array, *weights: jax.Array) -> jax.Array:
    return jnp.mean(jax.checkpoint(function)(x, *weights) ** 2)


@pytest.mark.parametrize("function", FORWARD, ids=lambda one: one.__name__)
def test_a_model_forward(function: Callable) -> None:
    check(lowered(function, *ARGS), run_pipeline, PIPELINE)


@pytest.mark.parametrize("function", FORWARD, ids=lambda one: one.__name__)
def test_a_training_step(function: Callable) -> None:
    def step(x: jax.Array, *weights: jax.Array) -> Any:
        value, grads = jax.value_and_grad(partial(loss, function), argnums=(1, 2))(x, *weights)
        return value, [w - 0.1 * g for w, g in zip(weights, grads, strict=True)]

    check(lowered(step, *ARGS), run_pipeline, PIPELINE)


# -- texts


MANY = module_text("many_features")


def test_many_features_in_one_module() -> None:
    check(MANY, run_pipeline, PIPELINE)


def test_the_log_tells_what_propagation_did() -> None:
    log = run_pipeline(load(lowered(network, *ARGS)))
    assert log.events and not log.warnings
