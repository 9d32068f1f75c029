"""A plan in stages as a module of Shardy's MPMD dialect: a fragment for each piece and micro batch, in the order of the
schedule, transfers between the groups, and the layouts of what goes in and out as shardings of Shardy.

It is what Shardy's partitioner has after its own import: meshes are assigned, transfers are there. Beside the pieces
there are fragments that take rows of micro batches out of data, that put rows together, and that gather a value which
goes to a mesh of other axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters.mlir import dtype_to_ir_type
from jaxlib.mlir import ir

from autoshard.engines.check import check_runs
from autoshard.engines.kernels import kernels_of
from autoshard.engines.standalone import BoundaryValue
from autoshard.engines.standalone_jax_stages import COMBINED, sum_dtype
from autoshard.engines.standalone_stages import PieceSpec, Place, RouteSpec, ValueSource, joined_rows, rows_of
from autoshard.ir.graph import Value
from autoshard.pipeline.exports.mpmd_bodies import Function, MpmdBody, body_of, example, laid, mpmd_context, traced
from autoshard.pipeline.exports.mpmd_text import Fragment, MeshTensor, MpmdText, sharding_of
from autoshard.pipeline.exports.stage_spec import StagesSpec, named_spec
from autoshard.pipeline.planned.data import PipelineData
from autoshard.search.one_device import one_device_program

_HALVES = {"I": "split_keep_transferred", "W": "split_drop_transferred"}


def mpmd_module(planned: PipelineData) -> str:
    """The module's text, parsed and verified by the dialect.

    Raises:
        PlanError: an operator that JAX does not run, or axes that are cut in ways without common pieces.

    >>> import numpy as np
    >>> from autoshard import nn, trace
    >>> from autoshard.pipeline import plan_pipeline
    >>> net, x = nn.SequentialCell(nn.Dense(6, 8), nn.Dense(8, 4)), np.ones((12, 6), np.float32)
    >>> text = mpmd_module(plan_pipeline(trace(net, x), mesh="pp=2", micro_batches=3, schedule="gpipe"))
    >>> text.count("mpmd.transfer"), text.count('origin=["stage1"], stage=1')
    (3, 3)
    """
    writer = _StepWriter(named_spec(planned))
    text = writer.text()
    with mpmd_context():
        module = ir.Module.parse(text)
        module.operation.verify()
        return "\n".join((*writer.head(), str(module)))


def _type(shape: Sequence[int], dtype: np.dtype) -> str:
    with mpmd_context(), ir.Location.unknown():
        return str(ir.RankedTensorType.get(list(shape), dtype_to_ir_type(dtype)))


class _StepWriter:
    def __init__(self, spec: StagesSpec) -> None:
        self.spec, self.plan = spec, spec.plan()
        self.main = MpmdText(spec.planned.graph.name, self.plan.grids)
        self.arrays: dict[str, MeshTensor] = {}
        self.rows: dict[tuple, list[MeshTensor]] = {}
        self.made_rows: dict[str, dict[int, tuple[MeshTensor, BoundaryValue]]] = {}
        self.arrived: dict[tuple[int, int | None], MeshTensor] = {}
        self.sums: dict[tuple[Place, int], MeshTensor] = {}
        self._bodies: dict[tuple, MpmdBody] = {}
        self._functions: dict[Place, Function] = {}
        played = [(piece.place, micro) for piece, micro in self.plan.played()]
        self.firsts = {place: micro for place, micro in reversed(played)}
        self.lasts = dict(played)

    def head(self) -> list[str]:
        """Comments: what it is, and the names of arguments and results."""
        arguments = (f"// %arg{i}: {one.name}" for i, one in enumerate(self.plan.inputs))
        results = (f"// result {i}: {one.name}" for i, one in enumerate(self.plan.outputs))
        return [f"// {self.spec.planned.graph.name} in {self.spec.planned.described_devices}", *arguments, *results]

    def text(self) -> str:
        """The module, as it is written; once."""
        for value, one in zip(self.spec.planned.graph.inputs, self.plan.inputs, strict=True):
            self.arrays[one.name] = self._argument(value, one)
        self._prologue()
        self.plan.play(self._do, self._send_sum)
        results = [self._result(source) for source in self.plan.results]
        for out, into in self.plan.updates.items():
            if results[out][1:] == self.main.arguments[into][1:]:
                self.main.aliases[into] = out
        return self.main.module(results)

    # -- what goes in

    def _argument(self, value: Value, one: BoundaryValue) -> MeshTensor:
        """An input of the step, which lies as the piece reads it that updates it, or the first that reads it."""
        read = [
            (piece, i)
            for piece in self.plan.pieces
            for i, source in enumerate(piece.sources)
            if source.of == one.name and source.kind in ("given", "rows")
        ]
        tensor = _type(one.shape, example(value).dtype)
        if not read:
            return self.main.argument(0, tensor, sharding_of(one, self.plan.grids[0]))
        piece, i = next((pair for pair in read if pair[1] in pair[0].donated), read[0])
        group = self.plan.groups[piece.stage]
        return self.main.argument(group, tensor, sharding_of(piece.inputs[i], self.plan.grids[group], one.shape))

    def _prologue(self) -> None:
        piece = self.plan.prologue
        if piece is None:
            return
        given = [self.arrays[source.of] for source in piece.sources]
        operands = [self.main.sent(one, 0) for one in given]
        body = self._body(piece, True, True)
        made = self.main.fragment(Fragment('"data"', 0), operands, body, self._shardings(piece))
        self.arrays.update((piece.made[i], one) for i, one in enumerate(made))

    # -- pieces

    def _do(self, piece: PieceSpec, micro: int | None) -> None:
        group = self.plan.groups[piece.stage]
        place = piece.place
        is_first, is_last = micro == self.firsts.get(place), micro == self.lasts.get(place)
        operands = [self._input(piece, i, micro) for i in range(len(piece.inputs))]
        operands += [] if is_first else [self.sums[place, i] for i in piece.sums]
        half = _HALVES.get(piece.kind, "") if (piece.stage, "I") in self.plan.by_place else ""
        of = Fragment(_origin(piece), group, piece.stage, micro, half)
        made = self.main.fragment(of, operands, self._body(piece, is_first, is_last), self._shardings(piece))
        self.sums.update(((place, i), made[i]) for i in piece.sums)
        for i, name in piece.rows.items():
            self.made_rows.setdefault(name, {})[micro or 0] = made[i], piece.outputs[i]
        self.arrays.update((name, made[i]) for i, name in piece.made.items())
        for number in self.plan.leaving[place]:
            route = self.plan.routes[number]
            if not route.summed:
                self._send(number, made[route.output], micro)

    def _send_sum(self, number: int, route: RouteSpec) -> None:
        self._send(number, self.sums[route.source, route.output], None)

    def _send(self, number: int, one: MeshTensor, micro: int | None) -> None:
        group = self.plan.groups[self.plan.routes[number].stage]
        self.arrived[self.plan.key(number, micro)] = self.main.sent(one, group)

    def _shardings(self, piece: PieceSpec) -> list[str]:
        grid = self.plan.grids[self.plan.groups[piece.stage] if piece.stage >= 0 else 0]
        return [sharding_of(one, grid) for one in piece.outputs]

    def _input(self, piece: PieceSpec, i: int, micro: int | None) -> MeshTensor:
        source, value, group = piece.sources[i], piece.inputs[i], self.plan.groups[piece.stage]
        if source.kind == "route":
            return self.arrived[self.plan.key(source.of, micro)]
        if source.kind == "rows":
            assert micro is not None
            return self._rows_of(source, value, group)[micro]
        return self.main.sent(self._whole(source), group)

    def _whole(self, source: ValueSource) -> MeshTensor:
        return self._joined(source.of) if source.kind == "joined" else self.arrays[source.of]

    def _rows_of(self, source: ValueSource, value: BoundaryValue, group: int) -> list[MeshTensor]:
        """The rows of all micro batches of a value, as pieces on a group read them."""
        key = source, value.dims, group
        if key not in self.rows:
            whole, grid, count = self.arrays[source.of], self.plan.grids[group], self.plan.micro_batches
            of = self._example(source.of)
            operand = self.main.sent(whole, group)

            def function(x: Any) -> tuple:
                return tuple(rows_of(x, source, micro, count) for micro in range(count))

            body = body_of(function, (of,), self.main.symbol(group))
            fragment = Fragment(f'"{source.of}.rows"', group)
            self.rows[key] = self.main.fragment(fragment, (operand,), body, [sharding_of(value, grid)] * count)
        return self.rows[key]

    def _joined(self, name: str) -> MeshTensor:
        """A value out of the rows that micro batches have made, on the group that makes them."""
        if name not in self.arrays:
            shape, dim, inner = self.plan.joined[name]
            rows = [one for _, one in sorted(self.made_rows[name].items())]
            group, value = rows[0][0].group, rows[0][1]
            dtype = self._example(name).dtype

            def function(*parts: Any) -> tuple:
                return (joined_rows(parts, shape, dim, inner, jnp.stack),)

            examples = [jax.ShapeDtypeStruct(value.shape, dtype)] * len(rows)
            body = body_of(function, examples, self.main.symbol(group))
            sharding = sharding_of(value, self.plan.grids[group], shape)
            fragment = Fragment(f'"{name}.joined"', group)
            self.arrays[name] = self.main.fragment(fragment, [one for one, _ in rows], body, (sharding,))[0]
        return self.arrays[name]

    def _result(self, source: ValueSource) -> MeshTensor:
        if source.kind == "sum":
            stage, kind, output = source.of
            return self.sums[(stage, kind), output]
        return self._whole(source)

    # -- bodies

    @cached_property
    def _values(self) -> dict[str, Value]:
        return {name: value for value, name in self.spec.names.items()}

    def _example(self, name: str) -> jax.ShapeDtypeStruct:
        return example(self._values[name])

    def _body(self, piece: PieceSpec, is_first: bool, is_last: bool) -> MpmdBody:
        """The body of a piece, which adds to what micro batches gave before, unless it is the first one."""
        # Nothing is told apart that leads to the same body.
        is_first = is_first or not piece.sums
        is_last = is_last or all(_widened(one) == one for one in map(_shaped, piece.outputs))
        key = piece.place, is_first, is_last
        if key not in self._bodies:
            group = self.plan.groups[piece.stage] if piece.stage >= 0 else 0
            function = _adding(piece, self._function(piece.place), is_first, is_last)
            function = laid(function, piece.inputs, self.spec.cuts_of(piece.stage).grid)
            examples = [_shaped(one) for one in piece.inputs]
            if not is_first:
                examples += [_widened(_shaped(piece.outputs[i])) for i in piece.sums]
            self._bodies[key] = body_of(function, examples, self.main.symbol(group))
        return self._bodies[key]

    def _function(self, place: Place) -> Function:
        if place not in self._functions:
            self._functions[place] = self._traced(place)
        return self._functions[place]

    def _traced(self, place: Place) -> Function:
        if place[0] < 0:
            return traced(self.spec.programs[place], {}, self.spec.cuts_of(place[0]))
        ready = self.spec.planned.programs.pieces[place]
        outputs = tuple(dict.fromkeys(ready.outputs))
        graph = replace(ready.piece.graph, outputs=outputs)
        program = one_device_program(graph)
        check_runs(program, kernels_of("xla"))
        function = traced(program, self.spec.planned.plans[place[0]].layouts, self.spec.cuts_of(place[0]))
        order = [outputs.index(value) for value in ready.outputs]

        def in_all_layouts(*inputs: Any) -> tuple:
            made = function(*inputs)
            return tuple(made[i] for i in order)

        return in_all_layouts


def _adding(piece: PieceSpec, function: Function, is_first: bool, is_last: bool) -> Function:
    def run(*given: Any) -> tuple:
        made = list(function(*given[: len(piece.inputs)]))
        totals = dict(zip(piece.sums, given[len(piece.inputs) :], strict=False))
        for i, reduction in piece.sums.items():
            term = made[i].astype(sum_dtype(made[i].dtype))
            total = term if is_first else COMBINED[reduction](totals[i], term)
            made[i] = total.astype(made[i].dtype) if is_last else total
        return tuple(made)

    return run


def _widened(of: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(of.shape, sum_dtype(of.dtype))


def _shaped(one: BoundaryValue) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(one.shape, jnp.dtype(one.dtype))


def _origin(piece: PieceSpec) -> str:
    """The name of the computation that a fragment is of; that of a backward, as JAX's transposition names it."""
    name = f"stage{piece.stage}"
    if piece.kind in "IW":
        return f'"{name}"(1)'
    return f'"{name}"' if piece.kind == "F" else f'"{name}.{"once" if piece.kind == "P" else "update"}"'
