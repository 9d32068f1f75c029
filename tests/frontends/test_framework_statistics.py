"""Batch normalizations of PyTorch and flax in micro batches: what these accumulate over the same slices."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import autoshard
from autoshard import nn
from autoshard.pipeline import plan_pipeline

PARTS, STEPS = 3, 2
WAYS = [
    (autoshard.plan, {"mesh": "dp=2 tp=2", "search": "data_parallel"}),
    (plan_pipeline, {"mesh": "pp=2,dp=2", "schedule": "zb_h1"}),
    (plan_pipeline, {"pipeline": "dp=3/dp=2/tp=2", "schedule": "1f1b"}),
]


def uneven(shape: tuple[int, ...]) -> np.ndarray:
    """Data whose micro batches are unlike each other."""
    rows = np.random.default_rng(5).normal(size=shape).reshape(shape[0], -1)
    return (rows * np.linspace(0.3, 2, shape[0])[:, None] + 0.5).reshape(shape).astype(np.float32)


# -- PyTorch


def torch_model(dims: int) -> Any:
    import torch
    from torch import nn as layers

    convolution = {1: layers.Conv1d, 2: layers.Conv2d, 3: layers.Conv3d}[dims]
    norm = {1: layers.BatchNorm1d, 2: layers.BatchNorm2d, 3: layers.BatchNorm3d}[dims]

    class Net(layers.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = norm(3, momentum=0.3)
            self.body = layers.Sequential(
                convolution(3, 6, 3), norm(6, momentum=None), layers.ReLU(), convolution(6, 4, 1)
            )
            self.head = layers.Linear(4, 5)
            self.last = layers.BatchNorm1d(5, affine=False)

        def forward(self, x: Any, y: Any) -> Any:
            made = self.body(self.first(x)).flatten(2).mean(2)
            made = self.last(self.head(made))
            return layers.functional.cross_entropy(made / (made.var(0) + 0.5), y)

    torch.manual_seed(0)
    return Net().train()


@pytest.mark.torch
@pytest.mark.parametrize("way", range(len(WAYS)))
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_batch_norms_of_torch(dims: int, way: int) -> None:
    import torch

    net = torch_model(dims)
    x, y = torch.tensor(uneven((12, 3) + (5,) * dims)), torch.arange(12) % 5
    settings = {"loss": "output", "optimizer": lambda params: nn.Momentum(params, 0.1, 0.9)}
    ours = autoshard.from_torch(copy.deepcopy(net), (x, y), **settings)
    optimizer, losses = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        parts = [net(x[k::PARTS], y[k::PARTS]) / PARTS for k in range(PARTS)]
        sum(parts).backward()
        optimizer.step()
        losses.append(float(sum(parts).detach()))
    make, where = WAYS[way]
    planned = make(ours, micro_batches=PARTS, statistics="micro_batch", **where)
    np.testing.assert_allclose([float(planned.run(x.numpy(), y.numpy())) for _ in losses], losses, rtol=1e-5)
    found = {one.name: one.data for one in planned.traced.parameters.values()}
    for name, wanted in net.state_dict().items():
        np.testing.assert_allclose(found[name], wanted.numpy(), rtol=2e-4, atol=2e-5, err_msg=name)


# -- flax


@pytest.mark.jax
@pytest.mark.parametrize("way", range(len(WAYS)))
def test_batch_norms_of_flax(way: int) -> None:
    import flax.linen as linen
    import jax
    import optax

    class Image(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = linen.BatchNorm(use_running_average=False, momentum=0.6, name="first")(x)
            x = linen.Conv(6, (3, 3), use_bias=False, name="conv")(x)
            x = linen.relu(linen.BatchNorm(use_running_average=False, name="norm")(x))
            return linen.Dense(4, name="head")(x.mean((1, 2)))

    def loss(found: jax.Array, *_: Any, **__: Any) -> jax.Array:
        return (found**2).mean()

    module, x = Image(), uneven((12, 5, 4, 3))
    variables = module.init(jax.random.key(0), x)
    options = {"loss": loss, "optimizer": optax.sgd(0.1), "mutable": ["batch_stats"]}
    ours = autoshard.from_jax(module, x, params=variables, **options)

    def of_part(params: Any, states: Any, rows: Any) -> tuple[Any, Any]:
        found, new = module.apply({"params": params, "batch_stats": states}, rows, mutable=["batch_stats"])
        return loss(found) / PARTS, new["batch_stats"]

    params, states, losses = variables["params"], variables["batch_stats"], []
    for _ in range(STEPS):
        total, grads = 0.0, []
        for k in range(PARTS):
            (one, states), grad = jax.value_and_grad(of_part, has_aux=True)(params, states, x[k::PARTS])
            total, grads = total + float(one), [*grads, grad]
        params = jax.tree.map(lambda old, *terms: old - 0.1 * sum(terms), params, *grads)
        losses.append(total)
    make, where = WAYS[way]
    planned = make(ours, micro_batches=PARTS, statistics="micro_batch", **where)
    found = [float(np.ravel(planned.run(x))[0]) for _ in losses]
    np.testing.assert_allclose(found, losses, rtol=1e-5)
    have = ours.state()
    for prefix, tree in (("params", params), ("batch_stats", states)):
        for path, wanted in jax.tree_util.tree_leaves_with_path(tree):
            name = ".".join((prefix, *(part.key for part in path)))
            np.testing.assert_allclose(have[name], wanted, rtol=2e-4, atol=2e-5, err_msg=name)
