"""Annotations by the frameworks' own objects: DTensor's placements and JAX's PartitionSpecs; imported models."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch
from torch.distributed.tensor import Replicate, Shard

import autoshard as ash
from autoshard.util.errors import MeshError, ShardingError

pytestmark = [pytest.mark.torch, pytest.mark.jax]
P = jax.sharding.PartitionSpec


@pytest.mark.parametrize("search", ["factor", "sharding_propagation"])
def test_a_torch_model_takes_both(search: str) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.ReLU(), torch.nn.Linear(10, 8))
    x = torch.linspace(-1, 1, 24).reshape(4, 6)
    patterns = {"0": [Replicate(), Shard(0)], "2.weight": P(None, "tp"), "input": P("dp")}
    model = ash.annotate(ash.from_torch(net, (x,)), patterns, "dp=2 tp=2")
    planned = ash.plan(model, mesh="dp=2 tp=2", search=search)
    found = {value.name: str(planned.plan.layouts[value]) for value in planned.graph.inputs}
    assert (found["input"], found["0.weight"], found["2.weight"]) == ("dp, -", "tp, -", "-, tp")
    np.testing.assert_allclose(planned.run(x.numpy()), net(x).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_a_jax_function_takes_specs() -> None:
    args = {"up": np.ones((12, 16), np.float32)}, np.ones((24, 12), np.float32)
    module = ash.from_jax(lambda params, x: x @ params["up"], *args)
    asked = ash.annotate(module, {"params[*": P(None, "tp"), "x": P(P.UNCONSTRAINED, None)}, "dp=2 tp=4").asked
    assert [str(sharding) for sharding in asked.values.values()] == [
        '<@mesh, [{}, {"tp"}]>',
        "<@mesh, [{?}, {}]>",
    ]
    with pytest.raises(MeshError, match="the module names no mesh; give one, mesh='dp=2,tp=4'"):
        ash.annotate(module, {"x": ("dp", None)})
    with pytest.raises(ShardingError, match="operators of a module take no strategies"):
        ash.annotate(module, {"%0": ((1, 2), (2, 1))}, "dp=2 tp=4")
