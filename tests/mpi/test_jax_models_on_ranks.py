"""A model from JAX on MPI ranks: a step of training equals JAX's with optax."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import autoshard as ash
from autoshard.mindspore.communication import get_group_size
from tests.mpi.first_rank import planned_by_first

pytestmark = [pytest.mark.jax, pytest.mark.skipif(get_group_size() == 6, reason="six ranks import JAX for long")]
WORLD = get_group_size()


def floats(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def perceptron(params: dict, x: jax.Array) -> jax.Array:
    hidden = jax.nn.gelu(x @ params["up"] + params["bias"])
    return jax.nn.log_softmax(hidden @ params["down"])


@pytest.mark.parametrize("gradients", ["autoshard", "jax"])
def test_a_step_equals_that_of_jax(gradients: str) -> None:
    size = 4 * WORLD
    params = {"up": floats(0, 6, size), "bias": floats(1, size), "down": floats(2, size, 10)}
    model = ash.from_jax(
        perceptron,
        floats(3, 2 * WORLD, 6),
        params=params,
        loss=lambda found, x: -jnp.mean(found[:, 3]),
        optimizer=optax.adam(1e-2, eps=1e-4),
        gradients=gradients,
    )
    asked = ash.annotate(model, {"up": (None, "tp"), "down": ("tp", None)})
    loss = planned_by_first(asked, mesh=f"tp={WORLD}").run(*model.example_arrays)
    np.testing.assert_allclose(loss, model.reference()[0], 1e-4)
    for name, wanted in model.reference_state().items():
        found = {**model.state(), **{key: one.data for key, one in model.optimizer.states.items()}}[name]
        np.testing.assert_allclose(found, wanted, 1e-3, 1e-5, err_msg=name)
