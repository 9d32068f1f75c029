"""Causes: from each axis that splits a dim of a value, step by step back to what a person asked for.

`AxisHistory` goes through the steps of a propagation once and keeps which one gave which axes to which value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from autoshard.core.rule import Rule
from autoshard.layout.layout import Refs
from autoshard.layout.mesh import AxisRef
from autoshard.layout.sharding import Sharding
from autoshard.ops.control import INTO
from autoshard.propagate.driver import Event
from autoshard.propagate.edges import is_edge
from autoshard.propagate.mutable_ir import MutableValue, Operation
from autoshard.propagate.projection import FactorMap, factor_map
from autoshard.propagate.record import MANUAL_IN, Holder, Output, PropagationRecord, Request
from autoshard.propagate.run import Log
from autoshard.propagate.step import AddedAxes, PropagationStep

ASKED, STEP, FLOW, RETURNED, GROUP, CALL, RESHARD = "asked", "step", "flow", "returned", "group", "call", "reshard"


@dataclass(frozen=True, eq=False)
class AxisCause:
    """How an axis came to split a dim.

    Attributes:
        how: ASKED by a person; by a STEP of an operator; along a data-FLOW edge; between an output and the value
            RETURNED there; with the other members of a GROUP; from the function that a CALL calls; by a RESHARD that
            lets the shardings of an operator fit together.
        holder, dim, axis: what it came to.
        origin, origin_dim: where it came from; None if it was asked.
        asked: who asked, if somebody did.
        number: the position of the step in the log; None before and after spreading.
        event: that step.
        tensors: (source, target) as positions among the operator's operands and results.
        factor: the factor of its rule that the axis spread along.
        before: how the axis came to where it came from.
    """

    how: str
    holder: Holder
    dim: int
    axis: AxisRef
    origin: Holder | None = None
    origin_dim: int | None = None
    asked_by: Request | None = None
    number: int | None = None
    event: Event | None = None
    tensors: tuple[int, int] | None = None
    factor: int | None = None
    before: AxisCause | None = None

    @property
    def chain(self) -> list[AxisCause]:
        """This cause and those before it; the last one is what was asked."""
        found, cause = [], self
        while cause is not None:
            found.append(cause)
            cause = cause.before
        return found

    @property
    def request(self) -> Request:
        """What was asked in the first place."""
        request = self.chain[-1].asked_by
        assert request is not None, "every chain of causes begins with what was asked"
        return request


class _Given(NamedTuple):
    """Axes that a value or output got from another one."""

    number: int
    how: str
    dim: int
    axes: Refs
    origin: Holder
    origin_dim: int
    # The latest step whose result at the origin counts.
    until: int
    tensors: tuple[int, int] | None = None
    factor: int | None = None


_AllGiven = dict[Holder, list[_Given]]


class Lost(NamedTuple):
    """Axes that a pass took from a dim after spreading, and why."""

    dim: int
    axes: Refs
    why: str


class AxisHistory:
    """Who gave which axes to whom.

    Args:
        record: the three looks at the mutable module that the log is of.
        log: what was done between the second and the third.
    """

    def __init__(self, record: PropagationRecord, log: Log) -> None:
        self.record = record
        self.log = log
        self._traced: dict[tuple[Holder, int, int, AxisRef], list[AxisCause]] = {}

    # -- tracing

    def trace(self, value: MutableValue | Output, dim: int, axis: AxisRef) -> list[AxisCause]:
        """How an axis came to split a dim of a value of the finished module.

        An axis whose pieces came on several ways has a cause for each piece, major to minor.
        """
        causes = self.at(self._kept(value), dim, axis)
        for piece in _without(axis, [cause.axis for cause in causes]):
            causes += self._after(value, dim, piece)
        return sorted(causes, key=lambda cause: cause.axis.pre)

    def at(self, location: Holder, dim: int, axis: AxisRef, number: int | None = None) -> list[AxisCause]:
        """The same for a value or output as it was just before a step, or when spreading ended."""
        given = self._given
        return self._at(given, location, dim, axis, len(self.log.events) if number is None else number - 1)

    def _kept(self, value: MutableValue | Output) -> Holder:
        return value if isinstance(value, Output) else self.record.holder_of(value)

    def _at(self, known: _AllGiven, location: Holder, dim: int, axis: AxisRef, until: int) -> list[AxisCause]:
        causes: list[AxisCause] = []
        left = [axis]
        asked = self.record.start.get(location)
        request = self.record.requests.get(location)
        if asked is not None and request is not None:
            axes = asked.dims[dim].axes
            causes += [AxisCause(ASKED, location, dim, piece, asked_by=request) for piece in _overlaps(axes, left)]
            left = _rest(left, axes)
        for given in known.get(location, ()):
            if not left:
                break
            if given.dim == dim and given.number <= until:
                for piece in _overlaps(given.axes, left):
                    causes += self._through(known, given, location, piece)
                left = _rest(left, given.axes)
        return causes + self._manual(location, dim, left)

    def _manual(self, location: Holder, dim: int, left: list[AxisRef]) -> list[AxisCause]:
        """Manual axes of the operand of a manual computation; the argument inside, which stands for it, lacks them."""
        flow = self.record.flows.get(location) if isinstance(location, MutableValue) else None
        if flow is None or flow.edge.crosses != INTO:
            return []
        parent, index = flow.op, flow.edge.targets[0].index
        sharding: Sharding = parent.attrs["in_shardings"][index]
        source = parent.origin.source if parent.origin is not None else None
        request = Request(MANUAL_IN, flow.owner, sharding, source, parent)
        manual = tuple(axis for axis in sharding.dims[dim].axes if axis.name in parent.attrs["manual_axes"])
        return [AxisCause(ASKED, location, dim, piece, asked_by=request) for piece in _overlaps(manual, left)]

    def _through(self, known: _AllGiven, given: _Given, location: Holder, axis: AxisRef) -> list[AxisCause]:
        key = location, given.number, given.dim, axis
        causes = self._traced.get(key)
        if causes is None:
            before = self._at(known, given.origin, given.origin_dim, axis, given.until)
            causes = self._traced[key] = [self._cause(given, location, one) for one in before]
        return causes

    def _cause(self, given: _Given, location: Holder, before: AxisCause) -> AxisCause:
        number = given.number if given.number >= 0 else None
        return AxisCause(
            given.how,
            location,
            given.dim,
            before.axis,
            given.origin,
            given.origin_dim,
            number=number,
            event=self.log.events[number] if number is not None else None,
            tensors=given.tensors,
            factor=given.factor,
            before=before,
        )

    # -- after spreading

    def _after(self, value: MutableValue | Output, dim: int, axis: AxisRef) -> list[AxisCause]:
        """An axis that a value has besides: by itself, from what its function returns, or to fit its operator.

        A value whose data-flow edge was given an operation by hand, without a sharding, keeps what it was asked.
        """
        own = self.at(value, dim, axis)
        if own:
            return own
        causes: list[AxisCause] = []
        left = [axis]
        for how, origin, of_dim in self._later_origins(value, dim):
            found = [one for piece in left for one in self.at(origin, of_dim, piece)]
            causes += [AxisCause(how, value, dim, one.axis, origin, of_dim, before=one) for one in found]
            left = _rest(left, tuple(one.axis for one in found))
            if not left:
                break
        return causes

    def _later_origins(self, value: MutableValue | Output, dim: int) -> Iterator[tuple[str, Holder, int]]:
        if isinstance(value, Output):
            returned = value.function.blocks[0].terminator.operands[value.index]
            yield CALL, self.record.holder_of(returned), dim
            while (maker := returned.defining) is not None and maker.name == "Reshard":
                # It is moved to where the result of a call was kept, whose function gives it otherwise.
                returned = maker.operands[0]
                yield CALL, self.record.holder_of(returned), dim
            return
        op = value.defining
        if op is None:
            return
        kept = self.record.holder_of(value)
        if isinstance(kept, MutableValue) and kept in self.record.flows and kept.defining is not None:
            for source in (kept.defining.holders or ())[:-1]:
                yield CALL, source, dim
        if op.holders is None:
            return
        same, others = _meeting(self._rules.get(op), op.holders.index(value) if value in op.holders else None, dim)
        for tensor, of_dim in (*same, *others):
            yield RESHARD, op.holders[tensor], of_dim

    @cached_property
    def _rules(self) -> dict[Operation, Rule | None]:
        return {op: op_class.used for op, op_class in self.record.ops}

    def lost(self, value: MutableValue | Output, now: Sharding | None) -> list[Lost]:
        """The axes that spreading gave to a value and that passes took away again."""
        before = self.record.end.get(self._kept(value))
        if before is None or before is now:
            return []
        lost = []
        for dim, had in enumerate(before.dims):
            has = now.dims[dim].axes if now is not None else ()
            axes = tuple(rest for axis in had.axes for rest in _without(axis, has))
            if axes:
                lost.append(Lost(dim, axes, _why_lost(value, dim, before)))
        return lost

    # -- reading the log

    @cached_property
    def _given(self) -> _AllGiven:
        """What each value and output got, traced on the way, so that no chain is followed far, however long it is."""
        found: _AllGiven = {}
        for location, given in self._all_given():
            found.setdefault(location, []).append(given)
            for axis in given.axes:
                self._through(found, given, location, axis)
        return found

    def _all_given(self) -> Iterator[tuple[Holder, _Given]]:
        yield from self._in_groups_at_start()
        for number, event in enumerate(self.log.events):
            holders = self.holders_of(event)
            of_rule = factor_map(rule_of(event.step))
            for placed in event.step.added:
                given = _given(number, event, placed, holders, of_rule)
                if given is not None:
                    yield holders[placed.tensor], given
            for tensor, sharding in event.step.changes:
                yield from self._in_group(number, holders, tensor, sharding)

    def _in_groups_at_start(self) -> Iterator[tuple[Holder, _Given]]:
        """Members of a group start with what one of them has."""
        for value, (_, members) in self.record.groups.items():
            location = self.record.holder_of(value)
            for member in members:
                origin = self.record.holder_of(member)
                sharding = self.record.start.get(origin)
                if origin is not location and sharding is not None:
                    for dim, spec in enumerate(sharding.dims):
                        if spec.axes:
                            yield location, _Given(-1, GROUP, dim, spec.axes, origin, dim, -1)

    def _in_group(
        self, number: int, holders: list[Holder], tensor: int, sharding: Sharding
    ) -> Iterator[tuple[Holder, _Given]]:
        """What changes for a member of a group changes for all; of an output, for those of the returned value."""
        origin = holders[tensor]
        value = holders[0] if isinstance(origin, Output) else origin
        for member in self._mates.get(value, ()):
            for dim, spec in enumerate(sharding.dims):
                if spec.axes and member is not origin:
                    yield member, _Given(number, GROUP, dim, spec.axes, origin, dim, number)

    def holders_of(self, event: Event) -> list[Holder]:
        """The places that a step was on, by the positions of its tensors."""
        if event.output is not None:
            output = Output(event.op, event.output)
            return [self.record.returned[output], output]
        return list(event.op.holders or ())

    @cached_property
    def _mates(self) -> dict[Holder, list[Holder]]:
        """The members of a group, by each of them."""
        record = self.record
        return {
            record.holder_of(value): [record.holder_of(member) for member in members]
            for value, (_, members) in record.groups.items()
        }


def rule_of(step: PropagationStep) -> Rule:
    """The rule that a step went by."""
    return step._inputs[0]


def dim_of(of_rule: FactorMap, tensor: int, factor: int) -> int | None:
    """The dim of a tensor that a factor of the rule lies in."""
    return next((dim for dim, factors in enumerate(of_rule.tensors[tensor].dims) if factor in factors), None)


def _given(number: int, event: Event, placed: AddedAxes, holders: list[Holder], of_rule: FactorMap) -> _Given | None:
    into = dim_of(of_rule, placed.tensor, placed.factor)
    out_of = dim_of(of_rule, placed.source, placed.factor)
    if into is None or out_of is None:
        return None
    how = STEP
    if event.output is not None:
        how = RETURNED
    elif is_edge(event.op.operator):
        how = FLOW
    tensors = placed.source, placed.tensor
    return _Given(number, how, into, placed.axes, holders[placed.source], out_of, number - 1, tensors, placed.factor)


def _meeting(rule: Rule | None, tensor: int | None, dim: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The (tensor, dim) that share a factor with a dim of an operator's tensor, and all others."""
    if rule is None or tensor is None:
        return [], []
    of_rule = factor_map(rule)
    wanted = set(of_rule.tensors[tensor].dims[dim])
    same: list[tuple[int, int]] = []
    others: list[tuple[int, int]] = []
    for t, of_tensor in enumerate(of_rule.tensors):
        for d, factors in enumerate(of_tensor.dims):
            if (t, d) != (tensor, dim):
                (same if wanted & set(factors) else others).append((t, d))
    return same, others


