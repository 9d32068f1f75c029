"""Exported stages as their code knows them: pieces of stages with what goes in and out, and routes between them.

This file needs numpy, and files that need no more: exported code carries it.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from autoshard.engines.boxes import Box
from autoshard.engines.grid import Axes, Grid
from autoshard.engines.standalone import BoundaryValue

ONCE = "P"
"""What runs once before the micro batches; F, I and W run for each, and U0, U1, ... once after them."""
Place = tuple[int, str]
"""A stage and one of its pieces."""
_ACTION = re.compile(r"(\d+)([FBIW])(\d+)")


@dataclass(frozen=True)
class RowsPart:
    """A micro batch's rows of a value: every m-th row of `dim`, each of `inner` consecutive elements of it."""

    dim: int
    inner: int

    def apart(self, shape: tuple[int, ...], parts: int) -> tuple[int, ...]:
        """The shape with the micro batches as a dim of their own, behind the rows of each."""
        rows = shape[self.dim] // (self.inner * parts)
        return (*shape[: self.dim], rows, parts, self.inner, *shape[self.dim + 1 :])

    def at(self, micro: int) -> tuple:
        """The index of one micro batch in such a shape."""
        return (*[slice(None)] * (self.dim + 1), micro)


@dataclass(frozen=True)
class StageInput:
    """What goes into a piece: the value of a route, or else a whole value that was there before, or its rows."""

    value: BoundaryValue
    route: int | None = None
    rows: tuple[str, RowsPart] | None = None


@dataclass(frozen=True)
class StageOutput:
    """What comes out of a piece: `reduction` says how a step adds it up over micro batches, if it does; along `partial`
    ranks hold terms of it, which `terms` says how to add up; `gradient_of` names the parameter that it is added to."""

    value: BoundaryValue
    reduction: str = ""
    is_rows: bool = False
    partial: Axes = ()
    terms: str = ""
    gradient_of: str = ""


@dataclass(frozen=True)
class StageCode:
    """A piece of a stage: its function, and what goes in and out."""

    run: Callable
    inputs: tuple[StageInput, ...]
    outputs: tuple[StageOutput, ...]


@dataclass(frozen=True)
class ExportedStage:
    """A stage: its ranks of all that run, their mesh, over which axes they talk, and its pieces in order."""

    number: int
    ranks: tuple[int, ...]
    grid: Grid
    axes: tuple[Axes, ...]
    pieces: Mapping[str, StageCode]

    @property
    def parameters(self) -> dict[str, BoundaryValue]:
        """What the stage holds before the first step but rows of data, by name."""
        return {
            one.value.name: one.value
            for piece in self.pieces.values()
            for one in piece.inputs
            if one.route is None and one.rows is None
        }


@dataclass(frozen=True)
class SentBox:
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
class ExportedRoute:
    """A value on its way from a piece to those of one stage.

    Attributes:
        output: which output of the piece `source` it is.
        readers: the pieces of stage `stage` that read it.
        summed: whether it goes once in a step, when what micro batches gave has been added up.
        local, dtype: of a reader's block.
        sent, passed_on: what goes from group to group, and then inside of the one that reads; None where it stays.
        wire: how it goes where each rank sends one block to the rank of the same place.
    """

    source: Place
    output: int
    stage: int
    readers: tuple[str, ...]
    summed: bool
    local: tuple[int, ...]
    dtype: str
    sent: tuple[SentBox, ...] | None = None
    passed_on: tuple[SentBox, ...] = ()
    wire: Wire | None = None

    @property
    def is_repeated(self) -> bool:
        """Whether it goes for each micro batch."""
        return self.source[1] in "FIW" and not self.summed


@dataclass(frozen=True)
class StepOutput:
    """An output of the step: output `output` of the piece `source`, with the rows that micro batches make of it if they
    do; or what is there before, by the name `given`."""

    value: BoundaryValue
    source: Place | None = None
    output: int = 0
    rows: RowsPart | None = None
    given: str = ""


@dataclass(frozen=True)
class StagesPlan:
    """A step in stages: what goes in and out, which output replaces which input, and the micro batches.

    `late` are values whose rows micro batches make and that the update reads whole, `from_data` makes what follows from
    data alone, on every rank. Outputs `terms` of the last stage's forward pass are parts of what `loss` makes the loss
    of; without it there is one, a part of the loss itself.
    """

    stages: tuple[ExportedStage, ...]
    routes: tuple[ExportedRoute, ...]
    micro_batches: int
    inputs: tuple[BoundaryValue, ...]
    outputs: tuple[StepOutput, ...]
    updates: Mapping[int, int]
    late: Mapping[str, StepOutput]
    from_data: StageCode | None = None
    terms: tuple[int, ...] = ()
    loss: StageCode | None = None

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return 1 + max(rank for stage in self.stages for rank in stage.ranks)

    @cached_property
    def arriving(self) -> dict[Place, list[int]]:
        """The routes that end at each piece."""
        places = {(stage.number, kind): [] for stage in self.stages for kind in stage.pieces}
        for number, route in enumerate(self.routes):
            for kind in route.readers:
                places[route.stage, kind].append(number)
        return places

    @cached_property
    def leaving(self) -> dict[Place, list[int]]:
        """The routes that begin at each piece."""
        places = {(stage.number, kind): [] for stage in self.stages for kind in stage.pieces}
        for number, route in enumerate(self.routes):
            places[route.source].append(number)
        return places

    def sent_on(self, stage: int) -> list[int]:
        """The routes by which the forward pass of a stage gives to the next, in order."""
        pairs = enumerate(self.routes)
        return [number for number, one in pairs if one.source == (stage, "F") and one.stage == stage + 1]

    def sent_back(self, stage: int) -> list[int | None]:
        """For each of `sent_on` the route by which a gradient comes back in its place, if one does."""
        places = {one.wire.place: number for number, one in enumerate(self.routes) if one.wire is not None}
        return [places.get(number) for number in self.sent_on(stage)]

    def reads(self, route: ExportedRoute) -> int:
        """How often a value of a route is read once it is there."""
        once = route.is_repeated
        return sum(1 if once or kind not in "FIW" else self.micro_batches for kind in route.readers)


def actions_of(path: str | Path, rank_stages: tuple[int, ...]) -> list[tuple[int, str, int]]:
    """What the ranks of these stages do for each micro batch, in order: (stage, piece, micro batch)."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = [[found for cell in row for found in _ACTION.findall(cell)] for row in csv.reader(file)]
    own = next(row for row in rows if row and int(row[0][0]) in rank_stages)
    return [(int(stage), one, int(micro)) for stage, kind, micro in own for one in ("IW" if kind == "B" else kind)]


def rows_of(whole: np.ndarray, part: RowsPart, parts: int, micro: int, shape: tuple[int, ...]) -> np.ndarray:
    """The rows of one micro batch."""
    return whole.reshape(part.apart(whole.shape, parts))[part.at(micro)].reshape(shape)
