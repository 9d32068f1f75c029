"""The text of a program on XLA: one function for all devices under `jax.shard_map`, with explicit collectives, jitted.

`XlaRun(program)` is what `autoshard.runtime.interpret.Executor` is. Each device is a rank; a host with one device makes
as many of it as there are ranks if `need_devices` comes before JAX's first use.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import numpy as np

from autoshard.engines.check import check_runs
from autoshard.engines.extras import need
from autoshard.engines.kernels import kernels_of
from autoshard.engines.text import Text, write
from autoshard.engines.xla_collectives import XlaCollectives
from autoshard.engines.xla_kernels import XlaKernels
from autoshard.partition.program import Program, walk
from autoshard.runtime.array import array_dtype
from autoshard.util.errors import RuntimeSetupError

Parts = list[np.ndarray]
HOST_DEVICES = "--xla_force_host_platform_device_count"
"""XLA's flag by which a host has so many devices (https://docs.jax.dev/en/latest/faq.html)."""


def need_devices(count: int) -> None:
    """Check that JAX has so many devices; before its first use, ask for as many of the host.

    Raises:
        RuntimeSetupError: JAX is not installed, or has fewer devices.
    """
    need("jax", "the engine xla")
    flags = os.environ.get("XLA_FLAGS", "")
    if HOST_DEVICES not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {HOST_DEVICES}={count}".strip()
    import jax

    have = len(jax.devices())
    if have < count:
        raise RuntimeSetupError(
            f"the engine xla needs {count} devices for {count} ranks, but JAX has {have} of platform "
            f"{jax.default_backend()!r}; on a host set XLA_FLAGS={HOST_DEVICES}={count} before the first use of JAX"
        )


def compiler_options(program: Program, text: Text, platform: str) -> dict[str, Any] | None:
    """How XLA does on CPUs what a text says: it drops barriers there before it looks for what is computed twice, and
    leaves out roundings to narrow floats between operators.
    """
    if platform != "cpu":
        return None
    made = (one for step in walk(program.instructions) for one in step.results)
    narrow = any(one.whole.dtype.is_float and one.whole.dtype.bits < 32 for one in made)
    options = {"xla_disable_hlo_passes": "cse"} if text.repeats else {}
    return options | ({"xla_allow_excess_precision": False} if narrow else {})


class XlaRun:
    """A program on JAX's devices, one for each rank.

    Args:
        devices: which of JAX's devices each rank is; by default the first ones.

    Raises:
        PlanError: an operator that the engine lacks.
        RuntimeSetupError: JAX is not there, or has too few devices.
    """

    def __init__(self, program: Program, devices: Sequence[int] = ()) -> None:
        self.devices = tuple(devices) or tuple(range(program.mesh.devices))
        need_devices(max(self.devices) + 1)
        self.kernels = kernels_of("xla")
        check_runs(program, self.kernels)
        self.program, self.text = program, write(program)

    @property
    def _wide(self) -> AbstractContextManager:
        """64-bit types are themselves, which JAX otherwise halves."""
        import jax

        return jax.enable_x64(True)

    @cached_property
    def _mesh(self) -> Any:
        import jax

        grid = self.text.grid
        devices = np.array(jax.devices(), dtype=object)[[self.devices[rank] for rank in grid.ranks]]
        return jax.sharding.Mesh(devices.reshape([size for _, size in grid.axes]), grid.names)

    @cached_property
    def compiled(self) -> Any:
        """What `lower` and `compile` of JAX give: the program as XLA runs it, with its text and its memory."""
        import jax

        return self.lowered().compile(compiler_options(self.program, self.text, jax.default_backend()))

    @cached_property
    def step(self) -> Any:
        """The jitted function, from stacked blocks to stacked blocks: dim 0 has one for each position of the mesh."""
        import jax
        from jax.sharding import PartitionSpec

        spec = PartitionSpec(self.text.grid.names)
        count = len(self.program.inputs)
        over = jax.shard_map(self._local, mesh=self._mesh, in_specs=(spec,) * count, out_specs=spec, check_vma=False)
        return jax.jit(over)

    def _local(self, *stacked: Any) -> tuple:
        grid, kernels = self.text.grid, self.kernels
        blocks = [one.reshape(one.shape[1:]) for one in stacked]
        made = self.text.step(XlaKernels(grid, kernels), XlaCollectives(grid), self.text.constants, *blocks)
        return tuple(one[None] for one in made)

    @property
    def _examples(self) -> list[Any]:
        import jax

        size = self.text.grid.size
        return [
            jax.ShapeDtypeStruct((size, *one.local.shape), array_dtype(one.whole.dtype)) for one in self.program.inputs
        ]

    def lowered(self) -> Any:
        """What `jax.jit(...).lower` gives: the StableHLO, before it is compiled."""
        return self._lowered

    @cached_property
    def _lowered(self) -> Any:
        with self._wide:
            return self.step.lower(*self._examples)

    def consume(self, inputs: list[Parts]) -> list[Parts]:
        """Blocks in, blocks out: for each input, and output, one array for each rank. Empties the list."""
        ranks = list(self.text.grid.ranks)
        with self._wide:
            stacked = [np.stack([parts[rank] for rank in ranks]) for parts in inputs]
            inputs.clear()
            made = [np.asarray(one) for one in self.compiled(*stacked)]
        return [[one[place] for place in self.text.grid.positions] for one in made]


__all__ = ["Text", "XlaRun", "compiler_options", "need_devices"]
