"""The text of a program on XLA: one function for all devices under `jax.shard_map`, with explicit collectives, jitted.

`XlaRun(program)` is what `autoshard.runtime.interpret.Executor` is. Each device is a rank; a host with one device makes
as many of it as there are ranks if `need_devices` comes before JAX's first use.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from typing import Any

import numpy as np

from autoshard.core.tensortype import DType, dtype
from autoshard.engines.check import check_runs
from autoshard.engines.extras import need
from autoshard.engines.groups import Axes, Grid
from autoshard.engines.kernels import Kernels, kernels_of
from autoshard.engines.local_engine import arguments, slices
from autoshard.engines.per_rank import Places, differing, on_rank
from autoshard.engines.rounds import Message, rounds_of
from autoshard.engines.tables import Table
from autoshard.engines.text import Text, write
from autoshard.ops.registry import lookup
from autoshard.partition.program import Program
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


class XlaKernels:
    """`k` of a text while JAX traces it: operators on traced blocks."""

    def __init__(self, grid: Grid, kernels: Kernels) -> None:
        self._grid, self._kernels = grid, kernels

    def __getattr__(self, name: str) -> Callable:
        op = lookup(name)

        def call(*operands: Any, of: str | tuple[str, ...], **attrs: Any) -> Any:
            kinds: list[DType] = [dtype(one) for one in ((of,) if isinstance(of, str) else of)]

            def on(rank: int, *raws: Any) -> tuple:
                return self._kernels.run(op, raws, {n: on_rank(v, rank) for n, v in attrs.items()}, kinds)

            made = by_rank(self._grid, tuple(attrs.values()), on, operands)
            return made[0] if isinstance(of, str) else made

        return call

    def while_loop(self, holds: Callable, turn: Callable, carried: tuple) -> tuple:
        from jax import lax

        return lax.while_loop(lambda now: holds(*now)[0].reshape(()), lambda now: turn(*now), carried)

    def case(self, index: Any, branches: tuple[Callable, ...]) -> tuple:
        import jax.numpy as jnp
        from jax import lax

        last = len(branches) - 1
        number = index.reshape(()).astype(np.int32)
        return lax.switch(jnp.where((number < 0) | (number > last), last, number), branches)


def by_rank(grid: Grid, told: Any, run: Callable, operands: Sequence[Any]) -> Any:
    """`run(rank, *operands)` on each rank: one computation where `told` differs on none, else a branch for each way.

    So numbers that differ by rank stay numbers: sizes of slices, starts of windows.
    """
    from jax import lax

    ways = tuple(zip(*(one.values for one in differing(told)), strict=True)) or ((),) * grid.size
    first = {way: rank for rank, way in reversed(list(enumerate(ways)))}
    if len(first) == 1:
        return run(grid.ranks[0], *operands)
    numbers = {way: i for i, way in enumerate(first)}
    table = np.asarray([numbers[ways[rank]] for rank in grid.ranks], np.int32)
    branches = [partial(run, rank) for rank in first.values()]
    import jax.numpy as jnp

    return lax.switch(jnp.asarray(table)[lax.axis_index(grid.names)], branches, *operands)


class XlaCollectives(Places):
    """`c` of a text while JAX traces it."""

    def __init__(self, grid: Grid, kernels: Kernels) -> None:
        super().__init__(grid)
        self._kernels = kernels

    def _over(self, axes: Axes) -> dict[str, Any]:
        """A group as JAX's collectives take it: axes by name, or lists of positions along the one axis there is."""
        if axes and isinstance(axes[0], tuple):
            return {"axis_name": self.grid.names[0], "axis_index_groups": [list(row) for row in self.grid.rows(axes)]}
        return {"axis_name": axes}

    def all_reduce(self, x: Any, axes: Axes, op: str) -> Any:
        import jax.numpy as jnp
        from jax import lax

        if op == "prod":
            return jnp.prod(lax.all_gather(x, **self._over(axes)), axis=0).astype(x.dtype)
        if x.dtype == np.bool_:
            return self.all_reduce(x.astype(np.uint8), axes, op).astype(np.bool_)
        return {"sum": lax.psum, "max": lax.pmax, "min": lax.pmin}[op](x, **self._over(axes))

    def all_gather(self, x: Any, axes: Axes, dim: int) -> Any:
        from jax import lax

        return lax.all_gather(x, axis=dim, tiled=True, **self._over(axes))

    def reduce_scatter(self, x: Any, axes: Axes, dim: int, op: str) -> Any:
        from jax import lax

        if op != "sum":
            return self.slice(self.all_reduce(x, axes, op), axes, dim)
        return lax.psum_scatter(x, scatter_dimension=dim, tiled=True, **self._over(axes))

    def all_to_all(self, x: Any, axes: Axes, split: int, concat: int) -> Any:
        from jax import lax

        return lax.all_to_all(x, split_axis=split, concat_axis=concat, tiled=True, **self._over(axes))

    def bundle(self, kind: str, xs: tuple, axes: Axes, dims: tuple, op: str = "sum") -> tuple:
        """One collective for each: XLA puts them together itself."""
        return tuple(getattr(self, kind)(x, axes, *arguments(kind, one, op)) for x, one in zip(xs, dims, strict=True))

    def start(self, collective: Callable, *args: Any) -> Any:
        """All at once: XLA itself finds what can run meanwhile."""
        return collective(*args)

    def wait(self, begun: Any) -> Any:
        return begun

    def slice(self, x: Any, axes: Axes, dim: int) -> Any:
        import jax.numpy as jnp
        from jax import lax

        size = x.shape[dim] // len(self.grid.rows(axes)[0])
        index = jnp.asarray(np.asarray(self.grid.index(axes), np.int32)[list(self.grid.ranks)])
        return lax.dynamic_slice_in_dim(x, index[lax.axis_index(self.grid.names)] * size, size, dim)

    def permute(self, x: Any, sources: tuple[int | None, ...]) -> Any:
        from jax import lax

        place = self.grid.positions
        pairs = [(place[source], place[rank]) for rank, source in enumerate(sources) if source is not None]
        return lax.ppermute(x, self.grid.names, pairs)

    def boxes(self, x: Any, shape: tuple[int, ...], table: Table, op: str = "sum", wide: str = "") -> Any:
        """Messages of one round have one length: the longest, as XLA permutes equal blocks."""
        import jax.numpy as jnp

        rounds = rounds_of(table)
        received = [self._round(x, messages) for messages in rounds]
        combine = {"sum": jnp.add, "max": jnp.maximum, "min": jnp.minimum, "prod": jnp.multiply}[op]
        kind = np.dtype(wide) if wide else x.dtype
        index = {(source, target): i for i, row in enumerate(rounds) for source, target, _ in row}

        def made(rank: int, own: Any, *buffers: Any) -> Any:
            block, taken = jnp.zeros(shape, kind), [0] * len(buffers)
            for source, box, placed, adds in table[rank]:
                if source == rank:
                    values = own[slices(box)]
                else:
                    i = index[source, rank]
                    counts = tuple(count for _, count, _ in box)
                    size = int(np.prod(counts))
                    values = buffers[i][taken[i] : taken[i] + size].reshape(counts)
                    taken[i] += size
                here = slices(placed)
                values = values.astype(kind)
                block = block.at[here].set(combine(block[here], values) if adds else values)
            return block.astype(own.dtype)

        return self._apart(made, (x, *received))

    def _round(self, x: Any, messages: Sequence[Message]) -> Any:
        import jax.numpy as jnp
        from jax import lax

        sent = {source: boxes for source, _, boxes in messages}
        length = max(sum(int(np.prod([count for _, count, _ in box])) for box in boxes) for boxes in sent.values())

        def packed(rank: int, own: Any) -> Any:
            flat = [own[slices(box)].reshape(-1) for box in sent.get(rank, ())]
            row = jnp.concatenate(flat) if flat else jnp.zeros(0, own.dtype)
            return jnp.pad(row, (0, length - row.shape[0]))

        place = self.grid.positions
        pairs = [(place[source], place[target]) for source, target, _ in messages]
        return lax.ppermute(self._apart(packed, (x,)), self.grid.names, pairs)

    def _apart(self, run: Callable, operands: tuple) -> Any:
        """A branch for each rank."""
        import jax.numpy as jnp
        from jax import lax

        table = jnp.asarray(np.asarray(self.grid.ranks, np.int32))
        branches = [partial(run, rank) for rank in range(self.grid.size)]
        return lax.switch(table[lax.axis_index(self.grid.names)], branches, *operands)

    def fit(self, x: Any, shape: tuple[int, ...]) -> Any:
        import jax.numpy as jnp

        kept = x[tuple(slice(min(old, new)) for old, new in zip(x.shape, shape, strict=True))]
        return jnp.pad(kept, [(0, new - old) for old, new in zip(kept.shape, shape, strict=True)])

    def rank(self, counts: bool) -> Any:
        import jax.numpy as jnp
        from jax import lax

        table = np.asarray(self.grid.ranks if counts else [0] * self.grid.size, np.uint32)
        return jnp.asarray(table)[lax.axis_index(self.grid.names)]


class XlaRun:
    """A program on JAX's devices, one for each rank.

    Raises:
        PlanError: an operator that the engine lacks.
        RuntimeSetupError: JAX is not there, or has too few devices.
    """

    def __init__(self, program: Program) -> None:
        need_devices(program.mesh.devices)
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
        devices = np.array(jax.devices()[: grid.size], dtype=object)[list(grid.ranks)]
        return jax.sharding.Mesh(devices.reshape([size for _, size in grid.axes]), grid.names)

    @cached_property
    def compiled(self) -> Any:
        """What `lower` and `compile` of JAX give: the program as XLA runs it, with its text and its memory."""
        return self.lowered().compile()

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
        made = self.text.step(XlaKernels(grid, kernels), XlaCollectives(grid, kernels), self.text.constants, *blocks)
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


__all__ = ["Text", "XlaRun", "need_devices"]
