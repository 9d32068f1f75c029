"""Exported stages on JAX: the pieces of each stage under `jax.shard_map` on its own mesh, and what plays the schedule.

This file needs numpy and jax, and files that need no more: exported code carries it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from autoshard.engines.grid import Grid
from autoshard.engines.jax_blocks import mesh_of, spec_of
from autoshard.engines.standalone import BoundaryValue, arguments_of, arrays_of, finished
from autoshard.engines.standalone_stages import (
    ALONE,
    PieceSpec,
    Place,
    RouteSpec,
    StandaloneStages,
    ValueSource,
    joined_rows,
    rows_of,
)
from autoshard.engines.xla_collectives import XlaCollectives, XlaControl

COMBINED = {"sum": jnp.add, "max": jnp.maximum, "min": jnp.minimum, "prod": jnp.multiply}
"""How terms are added up."""


class Stages:
    """The pieces of all stages on devices.

    `pieces[stage, kind]` is a piece as `jax.jit` gives it, of whole (padded) arrays that lie as `shardings(stage, ...)`
    says; `run` plays them all by the schedule.

    Args:
        devices: all devices, by default those of JAX.
    """

    def __init__(self, plan: StandaloneStages, devices: Sequence[Any] | None = None) -> None:
        self.plan = plan
        self.meshes = tuple(mesh_of(stage.grid, stage.ranks, devices) for stage in plan.stages)
        pairs = ((stage, piece) for stage in plan.stages for piece in stage.pieces.values())
        self.pieces = {piece.place: _jitted(piece, stage.grid, self.mesh(stage.number)) for stage, piece in pairs}
        self.prologue: Any = None
        if plan.prologue is not None:
            first = Mesh(self.meshes[0].devices.flat[:1], ALONE.names)
            self.prologue = _jitted(plan.prologue, ALONE, first)

    def mesh(self, stage: int) -> Mesh:
        """The mesh of a stage."""
        return self.meshes[stage]

    def shardings(self, stage: int, values: Sequence[BoundaryValue]) -> tuple[NamedSharding, ...]:
        """How inputs or outputs of a stage's pieces lie."""
        return tuple(NamedSharding(self.mesh(stage), spec_of(one)) for one in values)

    def run(self, given: Mapping[str, np.ndarray], steps: int = 1) -> dict[str, np.ndarray]:
        """Whole inputs in by name, whole outputs of the last step out; random numbers for inputs that are not given."""
        with jax.enable_x64(True):
            names = [one.name for one in self.plan.inputs]
            pairs = zip(self.plan.inputs, arrays_of(self.plan.inputs, given), strict=True)
            arrays: dict[str, Any] = {one.name: one.pad(np.asarray(array)) for one, array in pairs}
            found: list[Any] = []
            for _ in range(steps):
                found = StagedRun(self, dict(arrays)).run()
                for out, into in self.plan.updates.items():
                    arrays[names[into]] = found[out]
        outputs = zip(self.plan.outputs, found, strict=True)
        return {one.name: np.asarray(array).astype(one.host_dtype) for one, array in outputs}


