"""Running a pipeline on virtual ranks: each does its actions in the order of a schedule and has what it was sent."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from autoshard.ir.graph import PARAMETER, Graph, Node, Value
from autoshard.pipeline.schedules.action import BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Action
from autoshard.pipeline.schedules.schedule import Schedule
from autoshard.pipeline.schedules.validity import check
from autoshard.pipeline.stages.cut import Pipeline, StagePiece
from autoshard.trace.evaluate import evaluate
from autoshard.transform.micro.forms import MicroPartial, MicroRows, cut
from autoshard.util.errors import ScheduleError

_ADDED_BY = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
Key = tuple[Value, int]


@dataclass(frozen=True)
class StagesOutcome:
    """What a step has led to.

    Attributes:
        outputs: the outputs of the step's graph, in order.
        sent: bytes that each rank has sent, for all micro batches and the update.
        peaks: the most bytes of values of micro batches that each rank has held between two of its actions.
    """

    outputs: list[np.ndarray]
    sent: tuple[int, ...]
    peaks: tuple[int, ...]


def run_stages(
    pipeline: Pipeline, schedule: Schedule, inputs: Sequence[np.ndarray], seed: int | None = None
) -> StagesOutcome:
    """Run a step on virtual ranks, which do their actions as soon as what these read has arrived.

    Sums over micro batches are those of the rank that has the stage, in the order of its actions; the update of a
    parameter is done by the rank that has its stage. The outputs are those of the step in one piece.

    Args:
        inputs: an array per input of the step's graph, the batch whole.
        seed: by which of the ranks that can go on the next one is drawn; None: the first. Results do not depend on it.

    Raises:
        ScheduleError: a schedule that cannot be run, or that is for other numbers of stages or micro batches.
    """
    check(schedule)
    for what, has, wants in (
        ("stages", len(pipeline.stages), schedule.stages),
        ("micro batches", pipeline.step.parts, schedule.micro_batches),
    ):
        if has != wants:
            raise ScheduleError(
                f"schedule {schedule.name} is for {wants} {what}; {pipeline.step.graph.name!r} has {has}"
            )
    return _StagesRun(pipeline, schedule, inputs, random.Random(seed) if seed is not None else None).run()


@dataclass
class _Rank:
    """What a rank holds of each micro batch, how many of its actions still read it, and its sums."""

    held: dict[Key, np.ndarray] = field(default_factory=dict)
    waiting: Counter[Key] = field(default_factory=Counter)
    sums: dict[Value, np.ndarray] = field(default_factory=dict)
    after: dict[Value, np.ndarray] = field(default_factory=dict)
    place: int = 0
    sent: int = 0
    peak: int = 0

    def note(self) -> None:
        self.peak = max(self.peak, sum(array.nbytes for array in self.held.values()))


class _StagesRun:
    def __init__(
        self, pipeline: Pipeline, schedule: Schedule, inputs: Sequence[np.ndarray], draw: random.Random | None
    ) -> None:
        self.pipeline, self.schedule, self.draw, self.step = pipeline, schedule, draw, pipeline.step
        graph = self.step.graph
        given = dict(zip(graph.inputs, inputs, strict=True))
        self.once = {**given, **_made(graph, self.step.before, given)}
        self.ranks = [_Rank() for _ in range(schedule.ranks)]
        for value, pieces in pipeline.readers.items():
            for micro in range(self.step.parts):
                for piece in pieces:
                    self._rank(piece.stage).waiting[value, micro] += 1
        self.outputs = {one: (value, form) for value, (one, form) in self.step.body.outputs.items()}

    def _rank(self, stage: int) -> _Rank:
        return self.ranks[self.schedule.ranks_of_stages[stage]]

    def run(self) -> StagesOutcome:
        while True:
            ready = [number for number in range(len(self.ranks)) if self._is_ready(number)]
            if not ready:
                break
            self._act(self.draw.choice(ready) if self.draw else ready[0])
        if any(rank.place < len(order) for rank, order in zip(self.ranks, self._orders, strict=True)):
            raise ScheduleError(f"the schedule deadlocks: {'; '.join(self._waits())}")
        outputs = self._update()
        return StagesOutcome(outputs, tuple(rank.sent for rank in self.ranks), tuple(rank.peak for rank in self.ranks))

    # -- micro batches

    @property
    def _orders(self) -> list[list[Action]]:
        return [[action for action in order if action.computes] for order in self.schedule.orders]

    def _next(self, number: int) -> Action | None:
        order = self._orders[number]
        return order[self.ranks[number].place] if self.ranks[number].place < len(order) else None

    def _pieces(self, action: Action) -> list[StagePiece]:
        kinds = (INPUT_GRADIENT, WEIGHT_GRADIENT) if action.kind == BACKWARD else (action.kind,)
        return [self.pipeline.stages[action.stage].pieces[kind] for kind in kinds]

    def _is_ready(self, number: int) -> bool:
        action = self._next(number)
        return action is not None and not self._missing(action)

    def _missing(self, action: Action) -> list[Value]:
        """What an action reads and has not arrived."""
        pieces, rank = self._pieces(action), self._rank(action.stage)
        own = {value for piece in pieces for value in piece.graph.outputs}
        read = (value for piece in pieces for value in piece.graph.inputs if value in self.pipeline.made_by)
        return [value for value in read if value not in own and (value, action.micro) not in rank.held]

    def _waits(self) -> list[str]:
        pairs = ((number, self._next(number)) for number in range(len(self.ranks)))
        return [
            f"rank {number} waits for {', '.join(one.name for one in self._missing(action))} before {action}"
            for number, action in pairs
            if action is not None
        ]

    def _act(self, number: int) -> None:
        action, rank = self._next(number), self.ranks[number]
        assert action is not None
        for piece in self._pieces(action):
            self._do(piece, action.micro, number)
        rank.place += 1

    def _do(self, piece: StagePiece, micro: int, number: int) -> None:
        rank = self.ranks[number]
        made = evaluate(piece.graph, [self._input(value, micro, rank) for value in piece.graph.inputs])
        for value, array in zip(piece.graph.outputs, made, strict=True):
            self._keep(value, micro, array, number)
        rank.note()
        for value in piece.graph.inputs:
            if value in self.pipeline.made_by:
                rank.waiting[value, micro] -= 1
                self._let_go(value, micro, rank)

    def _input(self, value: Value, micro: int, rank: _Rank) -> np.ndarray:
        if value in self.pipeline.made_by:
            return rank.held[value, micro]
        if value in self.step.body.slices:
            whole, part = self.step.body.slices[value]
            return _rows(self.once[whole], part, self.step.parts, micro, value)
        return self.once[value]

    def _keep(self, value: Value, micro: int, array: np.ndarray, number: int) -> None:
        """Keep a result for those who read it, here and on other ranks, and add it up where it is a term."""
        readers = self.pipeline.readers.get(value, ())
        for other in {self.schedule.ranks_of_stages[piece.stage] for piece in readers}:
            self.ranks[other].held[value, micro] = array
            if other != number:
                self.ranks[number].sent += array.nbytes
        if value in self.outputs:
            self._add(*self.outputs[value], micro, array, self.ranks[number])

    def _let_go(self, value: Value, micro: int, rank: _Rank) -> None:
        if rank.waiting[value, micro] == 0:
            rank.held.pop((value, micro), None)

    def _add(self, value: Value, form: MicroRows | MicroPartial, micro: int, array: np.ndarray, rank: _Rank) -> None:
        if isinstance(form, MicroRows):
            shape = cut(value.type.shape, form, self.step.parts)
            whole = rank.sums.setdefault(value, np.empty(shape, array.dtype))
            place = (slice(None),) * (form.dim + 1) + (micro,)
            whole[place] = array.reshape(whole[place].shape)
            return
        narrow = value.type.dtype.is_float and value.type.dtype.itemsize < 4
        term = array.astype(np.float32) if narrow else array
        rank.sums[value] = _ADDED_BY[form.reduction](rank.sums[value], term) if value in rank.sums else term

    # -- the update

    def _update(self) -> list[np.ndarray]:
        """What is done once after the micro batches, each operator by the rank that has what it updates."""
        homes = self._homes()
        for value in self.step.body.outputs:
            made = self.ranks[homes[value]]
            of = value.type
            made.after[value] = made.sums[value].reshape(of.shape).astype(of.dtype.numpy, copy=False)
        for node in self.step.after:
            number = homes[node.results[0]] if node.results else 0
            rank = self.ranks[number]
            for value in node.uses:
                self._fetch(value, homes, number)
            rank.after.update(_made(self.step.graph, (node,), {**self.once, **rank.after}))
        outputs = self.step.graph.outputs
        return [self.ranks[homes[one]].after[one] if one in homes else self.once[one] for one in outputs]

    def _fetch(self, value: Value, homes: dict[Value, int], number: int) -> None:
        rank = self.ranks[number]
        if value in homes and value not in rank.after:
            source = self.ranks[homes[value]]
            rank.after[value] = source.after[value]
            source.sent += source.after[value].nbytes

    def _homes(self) -> dict[Value, int]:
        """The rank that makes each value after the micro batches: that of the last stage that it needs something of."""
        pipeline, places = self.pipeline, self.schedule.ranks_of_stages
        stage = {one: number.number for number in pipeline.stages for one in number.parameters}
        made = {value: pipeline.made_by[one].stage for value, (one, _) in self.step.body.outputs.items()}
        stage.update(made)
        for node in self.step.after:
            owned = [stage[value] for value in node.uses if value in stage and self._is_owned(value)]
            found = max(owned or [stage[value] for value in node.uses if value in stage], default=0)
            made.update(dict.fromkeys(node.results, found))
            stage.update(dict.fromkeys(node.results, found))
        return {value: places[found] for value, found in made.items()}

    def _is_owned(self, value: Value) -> bool:
        return self.step.graph.role_of.get(value) == PARAMETER


def _made(graph: Graph, nodes: Iterable[Node], held: dict[Value, np.ndarray]) -> dict[Value, np.ndarray]:
    """What nodes make of values that are there."""
    nodes = tuple(nodes)
    own = {value for node in nodes for value in node.results}
    read = tuple(dict.fromkeys(value for node in nodes for value in node.uses if value not in own))
    made = tuple(value for node in nodes for value in node.results)
    found = evaluate(Graph(graph.name, read, nodes, made, ("data",) * len(read)), [held[value] for value in read])
    return dict(zip(made, found, strict=True))


def _rows(whole: np.ndarray, part: MicroRows, parts: int, micro: int, value: Value) -> np.ndarray:
    """The rows of one micro batch."""
    dealt = np.asarray(whole).reshape(cut(np.shape(whole), part, parts))
    return dealt[(slice(None),) * (part.dim + 1) + (micro,)].reshape(value.type.shape)
