"""What a module looked like around a propagation: all that explains its shardings later.

Passes rewrite the copy before and after shardings spread, and the log names what was there in between. So three looks
are taken: as people asked, as spreading started, and as it ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from autoshard.ir.graph import Value
from autoshard.layout.sharding import Sharding
from autoshard.ops.control import Edge, data_flow_edge, function, sharding_constraint
from autoshard.ops.registry import lookup
from autoshard.propagate.edges import of_edge_op
from autoshard.propagate.mutable_ir import Block, MutableModule, MutableValue, Operation
from autoshard.propagate.op_classes import OpClass
from autoshard.propagate.values import holder
from autoshard.util.source import Source

ARGUMENT, RESULT, OUTPUT = "argument", "result", "output"
CONSTRAINT, BARRIER, EDGE, MANUAL_IN, MANUAL_OUT = "constraint", "barrier", "edge", "manual in", "manual out"


class Output(NamedTuple):
    """Output `index` of a function, whose sharding is kept apart from that of the value returned there."""

    function: Operation
    index: int


class Flow(NamedTuple):
    """What a DataFlowEdge op stands for: an edge of `op`, whose sharding `owner` keeps where there is no such op."""

    op: Operation
    edge: Edge
    owner: MutableValue


# What holds a sharding.
Holder = MutableValue | Output


@dataclass(frozen=True)
class Request:
    """What a person asked for, and where.

    Attributes:
        what: how it was asked: ARGUMENT (of an input), RESULT (of an operator's result), OUTPUT, CONSTRAINT, BARRIER
            or EDGE (by an operation of that kind), MANUAL_IN or MANUAL_OUT (by a manual computation).
        at: what it was asked of; of another value the sharding was copied from there.
        sharding: what was asked.
        source: the line in the program, if it is known.
        op: the operation that asks, if one does.
    """

    what: str
    at: Holder
    sharding: Sharding
    source: Source | None = None
    op: Operation | None = None


@dataclass(eq=False)
class PropagationRecord:
    """Three looks at a mutable module; call `opened`, `started` and `ended` in this order.

    Attributes:
        requests: what was asked, by what had it when spreading started.
        start, end: the shardings at these times.
        kept: value -> the value that keeps its sharding, when spreading ended.
        flows: the result of a DataFlowEdge op -> its Flow.
        groups: value -> (number, members) of its sharding group.
        returned: output of main -> where the sharding of the value returned there is kept.
        ops: the ops at the end, with what propagation knew of them.
        calls: (block, value of the graph) -> what stood there for the results of a call.
    """

    requests: dict[Holder, Request] = field(default_factory=dict)
    start: dict[Holder, Sharding] = field(default_factory=dict)
    end: dict[Holder, Sharding | None] = field(default_factory=dict)
    holder_of_value: dict[MutableValue, MutableValue] = field(default_factory=dict)
    flows: dict[MutableValue, Flow] = field(default_factory=dict)
    groups: dict[MutableValue, tuple[int, list[MutableValue]]] = field(default_factory=dict)
    returned: dict[Output, MutableValue] = field(default_factory=dict)
    ops: list[tuple[Operation, OpClass]] = field(default_factory=list)
    calls: dict[tuple[Block | None, Value], list[MutableValue]] = field(default_factory=dict)
    _asked: set[Value] = field(default_factory=set)
    _outputs: dict[str, list[Sharding | None]] = field(default_factory=dict)

    # -- as people asked

    def opened(self, module: MutableModule) -> None:
        """Look at what was asked, before any pass."""
        for op in module.op.walk():
            if op.operator is function:
                self._outputs[op.attrs["name"]] = list(op.attrs["outputs"])
            for value in _values(op):
                if value.sharding is not None and value.origin is not None:
                    self._asked.add(value.origin)

    # -- as spreading starts

    def started(self, module: MutableModule) -> None:
        """Look at what has a sharding when spreading starts, and find out who asked for it."""
        for op in module.op.walk():
            if op.operator is function:
                self._outputs_of(op)
            elif op.operator is data_flow_edge:
                self.flows[op.results[0]] = Flow(*of_edge_op(op), op.operands[0])
            for value in _values(op):
                sharding = value.sharding
                if sharding is not None:
                    self.start[value] = sharding
                    if not sharding.is_replicated:
                        self.requests[value] = self._request(value, sharding)

    def _outputs_of(self, op: Operation) -> None:
        for i, sharding in enumerate(op.attrs["outputs"]):
            if sharding is not None:
                output = Output(op, i)
                self.start[output] = sharding
                self.requests[output] = Request(OUTPUT, output, sharding)

    def _request(self, value: MutableValue, sharding: Sharding) -> Request:
        """Who asked for what a value has: itself, else who gave it to the value."""
        own = _own_request(value, sharding)
        if own is not None and (value.origin is None or value.origin in self._asked):
            return own
        owner = value.owner
        if isinstance(owner, Operation) and owner.operator is data_flow_edge:
            inner = owner.operands[0]
            return self.requests.get(inner) or self._request(inner, sharding)
        return _of_a_user(value, sharding) or self._of_a_function(value, sharding) or own or _plain(value, sharding)

    def _of_a_function(self, value: MutableValue, sharding: Sharding) -> Request | None:
        """Results of a call without a sharding have got that of the function's outputs."""
        owner = value.owner
        name = owner.attrs.get("name") if isinstance(owner, Operation) else None
        if not isinstance(owner, Operation) or not owner.blocks or name not in self._outputs:
            return None
        body = Operation(lookup("Function"), (), (), {"name": name, "outputs": self._outputs[name]})
        return Request(OUTPUT, Output(body, value.index), sharding, _source(owner))

    # -- as spreading has ended

    def ended(self, module: MutableModule, groups: Mapping[int, list[MutableValue]]) -> None:
        """Look at what spreading has left, before the passes that come after it, and at the sharding groups it saw."""
        self.groups = {value: (number, members) for number, members in groups.items() for value in members}
        main = module.main
        if main is not None:
            operands = main.blocks[0].terminator.operands
            self.returned = {Output(main, i): holder(value) or value for i, value in enumerate(operands)}
        for op in module.op.walk():
            if op.operator is function:
                self.end.update({Output(op, i): sharding for i, sharding in enumerate(op.attrs["outputs"])})
            elif op.op_class is not None and op.op_class.used is not None:
                self.ops.append((op, op.op_class))
            for value in _values(op):
                holders = self.holder_of_value[value] = holder(value) or value
                self.end[value] = holders.sharding
                if op.blocks and value.origin is not None and value in op.results:
                    self.calls.setdefault((op.parent, value.origin), []).append(value)

    def holder_of(self, value: MutableValue) -> Holder:
        """What held the sharding of a value of the finished module when spreading ended."""
        if value in self.holder_of_value:
            return self.holder_of_value[value]
        block = value.owner.parent if isinstance(value.owner, Operation) else None
        found = self.calls.get((block, value.origin), []) if value.origin is not None else []
        equal = [one for one in found if self.end[one] is value.sharding]
        return self.holder_of_value[(equal or found)[0]] if found else value


def _values(op: Operation) -> list[MutableValue]:
    if not op.blocks:
        return op.results
    return [*op.results, *(arg for block in op.blocks for arg in block.args)]


def _source(op: Operation) -> Source | None:
    return op.origin.source if op.origin is not None else None


_BY_OPERATION = {"ShardingConstraint": CONSTRAINT, "PropagationBarrier": BARRIER, "DataFlowEdge": EDGE}


def _own_request(value: MutableValue, sharding: Sharding) -> Request | None:
    """The request that a value's position in the program stands for; None for what a pass made."""
    owner = value.owner
    if isinstance(owner, Block):
        what = MANUAL_IN if owner.owner.name == "ManualComputation" else ARGUMENT
        return Request(what, value, sharding, _source(owner.owner), owner.owner)
    if owner.operator is data_flow_edge and owner.origin is None:
        return None
    what = MANUAL_OUT if owner.name == "ManualComputation" else _BY_OPERATION.get(owner.name, RESULT)
    return Request(what, value, sharding, _source(owner), owner)


def _of_a_user(value: MutableValue, sharding: Sharding) -> Request | None:
    """A constraint or a manual computation behind a value has given it what it asks."""
    for op, index in value.users:
        if op.operator is sharding_constraint and op.attrs["sharding"] is sharding:
            return Request(CONSTRAINT, op.results[0], sharding, _source(op), op)
        if op.name == "ManualComputation" and op.attrs["in_shardings"][index] is sharding:
            return Request(MANUAL_IN, op.blocks[0].args[index], sharding, _source(op), op)
    return None


def _plain(value: MutableValue, sharding: Sharding) -> Request:
    op = value.defining
    return Request(RESULT, value, sharding, _source(op) if op is not None else None, op)