class StagedRun:
    """One step: what there is of it so far.

    Args:
        arrays: whole arrays by name: the inputs of the step, then also what is made once.
    """

    def __init__(self, stages: Stages, arrays: dict[str, Any]) -> None:
        self.stages, self.plan, self.arrays = stages, stages.plan, arrays
        self.on_host = stages.meshes[0].devices.flat[0].platform == "cpu"
        self.placed: dict[tuple, jax.Array] = {}
        self.arrived: dict[tuple[int, int | None], jax.Array] = {}
        self.reads: dict[tuple[int, int | None], int] = {}
        self.sums: dict[tuple[Place, int], jax.Array] = {}
        self.rows: dict[str, dict[int, Any]] = {}

    def run(self) -> list[Any]:
        """Play the step; its outputs, whole."""
        self._prologue()
        self.plan.play(self._do, self._send_sum)
        return [self._result(source) for source in self.plan.results]

    def _prologue(self) -> None:
        piece = self.plan.prologue
        if piece is not None:
            inputs = [jnp.asarray(self.arrays[source.of], jnp.dtype(one.dtype)) for one, source in piece.ends]
            for i, array in enumerate(self.stages.prologue(*inputs)):
                self.arrays[piece.made[i]] = np.asarray(array)

    def _do(self, piece: PieceSpec, micro: int | None) -> None:
        """Run a piece, send on what it makes, and let go of what it has read last."""
        made = self.stages.pieces[piece.place](*(self._input(piece, i, micro) for i in range(len(piece.inputs))))
        if self.on_host:
            # On devices of the host, programs that run at once may leave the collectives of each other no thread.
            made = jax.block_until_ready(made)
        for number in {source.of for source in piece.sources if source.kind == "route"}:
            self._let_go(self.plan.key(number, micro))
        for i, reduction in piece.sums.items():
            self._add((piece.place, i), made[i], reduction)
        for i, name in piece.rows.items():
            self.rows.setdefault(name, {})[micro or 0] = whole_of(made[i], piece.outputs[i])
        for i, name in piece.made.items():
            self.arrays[name] = whole_of(made[i], piece.outputs[i])
        for number in self.plan.leaving[piece.place]:
            route = self.plan.routes[number]
            if not route.summed:
                self._send(number, made[route.output], micro)

    def _let_go(self, key: tuple[int, int | None]) -> None:
        self.reads[key] -= 1
        if not self.reads[key]:
            del self.arrived[key]

    def _send_sum(self, number: int, route: RouteSpec) -> None:
        self._send(number, self._sum(route.source, route.output), None)

    def _send(self, number: int, array: jax.Array, micro: int | None) -> None:
        """Bring a value to the stage that reads it."""
        route, key = self.plan.routes[number], self.plan.key(number, micro)
        self.reads[key] = self.plan.reads(route)
        self.arrived[key] = self._moved(array, route) if route.moved else array

    def _moved(self, array: jax.Array, route: RouteSpec) -> jax.Array:
        before = self.plan.by_place[route.source].outputs[route.output]
        return self._place(whole_of(array, before), route.value, self.stages.mesh(route.stage))

    def _place(self, array: Any, value: BoundaryValue, mesh: Mesh) -> jax.Array:
        """A whole array as a piece on a mesh takes it: of its type, padded, split."""
        if isinstance(array, jax.Array):
            given = array.astype(jnp.dtype(value.dtype))
            if value.padded != value.shape:
                given = jnp.pad(given, [(0, new - old) for old, new in zip(value.shape, value.padded, strict=True)])
        else:
            given = value.pad(np.asarray(array)).astype(jnp.dtype(value.dtype))
        return self._ready(jax.device_put(given, NamedSharding(mesh, spec_of(value))))

    def _ready(self, array: jax.Array) -> jax.Array:
        return jax.block_until_ready(array) if self.on_host else array

    def _input(self, piece: PieceSpec, i: int, micro: int | None) -> jax.Array:
        source, value, mesh = piece.sources[i], piece.inputs[i], self.stages.mesh(piece.stage)
        if source.kind == "route":
            return self.arrived[self.plan.key(source.of, micro)]
        if source.kind == "rows":
            assert micro is not None
            return self._place(rows_of(self.arrays[source.of], source, micro, self.plan.micro_batches), value, mesh)
        key = source, value.padded, value.dims, mesh
        if key not in self.placed:
            self.placed[key] = self._place(self._whole(source), value, mesh)
        return self.placed.pop(key) if i in piece.donated else self.placed[key]

    def _whole(self, source: ValueSource) -> Any:
        return self._joined(source.of) if source.kind == "joined" else self.arrays[source.of]

    def _add(self, key: tuple[Place, int], array: jax.Array, reduction: str) -> None:
        """Add a micro batch's terms."""
        known, array = self.sums.get(key), array.astype(sum_dtype(array.dtype))
        self.sums[key] = array if known is None else self._ready(COMBINED[reduction](known, array))

    def _sum(self, place: Place, output: int) -> jax.Array:
        return self.sums[place, output].astype(jnp.dtype(self.plan.by_place[place].outputs[output].dtype))

    def _joined(self, name: str) -> Any:
        """A value whose rows micro batches have made."""
        parts = [np.asarray(array) for _, array in sorted(self.rows[name].items())]
        return joined_rows(parts, *self.plan.joined[name])

    def _result(self, source: ValueSource) -> Any:
        if source.kind == "sum":
            stage, kind, output = source.of
            return whole_of(self._sum((stage, kind), output), self.plan.by_place[stage, kind].outputs[output])
        return self._whole(source)


def _jitted(piece: PieceSpec, grid: Grid, mesh: Mesh) -> Any:
    """A piece on whole (padded) arrays; terms of partial values lie along a dim ahead of the others."""
    function = partial(piece, XlaControl(), XlaCollectives(grid))

    def local(*blocks: jax.Array) -> tuple:
        pairs = zip(blocks, piece.inputs, strict=True)
        made = function(*(block[0] if one.partial else block for block, one in pairs))
        return tuple(block[None] if one.partial else block for block, one in zip(made, piece.outputs, strict=True))

    ins, outs = (tuple(map(spec_of, some)) for some in (piece.inputs, piece.outputs))
    inside = jax.shard_map(local, mesh=mesh, in_specs=ins, out_specs=outs, check_vma=False)
    return jax.jit(inside, donate_argnums=piece.donated)


def sum_dtype(dtype: Any) -> np.dtype:
    """What terms of a type are added up in: narrow floats in f32."""
    is_narrow = jnp.issubdtype(dtype, jnp.floating) and jnp.dtype(dtype).itemsize < 4
    return np.dtype(np.float32) if is_narrow else jnp.dtype(dtype)


def whole_of(array: jax.Array, value: BoundaryValue) -> jax.Array:
    """A value without padding, its terms added up."""
    if value.partial:
        array = reduce(COMBINED[value.reduction], [array[i] for i in range(array.shape[0])])
    return array if value.padded == value.shape else array[tuple(map(slice, value.shape))]


def main(plan: StandaloneStages, text: str) -> None:
    """Run from the command line, on devices of the host if there are no others."""
    told = arguments_of(text)
    jax.config.update("jax_num_cpu_devices", plan.world)
    given = dict(np.load(told.inputs)) if told.inputs else {}
    finished(plan.outputs, Stages(plan).run(given, told.steps), told.outputs)
