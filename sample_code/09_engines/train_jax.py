"""Train a small network with optax as autoshard plans it: on 8 devices, saved, and resumed on 4.

XLA_FLAGS=--xla_force_host_platform_device_count=8 python train_jax.py --mesh dp=2,tp=4 --save state.npz
XLA_FLAGS=--xla_force_host_platform_device_count=4 python train_jax.py --mesh dp=4 --resume state.npz
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax

import autoshard as ash


def network(params, x):
    return jax.nn.relu(x @ params["up"] + params["bias"]) @ params["down"]


def first_params():
    up, down = (jax.random.normal(jax.random.key(i), shape) / 5 for i, shape in enumerate([(24, 48), (48, 6)]))
    return {"up": up, "bias": jnp.zeros(48), "down": down}


def batch(number: int):
    x = np.random.default_rng(number).normal(size=(16, 24)).astype(np.float32)
    return x, np.sin(x[:, :6])


def loss(found, x, y):
    return jnp.mean((found - y) ** 2)


def planned(mesh: str):
    """The step of training, planned, as a function of JAX."""
    found = ash.from_jax(
        lambda params, x, y: network(params, x),
        *batch(0),
        params=first_params(),
        loss=loss,
        optimizer=optax.adamw(1e-2),
    )
    return ash.plan(found, mesh=mesh).to_jax()


def train(step, numbers: range, resume: str | None = None, save: str | None = None) -> list[float]:
    state = step.placed(dict(np.load(resume))) if resume else step.state()
    losses = []
    for number in numbers:
        value, state = step(state, *batch(number))
        losses.append(float(value))
    if save:
        np.savez(save, **step.whole(state))
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--mesh", default="dp=2,tp=4")
    parser.add_argument("--save")
    parser.add_argument("--resume")
    told = parser.parse_args()
    numbers = range(4, 8) if told.resume else range(4)
    print(*(f"{value:.6f}" for value in train(planned(told.mesh), numbers, told.resume, told.save)))
