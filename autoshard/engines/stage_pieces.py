"""What exported stages are made of: the pieces of each stage, where their inputs come from, and who plays them when.

This file needs numpy, and files that need no more: exported code carries it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from autoshard.engines.grid import Grid
from autoshard.engines.standalone import BoundaryValue

Place = tuple[int, str]
"""A stage and the kind of a piece: P once before the micro batches, F forward, I gradient of the input, W gradient of
the weights, U0, U1, ... rounds of the update."""
_KINDS_OF = {"B": ("I", "W")}
"""The pieces of an action of a schedule that are several."""


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


@dataclass(frozen=True)
class PieceSpec:
    """A piece of a stage: a function of blocks, what goes in and out, and what is done with what comes out.

    Attributes:
        sums: outputs that are added up over the micro batches, and how.
        rows: outputs that are a micro batch's rows of the value of that name.
        made: outputs that are made once in a step, and their names.
        donated: inputs that the piece may write over.
    """

    stage: int
    kind: str
    inputs: tuple[BoundaryValue, ...]
    sources: tuple[ValueSource, ...]
    outputs: tuple[BoundaryValue, ...]
    sums: Mapping[int, str] = field(default_factory=dict)
    rows: Mapping[int, str] = field(default_factory=dict)
    made: Mapping[int, str] = field(default_factory=dict)
    donated: tuple[int, ...] = ()

    @property
    def place(self) -> Place:
        return self.stage, self.kind


@dataclass(frozen=True)
class RouteSpec:
    """The way of an output to the pieces of a stage: how it arrives there, and how often what arrives is read.

    It is `moved` unless it lies there already so; goes once in a step where it is `summed` or not `repeated`.
    """

    source: Place
    output: int
    stage: int
    value: BoundaryValue
    reads: int
    moved: bool
    summed: bool
    repeated: bool


@dataclass(frozen=True)
class StandaloneStages:
    """A step in stages.

    Attributes:
        grids, devices: of each group of devices its mesh, and which of all devices each of its ranks is.
        groups: of each stage the group that runs it.
        orders: of each group its actions, such as "0F0 0F1 0B0".
        inputs, outputs: of the step, whole.
        results: where each output is from.
        updates: the outputs that replace an input in the next step.
        joined: values whose rows micro batches make: their shapes, and how rows are dealt out.
        prologue: what follows from data alone, on one device.
    """

    grids: tuple[Grid, ...]
    devices: tuple[tuple[int, ...], ...]
    groups: tuple[int, ...]
    orders: tuple[str, ...]
    micro_batches: int
    inputs: tuple[BoundaryValue, ...]
    outputs: tuple[BoundaryValue, ...]
    results: tuple[ValueSource, ...]
    updates: Mapping[int, int]
    pieces: tuple[PieceSpec, ...]
    routes: tuple[RouteSpec, ...]
    joined: Mapping[str, tuple[tuple[int, ...], int, int]]
    prologue: PieceSpec | None = None

    @cached_property
    def by_place(self) -> dict[Place, PieceSpec]:
        """The pieces by stage and kind."""
        return {piece.place: piece for piece in self.pieces}

    def actions(self, group: int) -> list[tuple[Place, int]]:
        """The pieces that a group runs for micro batches, in order, each with its micro batch."""
        found = []
        for stage, kind, micro in map(_read, self.orders[group].split()):
            found += [((stage, one), micro) for one in _KINDS_OF.get(kind, (kind,)) if (stage, one) in self.by_place]
        return found

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
        sources = self.by_place[place].sources
        routes = (self.routes[source.of] for source in sources if source.kind == "route")
        return {(route.source, micro) for route in routes if route.repeated}

    def rounds(self) -> Iterator[PieceSpec]:
        """The rounds of the update, those of one number together."""
        found = [piece for piece in self.pieces if piece.kind[0] == "U"]
        return iter(sorted(found, key=lambda piece: (int(piece.kind[1:]), piece.stage)))


def _read(action: str) -> tuple[int, str, int]:
    """`2F0`: stage, kind, micro batch."""
    kind = next(one for one in action if one.isalpha())
    stage, micro = action.split(kind)
    return int(stage), kind, int(micro)


def rows_of(whole: Any, source: ValueSource, micro: int, parts: int) -> Any:
    """The rows of a micro batch: of every `parts` runs of `inner` the one that is its."""
    dim, shape = source.dim, np.shape(whole)
    runs = shape[dim] // (source.inner * parts)
    dealt = whole.reshape(*shape[:dim], runs, parts, source.inner, *shape[dim + 1 :])
    return dealt[(slice(None),) * (dim + 1) + (micro,)].reshape(*shape[:dim], runs * source.inner, *shape[dim + 1 :])
