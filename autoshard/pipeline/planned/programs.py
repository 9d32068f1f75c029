"""The programs of the pieces of all stages, and the routes on which values go from piece to piece.

A route begins in the register in which a piece leaves a value and ends in that in which pieces of one stage want it: in
the same one, in other blocks of the same group, or on another group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from autoshard.ir.graph import Value
from autoshard.layout.layout import Layout
from autoshard.partition.program import Program, Register
from autoshard.pipeline.planned.stage_plan import StageGraph, piece_plan
from autoshard.pipeline.schedules.action import Action
from autoshard.pipeline.stages.cut import StagePiece
from autoshard.pipeline.stages.whole import StagedStep, runs_per_micro_batch
from autoshard.pipeline.transfers.deal import GroupLayout, is_same
from autoshard.pipeline.transfers.group import RankGroup
from autoshard.pipeline.transfers.price import TransferPath, cheapest_way, node_spans
from autoshard.plan.plan import Plan
from autoshard.search.program_price import program_of
from autoshard.transform.micro.forms import MicroPartial
from costmodel import Hardware

Place = tuple[int, str]
"""A stage and the kind of one of its pieces."""


@dataclass(frozen=True)
class Ready:
    """A piece that can be run: its program, whose inputs and outputs are these values."""

    piece: StagePiece
    program: Program
    plan: Plan = field(repr=False)

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values that go in."""
        return self.piece.graph.inputs

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The values that come out; one in several layouts comes out several times."""
        return self.plan.graph.outputs

    @property
    def place(self) -> Place:
        """Its stage and kind."""
        return self.piece.stage, self.piece.kind


@dataclass(frozen=True)
class Route:
    """A value on its way from a piece to those of one stage that want it in one form.

    Attributes:
        number: of all routes of a step.
        source: the piece that makes it, and which of its outputs it is.
        stage: of those that read it.
        before, after: how it lies when it is made and when it is read.
        summed: whether it goes once in a step, when what micro batches gave has been added up.
        spans, relayed: which ranks lie near each other, and which pass on what they receive, as for `deal`.
    """

    number: int
    value: Value
    source: Place
    output: int
    stage: int
    before: GroupLayout
    after: GroupLayout
    readers: tuple[Place, ...]
    summed: bool
    spans: tuple[int, ...] = ()
    relayed: int = 0

    @property
    def stays(self) -> bool:
        """Whether all ranks have it already as it is wanted."""
        return is_same(self.before, self.after)

    @property
    def maker(self) -> str:
        """Where it comes from, in words."""
        return f"stage {self.source[0]}"

    @property
    def is_repeated(self) -> bool:
        """Whether it goes for each micro batch."""
        return runs_per_micro_batch(self.source[1]) and not self.summed


def held_in(group: RankGroup, register: Register) -> GroupLayout:
    """How a register's value lies on a group."""
    return GroupLayout(group, register.layout, register.true.shape, register.whole.shape)


@dataclass(frozen=True, eq=False)
class Programs:
    """All programs and routes of a step."""

    pieces: Mapping[Place, Ready]
    routes: tuple[Route, ...]
    ways: Mapping[tuple[Value, int], TransferPath]

    @cached_property
    def arriving(self) -> dict[Place, dict[Value, Route]]:
        """For each piece the routes by which what it reads comes."""
        found: dict[Place, dict[Value, Route]] = {place: {} for place in self.pieces}
        for route in self.routes:
            for place in route.readers:
                found[place][route.value] = route
        return found

    @cached_property
    def leaving(self) -> dict[Place, tuple[Route, ...]]:
        """For each piece the routes that begin there."""
        found: dict[Place, tuple[Route, ...]] = dict.fromkeys(self.pieces, ())
        for route in self.routes:
            found[route.source] = (*found[route.source], route)
        return found

    def places(self, action: Action) -> tuple[Place, ...]:
        """The pieces that an action runs, in order; none of sends and receives."""
        return tuple((action.stage, kind) for kind in action.pieces if (action.stage, kind) in self.pieces)

    def held_as(self, route: Route) -> tuple[object, int]:
        """What stands for a route in memory, and its bytes: values that a program leaves in one register are one."""
        block = route.value.type.dtype.itemsize
        for size in route.after.local:
            block *= size
        register = self.pieces[route.source].program.outputs[route.output]
        return (register if route.stays else route.number), block


