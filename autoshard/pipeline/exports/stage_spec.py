"""A plan in stages as its exported code knows it: the pieces, where their inputs come from, and the ways between them.

What a piece reads is named as `execute/group.py` finds it: on a route, as rows of a micro batch, or as it was given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count

import numpy as np

from autoshard.engines.code import boundary_value
from autoshard.engines.groups import AxisPieces
from autoshard.engines.stage_pieces import PieceSpec, RouteSpec, StandaloneStages, ValueSource
from autoshard.engines.standalone import BoundaryValue
from autoshard.engines.text import refs_of
from autoshard.ir.graph import DATA, Graph, Value
from autoshard.layout.mesh import AxisRef, Mesh
from autoshard.partition.program import Program
from autoshard.pipeline.exports.one_device import one_device_program
from autoshard.pipeline.planned.data import PipelineData
from autoshard.pipeline.planned.programs import Place, Ready, Route
from autoshard.pipeline.schedules.schedule import Schedule
from autoshard.pipeline.stages.whole import runs_per_micro_batch
from autoshard.transform.micro.forms import MicroRows
from autoshard.transform.planned_graph import planned_graph
from autoshard.util.errors import PlanError

PROLOGUE: Place = (-1, "D")
"""What follows from data alone."""


@dataclass(frozen=True, eq=False)
class StagesSpec:
    """What exported code of a plan in stages says."""

    planned: PipelineData

    @cached_property
    def cuts(self) -> tuple[AxisPieces, ...]:
        """The pieces of the axes of each group's mesh, of which all its programs speak.

        Raises:
            PlanError: there are none, for which JAX's shardings have no names.
        """
        refs: list[set[AxisRef]] = [set() for _ in self.planned.groups]
        listed = [False] * len(refs)
        for (stage, _), ready in self.planned.programs.pieces.items():
            group = self.planned.schedule.ranks_of_stages[stage]
            own, is_listed = refs_of(ready.program)
            refs[group] |= own
            listed[group] |= is_listed
        groups = zip(self.planned.groups, refs, listed, strict=True)
        found = tuple(AxisPieces(group.mesh, own, is_listed) for group, own, is_listed in groups)
        for group, one in zip(self.planned.groups, found, strict=True):
            if not one.is_named:
                raise PlanError(
                    f"{self.planned.graph.name!r} cuts an axis of the mesh '{group.mesh}' of a group in ways that have "
                    "no common pieces, or has lists of ranks: JAX's shardings have no names for those"
                )
        return found

    def cuts_of(self, stage: int) -> AxisPieces:
        """Those of the mesh of a stage; of the prologue's one device."""
        if stage == PROLOGUE[0]:
            return AxisPieces(Mesh.flat(1), (), False)
        return self.cuts[self.planned.schedule.ranks_of_stages[stage]]

    @cached_property
    def programs(self) -> dict[Place, Program]:
        """The programs of all pieces, and of the prologue, if there is one."""
        found = {} if self._prologue is None else {PROLOGUE: self._prologue[1]}
        return found | {place: ready.program for place, ready in self.planned.programs.pieces.items()}

    @cached_property
    def _prologue(self) -> tuple[Graph, Program] | None:
        nodes = self.planned.whole.from_data
        made = tuple(value for node in nodes for value in node.results)
        if not made:
            return None
        read = tuple(dict.fromkeys(value for node in nodes for value in node.uses if value not in made))
        graph = Graph(f"{self.planned.graph.name}.data", read, nodes, made, (DATA,) * len(read))
        graph, _ = planned_graph(graph, {})
        return graph, one_device_program(graph)

    # -- names

    @cached_property
    def names(self) -> dict[Value, str]:
        """The names of what is there whole: inputs of the step, what follows from data, what is made once, rows."""
        whole, body = self.planned.whole, self.planned.whole.pipeline.step.body
        values = dict.fromkeys(self.planned.graph.inputs)
        values.update(dict.fromkeys(value for node in whole.from_data for value in node.results))
        for (_, kind), ready in self.planned.programs.pieces.items():
            if not runs_per_micro_batch(kind):
                values.update(dict.fromkeys(ready.outputs))
        values.update(dict.fromkeys(value for value, (_, form) in body.outputs.items() if isinstance(form, MicroRows)))
        return dict(zip(values, numbered([value.name for value in values]), strict=True))

    @cached_property
    def _rows(self) -> dict[Value, Value]:
        """The values of a micro batch that are rows of a value of the step, and that value."""
        outputs = self.planned.whole.pipeline.step.body.outputs.items()
        return {one: value for value, (one, form) in outputs if isinstance(form, MicroRows)}

    # -- the plan

    @property
    def plan(self) -> StandaloneStages:
        """All of it."""
        planned, schedule = self.planned, self.planned.schedule
        graph = planned.graph
        outputs = numbered([value.name for value in graph.outputs])
        return StandaloneStages(
            grids=tuple(one.grid for one in self.cuts),
            devices=tuple(group.ranks for group in planned.groups),
            groups=schedule.ranks_of_stages,
            orders=tuple(_order(schedule, group) for group in range(schedule.ranks)),
            micro_batches=schedule.micro_batches,
            inputs=tuple(_whole(value, self.names[value]) for value in graph.inputs),
            outputs=tuple(_whole(value, name) for value, name in zip(graph.outputs, outputs, strict=True)),
            results=tuple(map(self._result, planned.whole.outputs)),
            updates=dict(graph.updates),
            pieces=tuple(map(self._piece, planned.programs.pieces.values())),
            routes=tuple(map(self._route, planned.programs.routes)),
            joined=dict(self._joined()),
            prologue=self._data_piece(),
        )

    def _boundary(self, program: Program, stage: int, is_input: bool) -> tuple[BoundaryValue, ...]:
        registers, cuts = program.inputs if is_input else program.outputs, self.cuts_of(stage)
        return tuple(boundary_value(one.name, one, cuts) for one in registers)

    def _piece(self, ready: Ready) -> PieceSpec:
        stage, kind = ready.place
        body = self.planned.whole.pipeline.step.body
        carried = {one for one, _ in body.outputs.values()}
        once, pairs = not runs_per_micro_batch(kind), list(enumerate(ready.outputs))
        summed = {} if once else {i: body.terms[v].reduction for i, v in pairs if v in body.terms and v in carried}
        first = {value: i for i, value in reversed(pairs)}
        return PieceSpec(
            stage,
            kind,
            self._boundary(ready.program, stage, True),
            tuple(self._source(ready, value) for value in ready.inputs),
            self._boundary(ready.program, stage, False),
            sums=summed,
            rows={} if once else {i: self.names[self._rows[v]] for v, i in first.items() if v in self._rows},
            # The last of several layouts is the one that is no part of a sum.
            made={i: self.names[value] for value, i in dict((v, i) for i, v in pairs).items()} if once else {},
            donated=tuple(sorted(self._donated(ready))),
        )

    def _source(self, ready: Ready, value: Value) -> ValueSource:
        route = self.planned.programs.arriving[ready.place].get(value)
        if route is not None:
            return ValueSource("route", route.number)
        body = self.planned.whole.pipeline.step.body
        if value in body.slices:
            whole, part = body.slices[value]
            return ValueSource("rows", self.names[whole], part.dim, part.inner)
        return ValueSource("joined" if value in self._rows.values() else "given", self.names[value])

    def _donated(self, ready: Ready) -> Iterator[int]:
        """What the update replaces, where no other piece of the update reads it."""
        for into in ready.program.updates.values():
            value = ready.inputs[into]
            readers = [
                other
                for (_, kind), other in self.planned.programs.pieces.items()
                if not runs_per_micro_batch(kind) and value in other.inputs
            ]
            if not runs_per_micro_batch(ready.piece.kind) and readers == [ready] and value in self.planned.graph.inputs:
                yield into

    def _route(self, route: Route) -> RouteSpec:
        repeated = runs_per_micro_batch(route.source[1])
        once, parts = not route.is_repeated, self.planned.schedule.micro_batches
        reads = sum(parts if once and runs_per_micro_batch(kind) else 1 for _, kind in route.readers)
        reader = self.planned.programs.pieces[route.readers[0]]
        register = reader.program.inputs[reader.inputs.index(route.value)]
        value = boundary_value(route.value.name, register, self.cuts_of(route.stage))
        return RouteSpec(route.source, route.output, route.stage, value, reads, not route.stays, route.summed, repeated)

    def _result(self, value: Value) -> ValueSource:
        planned, body = self.planned, self.planned.whole.pipeline.step.body
        known = {*planned.graph.inputs, *(one for node in planned.whole.from_data for one in node.results)}
        if value in self._rows:
            return ValueSource("joined", self.names[self._rows[value]])
        if value in body.terms and value not in known:
            maker = planned.whole.makers[value]
            ready = planned.programs.pieces[min(maker), maker[min(maker)].kind]
            return ValueSource("sum", (*ready.place, ready.outputs.index(value)))
        return ValueSource("given" if value in known else "made", self.names[value])

    def _joined(self) -> Iterator[tuple[str, tuple[tuple[int, ...], int, int]]]:
        for value, (_, form) in self.planned.whole.pipeline.step.body.outputs.items():
            if isinstance(form, MicroRows):
                yield self.names[value], (value.type.shape, form.dim, form.inner)

    def _data_piece(self) -> PieceSpec | None:
        if self._prologue is None:
            return None
        graph, program = self._prologue
        ins, outs = self._boundary(program, PROLOGUE[0], True), self._boundary(program, PROLOGUE[0], False)
        sources = tuple(ValueSource("given", self.names[value]) for value in graph.inputs)
        made = {i: self.names[value] for i, value in enumerate(graph.outputs)}
        return PieceSpec(*PROLOGUE, ins, sources, outs, made=made)


def _order(schedule: Schedule, group: int) -> str:
    return " ".join(str(action) for action in schedule.orders[group] if action.computes)


def _whole(value: Value, name: str) -> BoundaryValue:
    shape = value.type.shape
    return BoundaryValue(name, shape, shape, np.dtype(value.type.dtype.numpy).name, ((),) * len(shape))


def numbered(names: Sequence[str]) -> list[str]:
    """The names, those that come again numbered.

    >>> numbered(["x", "y", "x", "x_1"])
    ['x', 'y', 'x_1', 'x_1_1']
    """
    taken: set[str] = set()
    found = []
    for name in names:
        free = next(one for one in chain((name,), (f"{name}_{i}" for i in count(1))) if one not in taken)
        taken.add(free)
        found.append(free)
    return found
