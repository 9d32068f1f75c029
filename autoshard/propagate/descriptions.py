"""Words for what propagation did: names of places and operators, causes, conflicts, levels of operator priority."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from autoshard.ir.graph import Value
from autoshard.layout.layout import Refs
from autoshard.layout.sdy_show import show_axis
from autoshard.layout.sharding import DimSharding, Sharding
from autoshard.ops.control import ARG
from autoshard.propagate import causes, conflicts
from autoshard.propagate.causes import AxisCause
from autoshard.propagate.conflicts import AxisConflict
from autoshard.propagate.levels import Level
from autoshard.propagate.mutable_ir import Block, MutableValue, Operation
from autoshard.propagate.record import (
    ARGUMENT,
    BARRIER,
    CONSTRAINT,
    EDGE,
    MANUAL_IN,
    MANUAL_OUT,
    OUTPUT,
    RESULT,
    Holder,
    Output,
    PropagationRecord,
    Request,
)
from autoshard.propagate.step import Direction
from autoshard.util.source import Source


@dataclass(eq=False)
class Descriptions:
    """Tells about one propagation.

    Args:
        record: what the mutable module looked like.
        main: the name of the function that values are named without.
        sources: source lines of arguments and, by position, of main's outputs.
        outputs: what the program calls the outputs of main, '' where it does not say.
    """

    record: PropagationRecord
    main: str
    sources: Mapping[Value | int, Source] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()

    # -- names

    def holder(self, location: Holder) -> str:
        """The name of a value, inside a function with that in front: `%3`, `f/%3`; or `output 0`."""
        if isinstance(location, Output):
            return self.output(location)
        if location.origin is not None:
            function = function_of(location)
            return f"{function}/{location.origin.name}" if function not in ("", self.main) else location.origin.name
        flow = self.record.flows.get(location)
        if flow is not None:
            return self.holder(flow.owner)
        op = location.defining
        if op is not None and op.operands:
            return f"the {_MADE.get(op.name, op.name)} {self.holder(op.operands[0])}"
        return op.name if op is not None else "an argument"

    def output(self, output: Output) -> str:
        name = output.function.attrs["name"]
        if name != self.main:
            return f"output {output.index} of {name}"
        told = self.outputs[output.index] if output.index < len(self.outputs) else ""
        return f"output {output.index}" + (f" ({told})" if told else "")

    def operator(self, op: Operation) -> str:
        """An operator with the name that the user gave it, else that of its result: `MatMul dense1.matmul`."""
        if op.name == "DataFlowEdge" and op.results and op.results[0] in self.record.flows:
            return self.operator(self.record.flows[op.results[0]].op)
        name = op.origin.name if op.origin is not None else ""
        label = name or (self.holder(op.results[0]) if op.results and op.origin is not None else "")
        return f"{operator_name(op)} {label}".strip()

    def source(self, cause: AxisCause) -> str:
        """The source line of a cause, '' if it is not known."""
        if cause.asked_by is not None:
            return self.request_location(cause.asked_by)
        return self.line(cause.event.op) if cause.event is not None else _line(_maker(cause.holder))

    def request_location(self, request: Request) -> str:
        """The source line where something was asked."""
        if request.source is not None:
            return str(request.source)
        at = request.at
        if isinstance(at, Output):
            return str(self.sources.get(at.index, "")) if at.function.attrs["name"] == self.main else ""
        return str(self.sources.get(at.origin, "")) if at.origin is not None else ""

    def line(self, op: Operation) -> str:
        if op.name == "DataFlowEdge" and op.results and op.results[0] in self.record.flows:
            return _line(self.record.flows[op.results[0]].op)
        return _line(op)

    # -- causes

    def request(self, request: Request) -> str:
        """What somebody asked, without what was asked: `asked of argument %arg0`."""
        at = self.holder(request.at)
        if request.what == ARGUMENT:
            return f"asked of argument {at}"
        if request.what == OUTPUT:
            return f"asked of {at}"
        if request.what == RESULT:
            return f"asked of {at}"
        return f"asked {_BY[request.what]} {at}"

    def cause(self, cause: AxisCause) -> str:
        """One cause as a part of a sentence."""
        if cause.asked_by is not None:
            return self.asked_text(cause)
        assert cause.origin is not None
        told = _HOW[cause.how](self, cause)
        return f"from {self.dim(cause.origin, cause.origin_dim)}, {told}"

    def asked_text(self, cause: AxisCause) -> str:
        request = cause.asked_by
        assert request is not None
        spec = request.sharding.dims[cause.dim]
        taken = "" if self.holder(request.at) == self.holder(cause.holder) else ", which this value takes over"
        return f"{self.request(request)}: {dim_text(spec, request.sharding)}{taken}"

    def dim(self, location: Holder, dim: int | None) -> str:
        return self.holder(location) if dim is None else f"{self.holder(location)} dim {dim}"

    def step(self, cause: AxisCause) -> str:
        assert cause.event is not None and cause.tensors is not None
        return f"{_way(cause)} through {self.operator(cause.event.op)}{self.positions(cause)}"

    def positions(self, cause: AxisCause) -> str:
        """Where the two values stand in the operator, where its operands and results differ."""
        assert cause.event is not None and cause.tensors is not None
        rule = causes.rule_of(cause.event.step)
        count = len(rule.operands)
        if len(rule.results) == 1 and count == 1:
            return ""
        names = [f"operand {t}" if t < count else f"result {t - count}" for t in cause.tensors]
        if len(rule.results) == 1:
            names = ["result" if name == "result 0" else name for name in names]
        kind = rule.factors[cause.factor].kind if cause.factor is not None else "pass"
        told = ", which it sums over" if kind == "reduction" else ""
        return f" ({names[0]} to {names[1]}{told})"

    def flow(self, cause: AxisCause) -> str:
        assert cause.event is not None and cause.tensors is not None
        flow = self.record.flows[cause.event.op.results[0]]
        into = flow.edge.targets[0].kind == ARG
        back = cause.tensors[0] >= len(cause.event.op.holders or ()) - 1
        told = _FLOWS.get(flow.op.name)
        if told is None:
            told = "into the body of {}" if into else "out of the body of {}"
        told = told.format(self.called(flow.op))
        return f"backward: it goes {told}" if back else f"forward {told}"

    def called(self, op: Operation) -> str:
        if op.name == "NamedComputation":
            return f"the function {op.attrs['name']}, called at {self.holder(op.results[0])}"
        return self.operator(op)

    def returned(self, cause: AxisCause) -> str:
        location, origin = cause.holder, cause.origin
        if isinstance(location, Output):
            return f"which is returned as {self.output(location)}"
        return f"as which {self.holder(location)} is returned" if origin is not None else ""

    def group(self, cause: AxisCause) -> str:
        number = next(
            (n for value, (n, _) in self.record.groups.items() if self.record.holder_of(value) is cause.holder), ""
        )
        return f"as both are in sharding group {number}".rstrip()

    def call(self, cause: AxisCause) -> str:
        return "which the function that is called returns"

    def reshard(self, cause: AxisCause) -> str:
        return "so that the shardings of the operator fit together; the result is moved afterwards"

    # -- conflicts

    def conflict(self, conflict: AxisConflict, sharding: Sharding) -> str:
        """A conflict as a sentence: who wanted what, what was in the way, and how it ended."""
        told = f"{axes_text(conflict.wanted.axes, sharding)} of {self.dim(conflict.wanted.holder, conflict.wanted.dim)}"
        return f"{told} did not spread to {self.target(conflict)}: {self.why(conflict, sharding)}"

    def target(self, conflict: AxisConflict) -> str:
        into = conflict.into
        return self.dim(into.holder, into.dim) if into.dim is not None else "the other values"

    def why(self, conflict: AxisConflict, sharding: Sharding) -> str:
        against = conflict.against
        where = self.dim(against.holder, against.dim)
        axes = axes_text(against.axes, sharding)
        return _WHY[conflict.why].format(where=where, axes=axes, value=self.holder(against.holder))


def _way(cause: AxisCause) -> str:
    assert cause.event is not None and cause.tensors is not None
    count = len(causes.rule_of(cause.event.step).operands)
    source, target = cause.tensors
    if (source < count) == (target < count):
        return "sideways"
    return "forward" if source < count else "backward"


_HOW = {
    causes.STEP: Descriptions.step,
    causes.FLOW: Descriptions.flow,
    causes.RETURNED: Descriptions.returned,
    causes.GROUP: Descriptions.group,
    causes.CALL: Descriptions.call,
    causes.RESHARD: Descriptions.reshard,
}
_BY = {
    CONSTRAINT: "by the sharding constraint",
    BARRIER: "by the propagation barrier",
    EDGE: "of the data-flow edge",
    MANUAL_IN: "by the manual computation, of its input",
    MANUAL_OUT: "by the manual computation, of its result",
}
_FLOWS = {
    "While": "around the loop {}",
    "Case": "out of the branches of {}",
    "OptimizationBarrier": "through {}",
}
_WHY = {
    conflicts.DISAGREE: "{where} has {axes} instead; both stay as they are",
    conflicts.TAKEN: "{where} has {axes} already, and an axis splits a tensor once",
    conflicts.LARGER: "{where} got {axes}, which come from a larger tensor",
    conflicts.PARTS: "{where} got {axes}, which make more parts",
    conflicts.ORDER: "{where} got {axes}: of values of one size, the earlier operand or dim comes first",
    conflicts.REPLICATED: "{value} is asked to stay whole along {axes}",
    conflicts.UNREDUCED: "{value} holds terms of a sum over {axes}",
    conflicts.WAITING: "{value} keeps {axes} for a dim of a later priority",
    conflicts.CLOSED: "{where} is closed",
    conflicts.LATER: "{where} waits for the round of its priority",
    conflicts.STRIDE: "what splits {where} already does not divide it, so more axes would pick single elements",
    conflicts.UNEVEN: "they do not divide the part of {where} that they would split",
    conflicts.PIECE: "only a piece of an axis would fit, and pieces do not spread",
    conflicts.HIDDEN: "a part of {where} comes first that cannot be split alone",
    conflicts.RESULT: "the result does not take them either, so that nothing would be gained",
}


def axes_text(axes: Refs, sharding: Sharding) -> str:
    """Axes as a sharding's text writes them: `"x", "y":(1)2`."""
    return ", ".join(show_axis(axis, sharding.mesh) for axis in axes)