class Maker:
    """Lowers the pieces of all stages."""

    def __init__(
        self,
        whole: StagedStep,
        graphs: Sequence[StageGraph],
        plans: Sequence[Plan],
        groups: Sequence[RankGroup],
        hardware: Sequence[Hardware],
        across: Hardware,
        passes: tuple[str, ...],
    ) -> None:
        self.whole, self.graphs, self.plans, self.groups = whole, graphs, plans, groups
        self.hardware, self.across, self.passes = hardware, across, passes
        self.terms = whole.pipeline.step.body.terms
        self.sliced = {of for of, _ in whole.pipeline.step.body.slices.values()}
        self.spans = node_spans(across)
        self.final: set[tuple[int, Value]] = set()
        self.ways: dict[tuple[Value, int], TransferPath] = {}

    def run(self) -> Programs:
        """Lower all pieces, and once more those that would leave terms in blocks of another size than they are read."""
        self._choose_ways()
        while True:
            pieces = {ready.place: ready for ready in self._lowered()}
            routes = tuple(self._routes(pieces))
            wrong = {(route.source[0], route.value) for route in routes if self._is_torn(route)}
            if not wrong:
                return Programs(pieces, routes, self.ways)
            self.final |= wrong

    def _is_torn(self, route: Route) -> bool:
        return not route.stays and bool(route.before.layout.partial)

    def _choose_ways(self) -> None:
        for place, value in self._reads():
            maker = self.whole.maker(value, place[0])
            if maker is not None and maker.stage != place[0] and (value, place[0]) not in self.ways:
                made, wanted = self._left(maker.stage, value), self.plans[place[0]].layouts[value]
                groups = self.groups[maker.stage], self.groups[place[0]]
                self.ways[value, place[0]] = cheapest_way(value.type, made, wanted, groups, self.across)

    def _reads(self) -> Iterator[tuple[Place, Value]]:
        for stage, graph in enumerate(self.graphs):
            for kind, piece in graph.pieces.items():
                yield from (((stage, kind), value) for value in piece.graph.inputs)

    def _left(self, stage: int, value: Value) -> Layout:
        """How a stage leaves a value that its own pieces read: terms of what is no sum are not added up later."""
        layout, term = self.plans[stage].layouts[value], self.terms.get(value)
        torn = (stage, value) in self.final or term is not None and not _adds_up(layout, term)
        return layout.final() if torn else layout

    def _lowered(self) -> Iterator[Ready]:
        for stage, graph in enumerate(self.graphs):
            for piece in graph.pieces.values():
                outputs = tuple(dict.fromkeys(self._leaving(piece)))
                held = {value: self._lies(stage, value) for value in piece.graph.inputs}
                plan = piece_plan(self.plans[stage], piece, held, outputs, self.whole.pipeline.step.graph.tied)
                yield Ready(piece, program_of(plan, self.hardware[stage], self.passes)[0], plan)

    def _lies(self, stage: int, value: Value) -> Layout:
        """How a value lies where a stage's pieces read it."""
        if (value, stage) in self.ways:
            return self.ways[value, stage].received.layout
        return self._left(stage, value) if self.whole.maker(value, stage) else self.plans[stage].layouts[value]

    def _leaving(self, piece: StagePiece) -> Iterator[tuple[Value, Layout]]:
        """What a piece makes for other pieces and as results, and how that leaves."""
        stage, layouts = piece.stage, self.plans[piece.stage].layouts
        results, tied = set(self.whole.outputs), self.whole.tied
        for value in piece.graph.outputs:
            own = any(value in other.graph.inputs for other in self.graphs[stage].pieces.values())
            if own or value in self.terms:
                yield value, self._left(stage, value)
            yield from ((value, layout) for layout in self._sent(stage, value))
            if value in self.sliced:
                yield value, layouts[value].final()
            if value in results and value not in self.terms:
                known = value in tied and tied[value] in layouts
                yield value, layouts[tied[value]] if known else layouts[value].final()

    def _sent(self, stage: int, value: Value) -> Iterator[Layout]:
        """The layouts in which a value sets out from a stage for others."""
        for (one, target), way in self.ways.items():
            maker = self.whole.maker(value, target) if one is value else None
            if maker is not None and maker.stage == stage:
                yield way.sent.layout

    def _routes(self, pieces: Mapping[Place, Ready]) -> Iterator[Route]:
        found: dict[tuple[Value, int, GroupLayout, bool], tuple[Place, int, GroupLayout, list[Place]]] = {}
        for place, ready in pieces.items():
            for value, register in zip(ready.inputs, ready.program.inputs, strict=True):
                maker = self.whole.maker(value, place[0])
                if maker is None:
                    continue
                after = held_in(self.groups[place[0]], register)
                source = pieces[maker.stage, maker.kind]
                output = self._output(source, value, place[0])
                before = held_in(self.groups[maker.stage], source.program.outputs[output])
                summed = value in self.terms and not runs_per_micro_batch(place[1])
                key = value, place[0], after, summed
                found.setdefault(key, (source.place, output, before, []))[3].append(place)
        for number, ((value, stage, after, summed), (source, output, before, readers)) in enumerate(found.items()):
            way = self.ways.get((value, stage))
            relayed = way.relayed if way is not None else 0
            yield Route(
                number, value, source, output, stage, before, after, tuple(readers), summed, self.spans, relayed
            )

    def _output(self, source: Ready, value: Value, stage: int) -> int:
        """The output of a piece in the layout in which the value sets out for a stage."""
        way = self.ways.get((value, stage))
        wanted = self._left(source.piece.stage, value) if way is None else way.sent.layout
        pairs = zip(source.outputs, source.plan.outputs, strict=True)
        return next(i for i, pair in enumerate(pairs) if pair == (value, wanted))


def _adds_up(layout: Layout, term: MicroPartial) -> bool:
    return not layout.partial or layout.reduction == term.reduction == "sum"
