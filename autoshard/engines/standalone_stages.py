"""What exported stages are made of: the pieces of each stage, where their inputs come from, and who plays them when.

This file needs numpy, and files that need no more: exported code carries it.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from autoshard.engines.boxes import Box
from autoshard.engines.grid import Axes, Grid
from autoshard.engines.standalone import BoundaryValue

ONCE = "P"
"""What runs once before the micro batches; F (forward), I (gradient of the input) and W (of the weights) run for each,
and U0, U1, ..., rounds of the update, once after them."""
ALONE = Grid((("d", 1),), (0,))
"""The mesh of what runs outside of stages."""
Place = tuple[int, str]
"""A stage and the kind of one of its pieces; stage -1 is none."""
_ACTION = re.compile(r"(\d+)([FBIW])(\d+)")
_EACH = tuple("FIW")


class ValueSource(NamedTuple):
    """Where a value is from.

    kind: "given", a whole array named `of`; "rows", a micro batch's of one, dealt out along `dim` in runs of `inner`;
    "route", what a piece has sent by route number `of`; "joined", the rows of all micro batches; "made", what a piece
    makes once in a step; "sum", what output `of` (stage, kind, number) gives in all micro batches.
    """

    kind: str
    of: Any
    dim: int = 0
    inner: int = 1

    def __repr__(self) -> str:
        """As Python says it, without what is as it mostly is."""
        return f"ValueSource{tuple(self[:2] if self[2:] == (0, 1) else self)!r}"


@dataclass(frozen=True)
class PieceSpec:
    """A piece of a stage: a function of blocks, what goes in and out, and what is done with what comes out.

    Attributes:
        run: the function; none where only the ends are told.
        sums: outputs that are added up over the micro batches, and how.
        rows: outputs that are a micro batch's rows of the value of that name.
        made: outputs that are made once in a step, and their names.
        gradients: outputs that are added to gradients, and the names of the parameters.
        donated: inputs that the piece may write over.
    """

    stage: int
    kind: str
    run: Callable | None
    inputs: tuple[BoundaryValue, ...]
    sources: tuple[ValueSource, ...]
    outputs: tuple[BoundaryValue, ...]
    sums: Mapping[int, str] = field(default_factory=dict)
    rows: Mapping[int, str] = field(default_factory=dict)
    made: Mapping[int, str] = field(default_factory=dict)
    gradients: Mapping[int, str] = field(default_factory=dict)
    donated: tuple[int, ...] = ()

    def __call__(self, *given: Any) -> tuple:
        assert self.run is not None, self.place
        return self.run(*given)

    @property
    def place(self) -> Place:
        return self.stage, self.kind

    @property
    def ends(self) -> Iterator[tuple[BoundaryValue, ValueSource]]:
        """What goes in, and where it is from."""
        return zip(self.inputs, self.sources, strict=True)


@dataclass(frozen=True)
class StageSpec:
    """A stage: the group that runs it, which of all devices each of its ranks is, their mesh, and its pieces by kind.

    `axes` are those over which ranks talk, where they need to be known before.
    """

    number: int
    group: int
    ranks: tuple[int, ...]
    grid: Grid
    pieces: Mapping[str, PieceSpec]
    axes: tuple[Axes, ...] = ()

    def held(self, kinds: str) -> tuple[BoundaryValue, ...]:
        """What pieces of these kinds read whole that is there before the first step, in each form."""
        ends = (end for kind, piece in self.pieces.items() if kind[0] in kinds for end in piece.ends)
        return tuple(dict.fromkeys(value for value, source in ends if source.kind == "given"))


class SentBox(NamedTuple):
    """A box that goes from one rank of all to another: where it lies in the block of each."""

    source: int
    target: int
    taken: Box
    placed: Box


@dataclass(frozen=True)
class Wire:
    """A block that each rank of a group sends to the rank of the same place: its shape, and what goes inside of both
    groups before and after; None where blocks are those that go already. A gradient has the place of `place`, the value
    that it goes back for."""

    local: tuple[int, ...]
    before: tuple[SentBox, ...] | None = None
    after: tuple[SentBox, ...] | None = None
    place: int | None = None


@dataclass(frozen=True)
class RouteSpec:
    """The way of an output to the pieces of a stage that read it, and how it arrives there.

    Attributes:
        readers: the kinds of those pieces.
        moved: whether it lies elsewhere, or otherwise, than it arrives.
        summed: whether it goes once in a step, when what micro batches gave has been added up.
        sent, passed_on: where ranks send boxes themselves, what goes from group to group, then inside of the one that
            reads.
        wire: how it goes where each rank sends one block to the rank of the same place.
    """

    source: Place
    output: int
    stage: int
    readers: tuple[str, ...]
    value: BoundaryValue
    moved: bool
    summed: bool = False
    sent: tuple[SentBox, ...] = ()
    passed_on: tuple[SentBox, ...] = ()
    wire: Wire | None = None

    @property
    def repeated(self) -> bool:
        """Whether it goes for each micro batch."""
        return self.source[1] in _EACH and not self.summed


@dataclass(frozen=True)
class StandaloneStages:
    """A step in stages.

    Attributes:
        orders: of each group its actions, such as "0F0 0F1 0B0".
        inputs, outputs: of the step, whole.
        results: where each output is from.
        updates: the outputs that replace an input in the next step.
        joined: values whose rows micro batches make: their shapes, and how rows are dealt out.
        prologue: what follows from data alone, on one device.
        terms: outputs of the last stage's forward pass that are parts of what `loss` makes the loss of, on one device;
            without it there is one, a part of the loss itself.
    """

    stages: tuple[StageSpec, ...]
    routes: tuple[RouteSpec, ...]
    micro_batches: int
    inputs: tuple[BoundaryValue, ...]
    outputs: tuple[BoundaryValue, ...]
    results: tuple[ValueSource, ...]
    updates: Mapping[int, int]
    joined: Mapping[str, tuple[tuple[int, ...], int, int]]
    orders: tuple[str, ...] = ()
    prologue: PieceSpec | None = None
    terms: tuple[int, ...] = ()
    loss: PieceSpec | None = None

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return 1 + max(rank for stage in self.stages for rank in stage.ranks)

    @cached_property
    def groups(self) -> tuple[int, ...]:
        """Of each stage the group that runs it."""
        return tuple(stage.group for stage in self.stages)

    @cached_property
    def grids(self) -> tuple[Grid, ...]:
        """The meshes of the groups."""
        found = {stage.group: stage.grid for stage in self.stages}
        return tuple(grid for _, grid in sorted(found.items()))

    @cached_property
    def pieces(self) -> tuple[PieceSpec, ...]:
        """The pieces of all stages."""
        return tuple(piece for stage in self.stages for piece in stage.pieces.values())

    @cached_property
    def by_place(self) -> dict[Place, PieceSpec]:
        """The pieces by stage and kind."""
        return {piece.place: piece for piece in self.pieces}

    @cached_property
    def makers(self) -> dict[str, tuple[Place, int]]:
        """The piece, and which of its outputs, that makes a value by name, at once or by the rows of micro batches."""
        outputs = ((name, (one.place, i)) for one in self.pieces for i, name in (*one.rows.items(), *one.made.items()))
        found: dict[str, tuple[Place, int]] = {}
        for name, maker in outputs:
            found.setdefault(name, maker)
        return found

    # -- routes

    @cached_property
    def arriving(self) -> dict[Place, list[int]]:
        """The routes that end at each piece."""
        pairs = [(number, (one.stage, kind)) for number, one in enumerate(self.routes) for kind in one.readers]
        return {piece.place: [number for number, place in pairs if place == piece.place] for piece in self.pieces}

    @cached_property
    def leaving(self) -> dict[Place, list[int]]:
        """The routes that begin at each piece."""
        pairs = list(enumerate(self.routes))
        return {piece.place: [number for number, one in pairs if one.source == piece.place] for piece in self.pieces}

    def key(self, number: int, micro: int | None) -> tuple[int, int | None]:
        """What a route's value is known by: its number, and the micro batch if it goes for each."""
        return number, micro if self.routes[number].repeated else None

    def reads(self, route: RouteSpec) -> int:
        """How often a value of a route is read once it is there."""
        return sum(1 if route.repeated or kind not in _EACH else self.micro_batches for kind in route.readers)

    # -- who does what when

    def actions(self, group: int) -> list[tuple[Place, int]]:
        """The pieces that a group runs for micro batches, in order, each with its micro batch."""
        told = ((int(stage), kind, int(micro)) for stage, kind, micro in _ACTION.findall(self.orders[group]))
        found = [((stage, one), micro) for stage, kind, micro in told for one in ("IW" if kind == "B" else kind)]
        return [one for one in found if one[0] in self.by_place]

    def play(self, do: Callable[[PieceSpec, int | None], None], send_sum: Callable[[int, RouteSpec], None]) -> None:
        """Do all pieces of a step in an order in which nothing waits; what is summed over micro batches is sent before
        the update.

        Args:
            do: runs a piece, for a micro batch or once.
            send_sum: of the number of a route and the route.
        """
        for piece in self.pieces:
            if piece.kind == ONCE:
                do(piece, None)
        for piece, micro in self.played():
            do(piece, micro)
        for number, route in enumerate(self.routes):
            if route.summed:
                send_sum(number, route)
        for piece in self.rounds():
            do(piece, None)

    def played(self) -> Iterator[tuple[PieceSpec, int]]:
        """The pieces that run for micro batches, each group's in its order, all groups in turn, as far as what they
        read is there."""
        todo, done = [self.actions(group) for group in range(len(self.orders))], set()
        while any(todo):
            able = [actions for actions in todo if actions and self._reads(*actions[0]) <= done]
            if not able:
                raise RuntimeError(f"groups wait for each other: {[actions[0] for actions in todo if actions]}")
            for actions in able:
                place, micro = actions.pop(0)
                done.add((place, micro))
                yield self.by_place[place], micro

    def _reads(self, place: Place, micro: int) -> set[tuple[Place, int]]:
        """What a piece reads of pieces for the same micro batch."""
        routes = (self.routes[number] for number in self.arriving[place])
        return {(route.source, micro) for route in routes if route.repeated}

    def rounds(self) -> list[PieceSpec]:
        """The rounds of the update, those of one number together."""
        found = [piece for piece in self.pieces if piece.kind[0] == "U"]
        return sorted(found, key=lambda piece: (int(piece.kind[1:]), piece.stage))


def orders_of(path: str | Path) -> tuple[str, ...]:
    """Of each group its actions, out of the CSV of a schedule."""
    with open(path, encoding="utf-8", newline="") as file:
        return tuple(" ".join(row) for row in csv.reader(file))


def rows_of(whole: Any, source: ValueSource, micro: int, parts: int) -> Any:
    """The rows of a micro batch: of every `parts` runs of `inner` the one that is its."""
    dim, shape = source.dim, np.shape(whole)
    runs = shape[dim] // (source.inner * parts)
    dealt = whole.reshape(*shape[:dim], runs, parts, source.inner, *shape[dim + 1 :])
    return dealt[(slice(None),) * (dim + 1) + (micro,)].reshape(*shape[:dim], runs * source.inner, *shape[dim + 1 :])


def joined_rows(parts: Sequence[Any], shape: tuple[int, ...], dim: int, inner: int, stack: Callable = np.stack) -> Any:
    """A value of this shape out of the rows of all micro batches, in their order."""
    runs = [one.reshape(*one.shape[:dim], one.shape[dim] // inner, inner, *one.shape[dim + 1 :]) for one in parts]
    return stack(runs, dim + 1).reshape(shape)