def dim_text(spec: DimSharding, sharding: Sharding) -> str:
    """What is asked of a dim as a sharding's text writes it: `{"x", ?}p1`."""
    axes = [axes_text((axis,), sharding) for axis in spec.axes] + ["?"] * (not spec.closed)
    return f"{{{', '.join(axes)}}}" + (f"p{spec.priority}" if spec.priority is not None else "")


def operator_name(op: Operation) -> str:
    """The operator's name; of what autoshard does not know, the operation's, or that of the function called."""
    if op.name == "Opaque":
        return str(op.attrs["name"])
    return f"custom call {op.attrs['target']}" if op.name.endswith("CustomCall") else op.name


def function_of(location: MutableValue) -> str:
    """The function that a value is in; '' if its operation is gone."""
    block = location.owner if isinstance(location.owner, Block) else location.owner.parent
    while block is not None:
        op = block.owner
        if op.name in ("Function", "NamedComputation"):
            return op.attrs["name"]
        block = op.parent
    return ""


# What passes put behind a value.
_MADE = {"ShardingConstraint": "constraint on", "Reshard": "moved"}


def _line(op: Operation | None) -> str:
    source = op.origin.source if op is not None and op.origin is not None else None
    return str(source or "")


def _maker(location: Holder) -> Operation | None:
    return None if isinstance(location, Output) else location.defining


