"""Exported stages on JAX: the pieces of each stage under `jax.shard_map` on its own mesh, and what plays the schedule.

This file needs numpy and jax, and files that need no more: exported code carries it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from autoshard.engines.jax_blocks import mesh_of, spec_of
from autoshard.engines.stage_pieces import PieceSpec, Place, RouteSpec, StandaloneStages, ValueSource, rows_of
from autoshard.engines.standalone import BoundaryValue, arguments_of, arrays_of, finished

COMBINED = {"sum": jnp.add, "max": jnp.maximum, "min": jnp.minimum, "prod": jnp.multiply}
"""How terms are added up."""


class Stages:
    """The pieces of all stages on devices.

    `pieces[stage, kind]` is a piece as `jax.jit` gives it, of whole (padded) arrays that lie as `shardings(stage, ...)`
    says; `run` plays them all by the schedule.

    Args:
        functions: for each piece its function of blocks; for the prologue that of (-1, "D").
        devices: all devices, by default those of JAX.
    """

    def __init__(
        self, plan: StandaloneStages, functions: Mapping[Place, Callable], devices: Sequence[Any] | None = None
    ) -> None:
        self.plan = plan
        pairs = zip(plan.grids, plan.devices, strict=True)
        self.meshes = tuple(mesh_of(grid, ranks, devices) for grid, ranks in pairs)
        self.pieces = {one.place: _jitted(one, functions[one.place], self.mesh(one.stage)) for one in plan.pieces}
        self.prologue: Any = None
        if plan.prologue is not None:
            first = Mesh(self.meshes[0].devices.flat[:1], ("d",))
            self.prologue = _jitted(plan.prologue, functions[plan.prologue.place], first)

    def mesh(self, stage: int) -> Mesh:
        """The mesh of a stage."""
        return self.meshes[self.plan.groups[stage]]

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
        self.leaving: dict[Place, list[int]] = {}
        for number, route in enumerate(self.plan.routes):
            self.leaving.setdefault(route.source, []).append(number)

    def run(self) -> list[Any]:
        """Play the step; its outputs, whole."""
        self._prologue()
        for piece in self.plan.pieces:
            if piece.kind == "P":
                self._do(piece, None)
        for piece, micro in self.plan.played():
            self._do(piece, micro)
        for number, route in enumerate(self.plan.routes):
            if route.summed:
                self._send(number, self._sum(route.source, route.output), None)
        for piece in self.plan.rounds():
            self._do(piece, None)
        return [self._result(source) for source in self.plan.results]

    def _prologue(self) -> None:
        piece = self.plan.prologue
        if piece is not None:
            inputs = [jnp.asarray(self.arrays[source.of], jnp.dtype(one.dtype)) for one, source in _inputs(piece)]
            for i, array in enumerate(self.stages.prologue(*inputs)):
                self.arrays[piece.made[i]] = np.asarray(array)

    def _key(self, number: int, micro: int | None) -> tuple[int, int | None]:
        route = self.plan.routes[number]
        return number, micro if route.repeated and not route.summed else None

    def _do(self, piece: PieceSpec, micro: int | None) -> None:
        """Run a piece, send on what it makes, and let go of what it has read last."""
        made = self.stages.pieces[piece.place](*(self._input(piece, i, micro) for i in range(len(piece.inputs))))
        if self.on_host:
            # On devices of the host, programs that run at once may leave the collectives of each other no thread.
            made = jax.block_until_ready(made)
        for number in {source.of for source in piece.sources if source.kind == "route"}:
            self._let_go(self._key(number, micro))
        for i, reduction in piece.sums.items():
            self._add((piece.place, i), made[i], reduction)
        for i, name in piece.rows.items():
            self.rows.setdefault(name, {})[micro or 0] = whole_of(made[i], piece.outputs[i])
        for i, name in piece.made.items():
            self.arrays[name] = whole_of(made[i], piece.outputs[i])
        for number in self.leaving.get(piece.place, ()):
            route = self.plan.routes[number]
            if not route.summed:
                self._send(number, made[route.output], micro)

    def _let_go(self, key: tuple[int, int | None]) -> None:
        self.reads[key] -= 1
        if not self.reads[key]:
            del self.arrived[key]

    def _send(self, number: int, array: jax.Array, micro: int | None) -> None:
        """Bring a value to the stage that reads it."""
        route, key = self.plan.routes[number], self._key(number, micro)
        self.reads[key] = route.reads
        self.arrived[key] = self._moved(array, route) if route.moved else array

    def _moved(self, array: jax.Array, route: RouteSpec) -> jax.Array:
        before = self.plan.by_place[route.source].outputs[route.output]
        return self._place(whole_of(array, before), route.value, self.plan.groups[route.stage])

    def _place(self, array: Any, value: BoundaryValue, group: int) -> jax.Array:
        """A whole array as a piece on a group takes it: of its type, padded, split."""
        if isinstance(array, jax.Array):
            given = array.astype(jnp.dtype(value.dtype))
            if value.padded != value.shape:
                given = jnp.pad(given, [(0, new - old) for old, new in zip(value.shape, value.padded, strict=True)])
        else:
            given = value.pad(np.asarray(array)).astype(jnp.dtype(value.dtype))
        return self._ready(jax.device_put(given, NamedSharding(self.stages.meshes[group], spec_of(value))))

    def _ready(self, array: jax.Array) -> jax.Array:
        return jax.block_until_ready(array) if self.on_host else array

    def _input(self, piece: PieceSpec, i: int, micro: int | None) -> jax.Array:
        source, value, group = piece.sources[i], piece.inputs[i], self.plan.groups[piece.stage]
        if source.kind == "route":
            return self.arrived[self._key(source.of, micro)]
        if source.kind == "rows":
            assert micro is not None
            return self._place(rows_of(self.arrays[source.of], source, micro, self.plan.micro_batches), value, group)
        key = source, value.padded, value.dims, group
        if key not in self.placed:
            self.placed[key] = self._place(self._whole(source), value, group)
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
        shape, dim, inner = self.plan.joined[name]
        parts = [np.asarray(array) for _, array in sorted(self.rows[name].items())]
        runs = [one.reshape(*one.shape[:dim], one.shape[dim] // inner, inner, *one.shape[dim + 1 :]) for one in parts]
        return np.stack(runs, dim + 1).reshape(shape)

    def _result(self, source: ValueSource) -> Any:
        if source.kind == "sum":
            stage, kind, output = source.of
            return whole_of(self._sum((stage, kind), output), self.plan.by_place[stage, kind].outputs[output])
        return self._whole(source)


def _inputs(piece: PieceSpec) -> Any:
    return zip(piece.inputs, piece.sources, strict=True)


def _jitted(piece: PieceSpec, function: Callable, mesh: Mesh) -> Any:
    """A piece on whole (padded) arrays; terms of partial values lie along a dim ahead of the others."""

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


def main(plan: StandaloneStages, functions: Mapping[Place, Callable], text: str) -> None:
    """Run from the command line, on devices of the host if there are no others."""
    told = arguments_of(text)
    jax.config.update("jax_num_cpu_devices", 1 + max(map(max, plan.devices)))
    given = dict(np.load(told.inputs)) if told.inputs else {}
    finished(plan.outputs, Stages(plan, functions).run(given, told.steps), told.outputs)
