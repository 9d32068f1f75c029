"""A plan in stages as its exported code knows it: the pieces, where their inputs come from, and the ways between them.

What a piece reads is named as `execute/group.py` finds it: on a route, as rows of a micro batch, or as it was given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, count
from typing import Any

import numpy as np

from autoshard.engines.boxes import Box
from autoshard.engines.code import boundary_value
from autoshard.engines.groups import AxisPieces
from autoshard.engines.standalone import BoundaryValue
from autoshard.engines.standalone_stages import (
    PieceSpec,
    RouteSpec,
    SentBox,
    StageSpec,
    StandaloneStages,
    ValueSource,
    Wire,
)
from autoshard.engines.text import refs_of
from autoshard.ir.graph import Value
from autoshard.layout.mesh import AxisRef, Mesh
from autoshard.partition.program import Program, Register
from autoshard.pipeline.exports.one_device import WholePart
from autoshard.pipeline.planned.data import PipelineData
from autoshard.pipeline.planned.programs import Place, Ready, Route
from autoshard.pipeline.stages.whole import runs_per_micro_batch
from autoshard.pipeline.transfers.deal import Parcel, deal, passed_on
from autoshard.transform.micro.forms import MicroRows
from autoshard.util.errors import PlanError

PROLOGUE: Place = (-1, "D")
"""What follows from data alone."""
LOSS: Place = (-1, "L")
"""The loss, of the sums over micro batches."""


@dataclass(frozen=True, eq=False)
class StagesSpec:
    """What exported code of a plan in stages says.

    Attributes:
        has_boxes: whether it says what each rank sends to which.
        gradients: values of micro batches that are added to gradients of parameters, whose names these are.
        wires: by number how routes go from rank to rank where each rank sends to the one of the same place.
        terms: which outputs of the last stage's forward pass `loss` makes the loss of.
    """

    planned: PipelineData
    has_boxes: bool = False
    gradients: Mapping[Value, str] = field(default_factory=dict)
    wires: Mapping[int, Wire] = field(default_factory=dict)
    terms: tuple[int, ...] = ()
    loss: WholePart | None = None

    @cached_property
    def cuts(self) -> tuple[AxisPieces, ...]:
        """The pieces of the axes of each group's mesh, of which all its programs speak."""
        refs: list[set[AxisRef]] = [set() for _ in self.planned.groups]
        listed = [False] * len(refs)
        for (stage, _), ready in self.planned.programs.pieces.items():
            group = self.planned.schedule.ranks_of_stages[stage]
            own, is_listed = refs_of(ready.program)
            refs[group] |= own
            listed[group] |= is_listed
        groups = zip(self.planned.groups, refs, listed, strict=True)
        return tuple(AxisPieces(group.mesh, own, is_listed) for group, own, is_listed in groups)

    def cuts_of(self, stage: int) -> AxisPieces:
        """Those of the mesh of a stage; of the one device of what runs outside of stages."""
        if stage < 0:
            return AxisPieces(Mesh.flat(1), (), False)
        return self.cuts[self.planned.schedule.ranks_of_stages[stage]]

    @cached_property
    def parts(self) -> dict[Place, WholePart]:
        """What runs outside of stages."""
        data = WholePart.of(f"{self.planned.graph.name}.data", self.planned.whole.from_data)
        found = {PROLOGUE: data, LOSS: self.loss}
        return {place: part for place, part in found.items() if part is not None}

    @cached_property
    def programs(self) -> dict[Place, Program]:
        """The programs of all pieces, first of those outside of stages."""
        found = {place: part.program for place, part in self.parts.items()}
        return found | {place: ready.program for place, ready in self.planned.programs.pieces.items()}

    # -- names

    @cached_property
    def names(self) -> dict[Value, str]:
        """The names of what is there whole: inputs of the step, what follows from data, what is made once, rows; and of
        a micro batch's rows, and terms of the loss."""
        whole, body = self.planned.whole, self.planned.whole.pipeline.step.body
        values = dict.fromkeys(self.planned.graph.inputs)
        values.update(dict.fromkeys(value for node in whole.from_data for value in node.results))
        for (_, kind), ready in self.planned.programs.pieces.items():
            if not runs_per_micro_batch(kind):
                values.update(dict.fromkeys(ready.outputs))
        values.update(dict.fromkeys(value for value, (_, form) in body.outputs.items() if isinstance(form, MicroRows)))
        values.update(dict.fromkeys(body.slices))
        values.update(dict.fromkeys(value for part in self.parts.values() for value in part.graph.inputs))
        values.update(dict.fromkeys(value for part in self.parts.values() for value in part.graph.outputs))
        return dict(zip(values, numbered([value.name for value in values]), strict=True))

    @cached_property
    def _rows(self) -> dict[Value, Value]:
        """The values of a micro batch that are rows of a value of the step, and that value."""
        outputs = self.planned.whole.pipeline.step.body.outputs.items()
        return {one: value for value, (one, form) in outputs if isinstance(form, MicroRows)}

    # -- the plan

    def plan(self, functions: Mapping[Place, Any] | None = None) -> StandaloneStages:
        """All of it.

        Args:
            functions: what each piece runs.
        """
        planned, graph, run = self.planned, self.planned.graph, functions or {}
        outputs = numbered([value.name for value in graph.outputs])
        parts = {place: self._part(place, part, run.get(place)) for place, part in self.parts.items()}
        return StandaloneStages(
            stages=tuple(self._stage(number, run) for number in range(planned.stages)),
            routes=tuple(map(self._route, planned.programs.routes)),
            micro_batches=planned.schedule.micro_batches,
            inputs=tuple(_whole(value, self.names[value]) for value in graph.inputs),
            outputs=tuple(_whole(value, name) for value, name in zip(graph.outputs, outputs, strict=True)),
            results=tuple(map(self._result, planned.whole.outputs)),
            updates=dict(graph.updates),
            joined=dict(self._joined()),
            orders=tuple(" ".join(str(one) for one in order if one.computes) for order in planned.schedule.orders),
            prologue=parts.get(PROLOGUE),
            terms=self.terms,
            loss=parts.get(LOSS),
        )

    def _stage(self, number: int, run: Mapping[Place, Any]) -> StageSpec:
        group = self.planned.schedule.ranks_of_stages[number]
        ready = (self.planned.programs.pieces[number, kind] for kind in self.planned.whole.stages[number])
        pieces = {one.piece.kind: self._piece(one, run.get(one.place)) for one in ready}
        return StageSpec(number, group, self.planned.groups[group].ranks, self.cuts[group].grid, pieces)

    def _ends(self, values: Sequence[Value], registers: Sequence[Register], stage: int) -> tuple[BoundaryValue, ...]:
        pairs, cuts = zip(values, registers, strict=True), self.cuts_of(stage)
        return tuple(boundary_value(self.names.get(value, one.name), one, cuts) for value, one in pairs)

    def _piece(self, ready: Ready, run: Any) -> PieceSpec:
        stage, kind = ready.place
        body = self.planned.whole.pipeline.step.body
        carried = {one for one, _ in body.outputs.values()}
        once, pairs = not runs_per_micro_batch(kind), list(enumerate(ready.outputs))
        summed = {} if once else {i: body.terms[v].reduction for i, v in pairs if v in body.terms and v in carried}
        first = {value: i for i, value in reversed(pairs)}
        return PieceSpec(
            stage,
            kind,
            run,
            self._ends(ready.inputs, ready.program.inputs, stage),
            tuple(self._source(ready, value) for value in ready.inputs),
            self._ends(ready.outputs, ready.program.outputs, stage),
            sums=summed,
            rows={} if once else {i: self.names[self._rows[v]] for v, i in first.items() if v in self._rows},
            # The last of several layouts is the one that is no part of a sum.
            made={i: self.names[value] for value, i in dict((v, i) for i, v in pairs).items()} if once else {},
            gradients={i: self.gradients[value] for i, value in pairs if value in self.gradients},
            donated=tuple(sorted(self._donated(ready))),
        )

    def _part(self, place: Place, part: WholePart, run: Any) -> PieceSpec:
        graph, program = part.graph, part.program
        ends = self._ends(graph.inputs, program.inputs, -1), self._ends(graph.outputs, program.outputs, -1)
        sources = tuple(ValueSource("given", self.names[value]) for value in graph.inputs)
        made = {i: self.names[value] for i, value in enumerate(graph.outputs)}
        return PieceSpec(*place, run, ends[0], sources, ends[1], made=made)

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
        reader = self.planned.programs.pieces[route.readers[0]]
        register = reader.program.inputs[reader.inputs.index(route.value)]
        (value,) = self._ends((route.value,), (register,), route.stage)
        kinds = tuple(kind for _, kind in route.readers)
        boxes = route_boxes(route) if self.has_boxes else ((), ())
        moved, wire = not route.stays, self.wires.get(route.number)
        return RouteSpec(route.source, route.output, route.stage, kinds, value, moved, route.summed, *boxes, wire)

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


