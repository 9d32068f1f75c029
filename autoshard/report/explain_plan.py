"""One operator or value of a plan, in words: how it lies, what makes and reads it, what decided that, and what else it
could be for how much more."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from autoshard.cost.prices import prices_for
from autoshard.ir.flow import is_nest
from autoshard.ir.graph import Node, Value, walk
from autoshard.layout.layout import Layout
from autoshard.plan.plan import Cause, Option
from autoshard.propagate.record import Output, Place
from autoshard.report.summary import Move, OperatorRow, summarize
from autoshard.search.instead import node_options
from autoshard.util.errors import UnknownNameError
from costmodel import format_bytes, format_seconds

if TYPE_CHECKING:
    from autoshard.search.planned import PlannedData

_STEP = "  "
_MOST_STEPS, _MOST_OTHERS, _MOST_READERS = 5, 3, 12


def explain_planned(planned: PlannedData, place: Place) -> Iterator[str]:
    """The lines that tell how a place of the program lies in a plan.

    Args:
        place: a value of the working copy from which rules spread, or an output.
    """
    if isinstance(place, Output):
        plan = planned.plan
        yield _head(planned)
        yield f"{_STEP}{_lies(plan.graph.outputs[place.index], plan.outputs[place.index])}"
        return
    origin = place.origin
    name = getattr(origin, "name", None)
    same = (one for one in planned.plan.layouts if one is origin or one.name == name)
    value = next(same, None)
    if value is None:
        yield _head(planned)
        yield f"{_STEP}it is no value of its own: it was folded into what uses it, or nothing needs it"
        return
    yield from _Explained(planned).lines([value])


def explain_name(planned: PlannedData, name: str) -> str:
    """How the operator or value of that name lies in a plan, as text.

    Raises:
        UnknownNameError: there is none; the message lists near names.
    """
    return "\n".join(_Explained(planned).lines(_named(planned, name))) + "\n"


def plan_names(planned: PlannedData) -> dict[str, tuple[Value, ...]]:
    """All names of a plan: of its values, and of its operators with the values that these make."""
    found = {node.label: tuple(node.results) for node in walk(planned.graph.nodes)}
    return {**found, **{value.name: (value,) for value in planned.plan.layouts if value.name not in found}}


def _named(planned: PlannedData, name: str) -> tuple[Value, ...]:
    known = plan_names(planned)
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=6, cutoff=0.5)
    told = (
        f"did you mean {', '.join(near)}?" if near else f"it has {len(known)} names, such as {', '.join([*known][:4])}"
    )
    raise UnknownNameError(f"the plan of {planned.graph.name} has no operator or value named {name!r}; {told}")


def _head(planned: PlannedData) -> str:
    return f"in the plan by {planned.plan.search} on mesh {planned.plan.mesh}:"


class _Explained:
    """What the lines of all values of a plan are told from."""

    def __init__(self, planned: PlannedData) -> None:
        self.planned, self.plan = planned, planned.plan
        self.makers = {value: node for node in walk(planned.graph.nodes) for value in node.results}
        self.readers: dict[Value, list[tuple[Node, int]]] = {}
        for node in walk(planned.graph.nodes):
            for place, value in enumerate(node.operands):
                self.readers.setdefault(value, []).append((node, place))

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

    def lines(self, values: list[Value] | tuple[Value, ...]) -> Iterator[str]:
        yield _head(self.planned)
        for value in values:
            yield f"{_STEP}{_lies(value, self.plan.layouts[value])}"
        makers = dict.fromkeys(self.makers[value] for value in values if value in self.makers)
        for node in makers:
            yield from self._made(node)
        for value in values:
            if value in self.plan.input_causes:
                yield f"{_STEP}an input of the program: {self.plan.input_causes[value]}"
                yield from self._chain(self.plan.input_causes[value])
            yield from self._read(value)

    def _made(self, node: Node) -> Iterator[str]:
        decision, row = self.plan.decisions[node], self.rows[node]
        where = f"  [{node.source}]" if node.source is not None else ""
        yield f"{_STEP}made by {node.op.name} {node.label} as {decision.strategy}: {decision.cause}{where}"
        yield from self._chain(decision.cause)
        times = f"{row.times} x " if row.times > 1 else ""
        share = row.seconds * row.times / self.planned.cost.seconds if self.planned.cost.seconds else 0.0
        yield f"{_STEP}{_STEP}takes {times}{format_seconds(row.seconds)}, {share:.1%} of the step"
        if is_nest(node):
            return
        own, *others = node_options(self.plan, node, prices_for(self.planned.hardware)) or (decision.chosen,)
        for option in others[:_MOST_OTHERS]:
            more = _seconds(option) - _seconds(own)
            words = f"{format_seconds(abs(more))} {'more' if more >= 0 else 'less here, and more elsewhere'}"
            leaving = ", ".join(f"[{layout}]" for layout in option.strategy.result_layouts)
            yield f"{_STEP}{_STEP}instead {option.strategy} leaving {leaving}: {words} ({_parts(option)})"

    def _chain(self, cause: Cause) -> Iterator[str]:
        """What it followed from, and what that followed from."""
        seen: set[str] = set()
        for _ in range(_MOST_STEPS):
            name = next((one for one in cause.neighbours if one in self.causes and one not in seen), None)
            if name is None:
                return
            seen.add(name)
            cause = self.causes[name]
            yield f"{_STEP}{_STEP}{name}: {cause}"

    def _read(self, value: Value) -> Iterator[str]:
        readers = self.readers.get(value, ())
        for node, operand in readers[:_MOST_READERS]:
            strategy = self.plan.strategy(node)
            need = strategy.operand_layouts[operand]
            moved = "" if need == self.plan.layouts[value] else self._moved(value, need)
            yield f"{_STEP}read by {node.op.name} {node.label} as {strategy}{moved}"
        if len(readers) > _MOST_READERS:
            yield f"{_STEP}and by {len(readers) - _MOST_READERS} more"
        for i, (output, layout) in enumerate(zip(self.plan.graph.outputs, self.plan.outputs, strict=True)):
            if output is value:
                moved = "" if layout == self.plan.layouts[value] else self._moved(value, layout)
                yield f"{_STEP}output {i} of the program{moved}"

    def _moved(self, value: Value, need: Layout) -> str:
        move = self.moves.get((value, need))
        told = f", after a redistribution to [{need}]"
        if move is None or not move.nbytes:
            return told
        steps = ", ".join(f"{one.step.kind} over {one.step.groups}" for one in move.collectives)
        return f"{told}: {steps}, {format_bytes(move.nbytes)} in {format_seconds(move.seconds)}"


def _lies(value: Value, layout: Layout) -> str:
    if not layout.used:
        return f"{value.name} lies whole on each device, {value.type}"
    local = value.type.with_shape(layout.local_shape(value.type.shape))
    return f"{value.name} lies as [{layout}]: a device holds {local}"


def _seconds(option: Option) -> float:
    return option.edge_seconds + option.completion_seconds + option.work_seconds


def _parts(option: Option) -> str:
    parts = (
        ("bringing operands", option.edge_seconds),
        ("bringing results", option.completion_seconds),
        ("work", option.work_seconds),
    )
    return ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in parts if seconds)