def _common(axis: AxisRef, other: AxisRef) -> AxisRef | None:
    """The piece that two have in common. One of size 1 splits nothing, but stands where it was put all the same."""
    if axis.size == 1:
        return axis if axis == other else None
    return axis.overlap(other)


def _overlaps(axes: Refs, pieces: list[AxisRef]) -> Iterator[AxisRef]:
    for piece in pieces:
        for axis in dict.fromkeys(axes):  # a function called inside a manual computation may name its axes again
            common = _common(piece, axis)
            if common is not None:
                yield common


def _rest(pieces: list[AxisRef], taken: Refs) -> list[AxisRef]:
    return [rest for piece in pieces for rest in _without(piece, taken)]


def _without(axis: AxisRef, taken: Iterable[AxisRef]) -> list[AxisRef]:
    """The pieces of an axis that are in none of `taken`."""
    left = [axis]
    for other in taken:
        left = [rest for piece in left for rest in _ends(piece, other)]
    return left


def _ends(piece: AxisRef, other: AxisRef) -> list[AxisRef]:
    if _common(piece, other) is None:
        return [piece]
    if piece.size == 1:
        return []
    ends = (piece.prefix_without_overlap(other), piece.suffix_without_overlap(other))
    return [end for end in ends if end is not None]


UNEVEN, PIECES, MOVED = "uneven", "pieces", "moved"


def _why_lost(value: MutableValue | Output, dim: int, before: Sharding) -> str:
    """UNEVEN parts at a boundary, PIECES of axes at main's inputs and outputs, or MOVED to fit an operator."""
    maker = value.defining if isinstance(value, MutableValue) else None
    if maker is not None and maker.name not in ("Call", "ManualComputation"):
        return MOVED
    if any(axis.size != before.mesh.sizes[axis.name] for axis in before.dims[dim].axes):
        size = _size(value, dim)
        return UNEVEN if size % before.dims[dim].size else PIECES
    return UNEVEN


def _size(value: MutableValue | Output, dim: int) -> int:
    if isinstance(value, Output):
        value = value.function.blocks[0].terminator.operands[value.index]
    return value.type.shape[dim]