def named_spec(planned: PipelineData) -> StagesSpec:
    """What code of JAX says of a plan in stages.

    Raises:
        PlanError: layouts cut axes so that there are no common pieces, for which JAX's shardings have no names.
    """
    spec = StagesSpec(planned)
    for group, one in zip(planned.groups, spec.cuts, strict=True):
        if not one.is_named:
            raise PlanError(
                f"{planned.graph.name!r} cuts an axis of the mesh '{group.mesh}' of a group in ways that have "
                "no common pieces, or has lists of ranks: JAX's shardings have no names for those"
            )
    return spec


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


# What ranks of exported stages send each other, as boxes of their blocks.


def route_boxes(route: Route) -> tuple[tuple[SentBox, ...], tuple[SentBox, ...]]:
    """What goes from group to group on a route, then what the ranks of the one that reads pass on."""
    if route.stays:
        return (), ()
    before, after = route.before.group.ranks, route.after.group.ranks
    sent = sent_boxes(deal(route.before, route.after, route.spans, route.relayed), before, after)
    return sent, sent_boxes(passed_on(route.after, route.relayed), after, after)


def sent_boxes(parcels: Sequence[Parcel], sources: Sequence[int], targets: Sequence[int]) -> tuple[SentBox, ...]:
    """Parcels between ranks of meshes as boxes between those of all ranks."""
    return tuple(
        SentBox(sources[one.source], targets[one.target], _box(one.taken), _box(one.placed))
        for one in parcels
        if one.size
    )


def _box(place: Sequence[slice]) -> Box:
    return tuple((one.start, one.stop - one.start, 1) for one in place)
