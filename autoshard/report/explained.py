"""One operator or value of a plan as data: how it lies, what makes and reads it, what decided that, and what else it
could be for how much more. `explain_plan` puts it into words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from autoshard.cost.prices import prices_for
from autoshard.ir.flow import is_nest
from autoshard.ir.graph import Node, Value, walk
from autoshard.layout.layout import Layout
from autoshard.plan.plan import Cause, Option
from autoshard.report.explained_records import (
    ExplainedRecord,
    FollowedRecord,
    InsteadRecord,
    LiesRecord,
    MadeRecord,
    MovedRecord,
    ReadRecord,
)
from autoshard.report.summary import Move, OperatorRow, summarize
from autoshard.search.alternatives import node_options, option_seconds, surroundings
from autoshard.util.errors import UnknownNameError
from autoshard.util.near import did_you_mean

if TYPE_CHECKING:
    from autoshard.search.planned import PlannedData

_MOST_STEPS, _MOST_OTHERS, _MOST_READERS = 5, 3, 12


@lru_cache(maxsize=2)
def explainer(planned: PlannedData) -> Explainer:
    """What tells about the names of a plan; those asked one after the other share its work."""
    return Explainer(planned)


class Explainer:
    """Tells about the names of a plan."""

    def __init__(self, planned: PlannedData) -> None:
        self.planned, self.plan = planned, planned.plan
        self.prices = prices_for(planned.hardware)
        self.makers = {value: node for node in walk(planned.graph.nodes) for value in node.results}
        self.readers: dict[Value, list[tuple[Node, int]]] = {}
        for node in walk(planned.graph.nodes):
            for place, value in enumerate(node.operands):
                self.readers.setdefault(value, []).append((node, place))
        self._options: dict[tuple, tuple[Option, ...]] = {}

    @cached_property
    def names(self) -> dict[str, tuple[Value, ...]]:
        """All names: of values, and of operators with the values that these make."""
        found = {node.label: tuple(node.results) for node in walk(self.planned.graph.nodes)}
        return {**found, **{value.name: (value,) for value in self.plan.layouts if value.name not in found}}

    @cached_property
    def rows(self) -> dict[Node, OperatorRow]:
        return {row.node: row for row in self.summary.operators}

    @cached_property
    def summary(self):
        return summarize(self.planned)

    @cached_property
    def moves(self) -> dict[tuple[Value, Layout], Move]:
        return {(move.value, move.after): move for move in self.summary.moves}

    @cached_property
    def causes(self) -> dict[str, Cause]:
        """Why operators and inputs are as they are, by name."""
        found = {node.label: decision.cause for node, decision in self.plan.decisions.items()}
        return {**{value.name: cause for value, cause in self.plan.input_causes.items()}, **found}

    @cached_property
    def outputs(self) -> dict[Value, list[tuple[int, Layout]]]:
        """At which places the program gives a value out, and how it lies there."""
        found: dict[Value, list[tuple[int, Layout]]] = {}
        for i, (value, layout) in enumerate(zip(self.plan.graph.outputs, self.plan.outputs, strict=True)):
            found.setdefault(value, []).append((i, layout))
        return found

    def named(self, name: str) -> tuple[Value, ...]:
        """The values that a name stands for.

        Raises:
            UnknownNameError: the plan has no such name; the message lists near ones.
        """
        if name in self.names:
            return self.names[name]
        some = f"; it has {len(self.names)} names, such as {', '.join([*self.names][:4])}"
        hint, graph = did_you_mean(name, self.names, 6, 0.5, some), self.planned.graph.name
        raise UnknownNameError(f"the plan of {graph} has no operator or value named {name!r}{hint}")

    def head(self, name: str) -> ExplainedRecord:
        """A name of which the plan knows nothing more."""
        return ExplainedRecord(name=name, mode=self.plan.search, mesh=str(self.plan.mesh))

    def of(self, name: str) -> ExplainedRecord:
        """What is known of a name.

        Raises:
            UnknownNameError: as `named`.
        """
        return self.of_values(name, self.named(name))

    def of_values(self, name: str, values: Sequence[Value]) -> ExplainedRecord:
        """The same for values that are known."""
        makers = dict.fromkeys(self.makers[value] for value in values if value in self.makers)
        read = [one for value in values for one in self._read(value)]
        left = sum(max(0, len(self.readers.get(value, ())) - _MOST_READERS) for value in values)
        return ExplainedRecord(
            name=name,
            mode=self.plan.search,
            mesh=str(self.plan.mesh),
            values=tuple(self._lies(value) for value in values),
            made=tuple(self._made(node) for node in makers),
            read=tuple(read),
            more_readers=left,
        )

    def of_output(self, name: str, place: int) -> ExplainedRecord:
        """What is known of an output of the program: how it lies there."""
        value, layout = self.plan.graph.outputs[place], self.plan.outputs[place]
        lies = LiesRecord(name=value.name, type=str(value.type), layout=str(layout), held=_held(value, layout))
        return ExplainedRecord(name=name, mode=self.plan.search, mesh=str(self.plan.mesh), values=(lies,))

    def _lies(self, value: Value) -> LiesRecord:
        layout, cause = self.plan.layouts[value], self.plan.input_causes.get(value)
        return LiesRecord(
            name=value.name,
            type=str(value.type),
            layout=str(layout),
            held=_held(value, layout),
            why="" if cause is None else str(cause),
            followed=() if cause is None else tuple(self._chain(cause)),
        )

    def _made(self, node: Node) -> MadeRecord:
        decision, row, whole = self.plan.decisions[node], self.rows[node], self.planned.cost.seconds
        return MadeRecord(
            operator=node.label,
            op=node.op.name,
            strategy=str(decision.strategy),
            why=str(decision.cause),
            followed=tuple(self._chain(decision.cause)),
            source=None if node.source is None else str(node.source),
            seconds=row.seconds,
            times=max(1, row.times),
            share=row.seconds * row.times / whole if whole else 0.0,
            instead=() if is_nest(node) else tuple(self._instead(node)),
        )

    def _instead(self, node: Node) -> Iterator[InsteadRecord]:
        key = surroundings(self.plan, node)
        if key not in self._options:
            self._options[key] = node_options(self.plan, node, self.prices)
        own, *others = self._options[key] or (self.plan.decisions[node].chosen,)
        for option in others[:_MOST_OTHERS]:
            yield InsteadRecord(
                str(option.strategy),
                tuple(str(layout) for layout in option.strategy.result_layouts),
                option_seconds(option) - option_seconds(own),
                option.edge_seconds,
                option.completion_seconds,
                option.work_seconds,
            )

    def _chain(self, cause: Cause) -> Iterator[FollowedRecord]:
        """What it followed from, and what that followed from."""
        seen: set[str] = set()
        for _ in range(_MOST_STEPS):
            name = next((one for one in cause.neighbours if one in self.causes and one not in seen), None)
            if name is None:
                return
            seen.add(name)
            cause = self.causes[name]
            yield FollowedRecord(name, str(cause))

    def _read(self, value: Value) -> Iterator[ReadRecord]:
        for node, operand in self.readers.get(value, ())[:_MOST_READERS]:
            strategy = self.plan.strategy(node)
            moved = self._moved(value, strategy.operand_layouts[operand])
            yield ReadRecord(
                value=value.name, operator=node.label, op=node.op.name, strategy=str(strategy), moved=moved
            )
        for i, layout in self.outputs.get(value, ()):
            yield ReadRecord(value=value.name, output=i, moved=self._moved(value, layout))

    def _moved(self, value: Value, need: Layout) -> MovedRecord | None:
        if need == self.plan.layouts[value]:
            return None
        move = self.moves.get((value, need))
        if move is None or not move.nbytes:
            return MovedRecord(str(need))
        steps = tuple(f"{one.step.kind} over {one.step.groups}" for one in move.collectives)
        return MovedRecord(str(need), steps, move.nbytes, move.seconds)


def _held(value: Value, layout: Layout) -> str:
    return str(value.type.with_shape(layout.local_shape(value.type.shape)))