_SPREADS = {
    "pointwise": "elementwise operators",
    "move": "operators that only move data",
    "slice": "slices",
    "": "other operators",
    "broadcast": "broadcasts",
}
_ONLY = {Direction.FORWARD: " forward", Direction.BACKWARD: " backward", Direction.BOTH: ""}


def level_description(level: Level) -> str:
    """Which operators may spread shardings at a level of operator priority."""
    told = [f"{_SPREADS[spread]}{_ONLY[way]}" for spread, way in level.spreads.items() if way]
    told += [f"{name}{_ONLY[way]}" for name, way in level.operators.items() if way]
    if level.others:
        kept = [_SPREADS[spread] for spread, way in level.spreads.items() if not way]
        limits = [
            f"{_SPREADS[spread]} only{_ONLY[way]}" for spread, way in level.spreads.items() if way != level.others
        ]
        told = [", ".join((f"all operators{_ONLY[level.others]}", *limits, *(f"no {one}" for one in kept)))]
    text = joined(told) or "nothing"
    if level.pass_only:
        text += ", along dims that they neither sum nor need whole"
    return f"{text}, where each operand has one use" if level.single_use else text


def joined(parts: Iterable[str]) -> str:
    """`a, b and c`."""
    *first, last = [*parts] or [""]
    return f"{', '.join(first)} and {last}" if first else last
