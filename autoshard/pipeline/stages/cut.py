"""A training step as stages: what each does forward, for gradients of its input and for those of its weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

from autoshard.ir.graph import DATA, Graph, Node, Value
from autoshard.pipeline.schedules.action import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
from autoshard.pipeline.stages.assign import Assigned, assign, assign_nodes, check_no_own_loops
from autoshard.pipeline.stages.kept import with_inputs_kept
from autoshard.pipeline.stages.loss import with_loss_in_pieces
from autoshard.pipeline.stages.sums import with_late_sums
from autoshard.trace.function import Traced
from autoshard.transform.micro.accumulate import StepParts
from autoshard.transform.micro.statistics import BATCH
from autoshard.transform.simplify import reading

KINDS = (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)


@dataclass(frozen=True)
class StagePiece:
    """What a stage does in one kind of action for one micro batch: a graph of its own, whose inputs are rows of data,
    values that are the same for all micro batches, and what other pieces have made."""

    stage: int
    kind: str
    graph: Graph


@dataclass(frozen=True)
class Stage:
    """One stage: its pieces by kind, and the parameters that it updates."""

    number: int
    pieces: Mapping[str, StagePiece]
    parameters: tuple[Value, ...]


@dataclass(frozen=True)
class Pipeline:
    """A training step of `step.parts` micro batches in stages.

    Attributes:
        step: the same step in one piece.
        stages: in order.
        made_by: the piece that makes each value of a micro batch which another piece reads, or which is a result.
        cut: the stage of each operator of the forward pass, a node of `step.graph`, by which the step was cut.
    """

    step: StepParts
    stages: tuple[Stage, ...]
    made_by: Mapping[Value, StagePiece]
    cut: Mapping[Node, int]

    @cached_property
    def readers(self) -> dict[Value, tuple[StagePiece, ...]]:
        """The pieces that read each value which another piece has made."""
        found: dict[Value, tuple[StagePiece, ...]] = {}
        for piece in self.pieces:
            for value in piece.graph.inputs:
                if value in self.made_by:
                    found[value] = (*found.get(value, ()), piece)
        return found

    @property
    def pieces(self) -> Iterable[StagePiece]:
        """All pieces, stage by stage."""
        return chain.from_iterable(stage.pieces.values() for stage in self.stages)

    @cached_property
    def crossing(self) -> tuple[Value, ...]:
        """The values of a micro batch that go from stage to stage."""
        pairs = self.readers.items()
        return tuple(one for one, pieces in pairs if any(p.stage != self.made_by[one].stage for p in pieces))

    def __str__(self) -> str:
        """A line per stage: operators forward and backward, parameters, and the bytes that a micro batch sends on."""
        return "\n".join(map(self._line, self.stages))

    def _line(self, stage: Stage) -> str:
        counts = {kind: len(piece.graph.nodes) for kind, piece in stage.pieces.items()}
        sent = sum(one.type.nbytes for one in self.crossing if self.made_by[one].stage == stage.number)
        size = sum(one.type.nbytes for one in stage.parameters)
        return (
            f"stage {stage.number}: {counts[FORWARD]} operators forward, {counts[INPUT_GRADIENT]} for gradients of its "
            f"input, {counts[WEIGHT_GRADIENT]} of its weights; {len(stage.parameters)} parameters of {size} bytes; "
            f"sends {sent} bytes per micro batch"
        )


def cut_stages(
    step: Traced | Graph,
    stages: Mapping[str, int],
    micro_batches: int = 1,
    statistics: str = BATCH,
    loss_pieces: int = 1,
) -> Pipeline:
    """Cut a training step into stages by names of its operators and parameters.

    Args:
        stages: from patterns to stages: `{"model.layers.{0..15}.*": 0, "model.layers.{16..31}.*": 1}`. Operators that
            no pattern names follow what they read. Or what `stages_of_cells` says of a model.
        micro_batches: into how many parts the batch is cut.
        statistics: as `transform.micro.accumulate` takes them.
        loss_pieces: as `transform.micro.loss_pieces` takes them.

    Raises:
        StageError: more stages than there are operators in, or stages that wait for each other.
        UnknownNameError: a pattern that matches nothing.
        GraphError: micro batches into which the step cannot be cut, see `transform.micro.accumulate`; a loss that
            cannot be done in pieces, see `transform.micro.loss_pieces`.
    """
    graph = step.graph if isinstance(step, Traced) else step
    check_no_own_loops(graph)
    apart = StepParts.of(graph, micro_batches, statistics, loss_pieces)
    return cut_as_assigned(apart, assign(apart, stages))


def cut_by_nodes(step: StepParts, stages: Mapping[Node, int], count: int) -> Pipeline:
    """The stages of a step of which each operator of the forward pass (nodes of `step.graph`) is given one.

    Raises:
        StageError: as `cut_stages`.
    """
    return cut_as_assigned(step, assign_nodes(step, stages, count))


def cut_as_assigned(step: StepParts, assigned: Assigned) -> Pipeline:
    """The stages of a step whose operators have theirs."""
    forward, originals = assigned.forward, step.body.of
    cut = {originals[node]: stage for node, stage in assigned.of.items() if node in forward and node in originals}
    return _Cutter(*with_loss_in_pieces(*with_late_sums(*with_inputs_kept(step, assigned, cut))), cut).run()


def graph_of(name: str, nodes: Sequence[Node], outputs: Sequence[Value] | None = None) -> Graph:
    """Some nodes as a graph of their own, whose inputs are what they read of others; it gives all that they make, or
    these outputs."""
    made = dict.fromkeys(value for node in nodes for value in node.results)
    inputs = tuple(dict.fromkeys(value for node in nodes for value in node.uses if value not in made))
    return Graph(name, inputs, tuple(nodes), tuple(made if outputs is None else outputs), (DATA,) * len(inputs))


class _Cutter:
    def __init__(self, step: StepParts, assigned: Assigned, cut: Mapping[Node, int]) -> None:
        self.step, self.assigned, self.cut = step, assigned, cut
        self.results = {one for one, _ in step.body.outputs.values()}
        self.home: dict[Node, tuple[int, str]] = {}

    def run(self) -> Pipeline:
        self._homes()
        nodes: dict[tuple[int, str], list[Node]] = {
            (stage, kind): [] for stage in range(self.assigned.count) for kind in KINDS
        }
        for node, home in self.home.items():
            nodes[home].append(node)
        wanted = self._wanted()
        pieces = {home: self._piece(*home, found, wanted) for home, found in nodes.items()}
        stages = tuple(
            Stage(number, {kind: pieces[number, kind] for kind in KINDS}, self._parameters(number))
            for number in range(self.assigned.count)
        )
        made_by = {value: piece for piece in pieces.values() for value in piece.graph.outputs}
        return Pipeline(self.step, stages, made_by, self.cut)

    def _parameters(self, stage: int) -> tuple[Value, ...]:
        return tuple(value for value, owner in self.assigned.parameters.items() if owner == stage)

    def _homes(self) -> None:
        """The stage and kind of each node: of a stage's backward pass what other stages read makes gradients of its
        input, the rest those of its weights."""
        of, forward = self.assigned.of, self.assigned.forward
        stage_of = {value: stage for node, stage in of.items() for value in node.results}
        first: set[Node] = set()
        needed: set[Value] = {
            value for node, stage in of.items() for value in node.uses if stage_of.get(value, stage) != stage
        }
        for node in reversed(list(of)):
            if node not in forward and needed.intersection(node.results):
                first.add(node)
                needed.update(node.uses)
        for node, stage in of.items():
            kind = FORWARD if node in forward else INPUT_GRADIENT if node in first else WEIGHT_GRADIENT
            self.home[node] = stage, kind

    def _wanted(self) -> set[Value]:
        """The values that are read outside of the piece that makes them, and results."""
        homes = {value: home for node, home in self.home.items() for value in node.results}
        read = {value for node, home in self.home.items() for value in node.uses if homes.get(value, home) != home}
        return read | self.results

    def _piece(self, stage: int, kind: str, nodes: Sequence[Node], wanted: set[Value]) -> StagePiece:
        """The graph of these nodes, with what they read of free nodes, which are copied."""
        nodes = self._with_free(nodes)
        outputs = [value for node in nodes for value in node.results if value in wanted]
        return StagePiece(stage, kind, graph_of(f"{self.step.graph.name}.stage{stage}.{kind}", nodes, outputs))

    def _with_free(self, nodes: Sequence[Node]) -> list[Node]:
        free = [node for node in self.step.body.nodes if node in self.assigned.free]
        needed = {value for node in nodes for value in node.uses}
        taken: list[Node] = []
        for node in reversed(free):
            if needed.intersection(node.results):
                taken.append(node)
                needed.update(node.uses)
        copies: dict[Value, Value] = {}
        copied = []
        for node in (*reversed(taken), *nodes):
            given, results = reading(node, copies), node.results
            if node in self.assigned.free:
                results = tuple(Value(one.type, one.name) for one in node.results)
                copies.update(zip(node.results, results, strict=True))
            copied.append(given if results == node.results else replace(given, results=results))
        return copied
