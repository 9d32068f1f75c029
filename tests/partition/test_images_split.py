"""A convolutional network of JAX with its images split in space: forward and gradients run by exchanges of borders."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard as ash
from autoshard.frontends import from_stablehlo
from autoshard.partition.verify import verify_program
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm

pytestmark = pytest.mark.jax

DIMS = ("NHWC", "HWIO", "NHWC")


def network(x, first, depthwise, last):
    """Two convolutions, one of them strided, one depthwise, and pooling."""
    x = jax.nn.relu(jax.lax.conv_general_dilated(x, first, (1, 1), "SAME", dimension_numbers=DIMS))
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 1, 1, 1), "SAME")
    x = jax.lax.conv_general_dilated(
        x, depthwise, (1, 1), ((2, 2), (2, 2)), rhs_dilation=(2, 2), dimension_numbers=DIMS, feature_group_count=6
    )
    x = jax.nn.relu(jax.lax.conv_general_dilated(x, last, (2, 2), "SAME", dimension_numbers=DIMS))
    return jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def loss(x, first, depthwise, last):
    return jnp.sum(jnp.tanh(network(x, first, depthwise, last)) ** 2)


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32) / 4


SHAPES = [(2, 32, 16, 3), (3, 3, 3, 6), (3, 3, 1, 6), (3, 3, 6, 5)]
FEEDS = [drawn(i, *shape) for i, shape in enumerate(SHAPES)]


def planned_of(function, mesh: str, dims: str) -> ash.Planned:
    """The function with its images split as `dims` says, planned by rules alone."""
    text = jax.jit(function).lower(*FEEDS).as_text()
    axes = ", ".join(f'"{name}"={size}' for name, size in (pair.split("=") for pair in mesh.split()))
    asked = f"{{sdy.sharding = #sdy.sharding<@mesh, [{dims}]>}}"
    text = re.sub(r"(%arg0: tensor<[^>]*>)", rf"\1 {asked}", text, count=1)
    text = re.sub(r"^(module .*\{)$", rf"\1\n  sdy.mesh @mesh = <[{axes}]>", text, count=1, flags=re.MULTILINE)
    return ash.plan(from_stablehlo(text), search="factor")


MESHES = [("x=4", '{}, {"x"}, {}, {}'), ("x=2 y=4", '{}, {"x"}, {"y"}, {}'), ("x=2 y=2", '{"y"}, {"x"}, {}, {}')]


def run(planned: ash.Planned) -> list[np.ndarray]:
    verify_program(planned.program)
    return Executor(planned.program, LocalComm(planned.program.mesh.devices))(*FEEDS)


@pytest.mark.parametrize(("mesh", "dims"), MESHES)
def test_forward_exchanges_borders(mesh, dims):
    planned = planned_of(network, mesh, dims)
    np.testing.assert_allclose(run(planned)[0], network(*FEEDS), rtol=1e-5, atol=1e-5)
    collectives = planned.program.collectives[: -len(planned.program.outputs)]
    moved = sum(one.nbytes_moved for one in collectives if one.step.kind == "halo")
    assert {one.step.kind for one in collectives if one.serves is not None} == {"halo"}
    assert 0 < moved < sum(one.operand.local.nbytes for one in collectives)


def test_gradients():
    function = jax.grad(loss, argnums=(0, 1, 2, 3))
    planned = planned_of(function, *MESHES[1])
    assert {one.step.kind for one in planned.program.collectives} == {"halo", "all_reduce"}
    for got, want in zip(run(planned), function(*FEEDS), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * float(jnp.abs(want).max()) + 1e-7)
