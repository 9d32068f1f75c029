"""Exported code on JAX: one function for all devices under `jax.shard_map`, each device a rank.

This file needs numpy and jax, and files that need no more: exported code carries it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from autoshard.engines.jax_blocks import mesh_of, spec_of
from autoshard.engines.standalone import StandalonePlan, arguments_of, arrays_of, finished
from autoshard.engines.xla_collectives import XlaCollectives, XlaControl


def jitted(plan: StandalonePlan, step: Callable, mesh: Mesh) -> Any:
    """The step on whole (padded) arrays, as `jax.jit` gives it; what it updates is donated."""
    outputs = tuple(map(spec_of, plan.outputs))

    def local(*blocks: jax.Array) -> tuple:
        return step(XlaControl(), XlaCollectives(plan.grid), *blocks)

    inside = jax.shard_map(
        local, mesh=mesh, in_specs=tuple(map(spec_of, plan.inputs)), out_specs=outputs, check_vma=False
    )
    return jax.jit(inside, donate_argnums=tuple(plan.updates.values()))


def run(plan: StandalonePlan, step: Callable, given: Mapping[str, np.ndarray], steps: int = 1) -> dict[str, np.ndarray]:
    """Whole inputs in, whole outputs of the last step out."""
    with jax.enable_x64(True):
        mesh = mesh_of(plan.grid, range(plan.grid.size))
        function = jitted(plan, step, mesh)
        pairs = zip(plan.inputs, arrays_of(plan.inputs, given), strict=True)
        arrays = [
            jax.device_put(one.pad(array).astype(jnp.dtype(one.dtype)), NamedSharding(mesh, spec_of(one)))
            for one, array in pairs
        ]
        made: tuple = ()
        for _ in range(steps):
            # On devices of the host, steps that begin before this one is done may leave its collectives no thread.
            made = jax.block_until_ready(function(*arrays))
            for out, into in plan.updates.items():
                arrays[into] = made[out]
    pairs = zip(plan.outputs, made, strict=True)
    return {one.name: np.asarray(x)[tuple(map(slice, one.shape))].astype(one.host_dtype) for one, x in pairs}


def main(plan: StandalonePlan, step: Callable, text: str) -> None:
    """Run from the command line, on devices of the host if there are no others."""
    told = arguments_of(text)
    jax.config.update("jax_num_cpu_devices", plan.grid.size)
    given = dict(np.load(told.inputs)) if told.inputs else {}
    finished(plan.outputs, run(plan, step, given, told.steps), told.outputs)
