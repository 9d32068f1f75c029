"""All that each stage does in a step: once before the micro batches, for each of them, and once after them.

Once before (`ONCE`): what follows from parameters and constants; each stage that needs it makes it. What follows from
data alone is made by every rank, whole (`from_data`). Once after: the update, in rounds `U0`, `U1`, ...; what a round
reads of other stages these have made in an earlier one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from autoshard.ir.graph import DATA, PARAMETER, Node, Value
from autoshard.ops.registry import lookup
from autoshard.pipeline.stages.cut import KINDS, Pipeline, StagePiece, graph_of
from autoshard.transform.micro.accumulate import StepParts
from autoshard.transform.micro.forms import CARRIED, MicroPartial, MicroRows
from autoshard.transform.simplify import reading
from autoshard.util.errors import StageError

ONCE = "P"
UPDATE = "U"


@dataclass(frozen=True)
class StagedStep:
    """The pieces of each stage, in the order in which a stage runs them, without those that do nothing.

    Attributes:
        pipeline: what it is made of.
        stages: by stage and kind.
        from_data: nodes before the micro batches that need data and constants alone.
        outputs: for each output of the step the value of a piece that it is (its sum over the micro batches, its rows,
            or itself), or the output itself where it was there before.
    """

    pipeline: Pipeline
    stages: tuple[Mapping[str, StagePiece], ...]
    from_data: tuple[Node, ...]
    outputs: tuple[Value, ...]

    @cached_property
    def tied(self) -> dict[Value, Value]:
        """Results of the step, or what micro batches make for them, and the inputs that they are in the next step."""
        body, tied = self.pipeline.step.body, self.pipeline.step.graph.tied
        return {**tied, **{body.outputs[new][0]: state for state, new in body.carried.items()}}

    @cached_property
    def makers(self) -> dict[Value, dict[int, StagePiece]]:
        """The pieces that make a value, by stage: several stages may make what costs little."""
        found: dict[Value, dict[int, StagePiece]] = {}
        for piece in self.pieces:
            for value in piece.graph.outputs:
                found.setdefault(value, {})[piece.stage] = piece
        return found

    def maker(self, value: Value, stage: int) -> StagePiece | None:
        """The piece of which a stage has a value: its own, else that of the first stage that makes it."""
        found = self.makers.get(value)
        return None if found is None else found.get(stage) or found[min(found)]

    @property
    def pieces(self) -> Iterator[StagePiece]:
        """All pieces, stage by stage."""
        return (piece for stage in self.stages for piece in stage.values())


def runs_per_micro_batch(kind: str) -> bool:
    """Whether pieces of this kind run for each micro batch."""
    return kind in KINDS


def update_rounds(places: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    """Of stages and kinds of pieces the rounds of the update, those of one number together: what a round reads was made
    in an earlier one."""
    rounds = [place for place in places if not runs_per_micro_batch(place[1]) and place[1] != ONCE]
    return sorted(rounds, key=lambda place: (int(place[1][1:]), place[0]))


def whole_step(pipeline: Pipeline) -> StagedStep:
    """All pieces of a step.

    Raises:
        StageError: the update of a stage needs rows of the batch that another one makes.
    """
    return _StagedStepWriter(pipeline).run()


class _StagedStepWriter:
    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline, self.step = pipeline, pipeline.step
        self.sums = {
            value: one for value, (one, form) in self.step.body.outputs.items() if isinstance(form, MicroPartial)
        }
        self.rows = {value: one for value, (one, form) in self.step.body.outputs.items() if isinstance(form, MicroRows)}
        self.last = {value: one for value, (one, form) in self.step.body.outputs.items() if form == CARRIED}
        self.owner = {value: stage.number for stage in pipeline.stages for value in stage.parameters}
        self.from_data = _from_data(self.step)
        self.totals: dict[Value, Value] = {}

    def run(self) -> StagedStep:
        updates = self._updates()
        stages = []
        for number, stage in enumerate(self.pipeline.stages):
            micro = {kind: piece for kind, piece in stage.pieces.items() if piece.graph.nodes}
            pieces = {**micro, **self._rounds(number, updates)}
            before = self._before(number, pieces.values())
            stages.append({**before, **pieces})
        wanted = self._wanted(stages)
        kept = tuple({kind: _giving(piece, wanted) for kind, piece in stage.items()} for stage in stages)
        outputs = tuple(map(self._made, self.step.graph.outputs))
        return StagedStep(self.pipeline, kept, self.from_data, outputs)

    def _wanted(self, stages: Sequence[Mapping[str, StagePiece]]) -> set[Value]:
        read = {value for stage in stages for piece in stage.values() for value in piece.graph.inputs}
        read |= {whole for whole, _ in self.step.body.slices.values()}
        return read | set(map(self._made, self.step.graph.outputs))

    def _made(self, value: Value) -> Value:
        """What micro batches make for a value of the step; itself, if they make nothing."""
        found = (some[value] for some in (self.sums, self.rows, self.last) if value in some)
        return next(found, value)

    # -- before the micro batches

    def _before(self, number: int, pieces: Iterable[StagePiece]) -> dict[str, StagePiece]:
        """What a stage makes once of parameters and constants; other stages may make the same."""
        needed = {value for piece in pieces for value in piece.graph.inputs}
        needed |= {whole for one, (whole, _) in self.step.body.slices.items() if one in needed}
        if number == 0:
            needed.update(self.step.graph.outputs)
        nodes = []
        for node in reversed(self.step.before):
            if node not in self.from_data and needed.intersection(node.results):
                nodes.append(node)
                needed.update(node.uses)
        if not nodes:
            return {}
        return {ONCE: self._piece(number, ONCE, tuple(reversed(nodes)))}

    # -- after them

    def _updates(self) -> dict[tuple[int, int], list[Node]]:
        """The nodes after the micro batches by stage and round; those of no stage are in all that need them."""
        homes = self._homes()
        made_in = {one: self.pipeline.made_by[one].stage for one in self.sums.values()}
        for value, one in self.rows.items():
            made_in[value] = self.pipeline.made_by[one].stage
        at: dict[Value, tuple[int, int]] = {value: (stage, 0) for value, stage in made_in.items()}
        found: dict[tuple[int, int], list[Node]] = {}
        sums = set(self.sums.values())
        for node in self.step.after:
            if node not in homes:
                continue
            stage, turn = homes[node], 0
            for value in self._reads(node):
                if value in self.last:
                    raise StageError(
                        f"{self.step.graph.name!r} cannot be cut into stages: the update reads {value.name}, a state "
                        "that the micro batches have handed on"
                    )
                if value in at:
                    other, its = at[value]
                    turn = max(turn, its + (other != stage))
                    if other != stage and value in sums:
                        self._total(value, found.setdefault((other, 0), []))
                    if other != stage and value in self.rows:
                        raise StageError(
                            f"{self.step.graph.name!r}: the update in stage {stage} needs {value.name}, which stage "
                            f"{other} makes row by row; give both to one stage"
                        )
            at.update(dict.fromkeys(node.results, (stage, turn)))
            found.setdefault((stage, turn), []).append(node)
        return found

    def _total(self, one: Value, nodes: list[Node]) -> None:
        """A copy of a sum over micro batches for other stages, made where the sum is: so it may be reduced there."""
        if one not in self.totals:
            self.totals[one] = Value(one.type, f"{one.name}.total")
            op = lookup("Reshape")
            attrs = op.check_attributes({"shape": one.type.shape})
            nodes.append(Node(op, (one,), attrs, (self.totals[one],)))

    def _reads(self, node: Node) -> Iterator[Value]:
        return (self.sums.get(value, value) for value in node.uses)

    def _homes(self) -> dict[Node, int]:
        """The stage of each node after the micro batches, as far as it has one.

        That of the parameter that it updates; else that of all that it reads, if it is one; else that of all that read
        what it makes, or the last.
        """
        stage_of = {one: self.pipeline.made_by[one].stage for one in self.sums.values()}
        stage_of.update({value: self.pipeline.made_by[one].stage for value, one in self.rows.items()})
        owned = {value: stage for value, stage in self.owner.items() if self.step.graph.role_of[value] == PARAMETER}
        homes: dict[Node, int] = {}
        open_nodes: list[Node] = []
        for node in self.step.after:
            own = {owned[value] for value in node.uses if value in owned}
            read = {stage_of[value] for value in self._reads(node) if value in stage_of}
            if not own and not read:
                continue
            if not own and len(read) > 1:
                open_nodes.append(node)
            homes[node] = max(own or read)
            stage_of.update(dict.fromkeys(node.results, homes[node]))
        users: dict[Value, set[int]] = {}
        for node in reversed(self.step.after):
            if node in open_nodes:
                wanted = set().union(*(users.get(value, set()) for value in node.results))
                homes[node] = wanted.pop() if len(wanted) == 1 else homes[node]
            for value in node.uses if node in homes else ():
                users.setdefault(value, set()).add(homes[node])
        return homes

    def _rounds(self, number: int, updates: Mapping[tuple[int, int], list[Node]]) -> dict[str, StagePiece]:
        """The rounds of a stage's update, with what they need of nodes without a stage in the first that does."""
        rounds = sorted(turn for stage, turn in updates if stage == number)
        placed = {node for nodes in updates.values() for node in nodes}
        nodes = {turn: list(updates[number, turn]) for turn in rounds}
        free = [node for node in self.step.after if node not in placed]
        wanted = set(self.step.graph.outputs) if number == 0 else set()
        if number == 0 and free and not rounds and wanted.intersection(v for node in free for v in node.results):
            rounds, nodes = [0], {0: []}
        needed = {value for some in nodes.values() for node in some for value in node.uses} | wanted
        taken = []
        for node in reversed(free):
            if needed.intersection(node.results):
                taken.append(node)
                needed.update(node.uses)
        if taken:
            nodes[rounds[0]] = [*reversed(taken), *nodes[rounds[0]]]
        return {f"{UPDATE}{turn}": self._piece(number, f"{UPDATE}{turn}", nodes[turn]) for turn in rounds}

    # -- pieces

    def _piece(self, number: int, kind: str, nodes: Sequence[Node]) -> StagePiece:
        """A piece whose nodes read sums over micro batches as what a micro batch gives to them."""
        written = []
        for node in nodes:
            given = {value: self._given(value, number) for value in node.uses}
            written.append(reading(node, {value: one for value, one in given.items() if one is not value}))
        return StagePiece(number, kind, graph_of(f"{self.step.graph.name}.stage{number}.{kind}", written))

    def _given(self, value: Value, number: int) -> Value:
        """What a stage reads for a value: for a sum over micro batches what one gives to it, or another's total."""
        one = self.sums.get(value, value)
        made = self.pipeline.made_by.get(one)
        return self.totals[one] if one in self.totals and made is not None and made.stage != number else one


def _giving(piece: StagePiece, wanted: set[Value]) -> StagePiece:
    """The piece with no other outputs than those wanted."""
    outputs = tuple(value for value in piece.graph.outputs if value in wanted)
    return replace(piece, graph=replace(piece.graph, outputs=outputs))


def _from_data(step: StepParts) -> tuple[Node, ...]:
    """The nodes before the micro batches that every rank runs whole: those that need data and no parameters, the
    constants that micro batches have rows of, and what these need.
    """
    graph, nodes = step.graph, step.before
    data = {value for value in graph.inputs if graph.role_of[value] == DATA}
    constant: set[Value] = set()
    for node in nodes:
        if all(value in data or value in constant for value in node.uses):
            (data if any(value in data for value in node.uses) else constant).update(node.results)
    needed = {whole for whole, _ in step.body.slices.values()}
    chosen = set()
    for node in reversed(nodes):
        is_wanted = not constant.isdisjoint(node.results) and not needed.isdisjoint(node.results)
        if not is_wanted and data.isdisjoint(node.results):
            continue
        chosen.add(node)
        needed.update(node.uses)
    return tuple(node for node in nodes if node in chosen)
