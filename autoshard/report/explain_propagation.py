"""The story of one value: where each axis that splits it came from, step by step, and what stood in the way.

`explain(spread, "%3")` returns the text; `find(spread, name)` tells which value a name means.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from autoshard.frontends.propagated import PropagatedData
from autoshard.layout.sharding import Sharding
from autoshard.propagate.causes import PIECES, UNEVEN, AxisCause, Lost
from autoshard.propagate.conflicts import AxisConflict
from autoshard.propagate.descriptions import axes_text, joined, level_description
from autoshard.propagate.levels import ORDER
from autoshard.propagate.mutable_ir import MutableValue, Operation
from autoshard.propagate.record import Holder, Output
from autoshard.report.propagation import (
    ValueRow,
    all_conflicts,
    descriptions_of,
    output_rows,
    sharding_at,
    shown,
    value_rows,
)
from autoshard.util.errors import UnknownNameError
from autoshard.util.near import did_you_mean

_STEP, _NOTE = "  ", "       "


# -- which value a name means


def find(spread: PropagatedData, name: str) -> ValueRow:
    """The value of that name.

    Args:
        name: of a value, an argument or an operator's instance; `%arg0`, by position, for an argument that has a name
            of its own; any of these behind `f/` inside the function f; `output 0`, or what the program calls an output.

    Raises:
        UnknownNameError: there is none; the message lists near names, or says that the value is gone.
    """
    known = dict(names(spread))
    row = known.get(name) or known.get(f"%{name}")
    if row is not None:
        return row
    if name in _read(spread):
        raise UnknownNameError(f"{name!r} has no sharding: nothing needs it, or it was folded into what uses it")
    some = f"; it has {len(known)} names, such as {joined([*known][:4])}"
    hint = did_you_mean(name, known, 6, 0.5, some)
    raise UnknownNameError(f"{spread.graph.name} has no value, argument or operator named {name!r}{hint}")


def names(spread: PropagatedData) -> Iterator[tuple[str, ValueRow]]:
    """Every name that `find` knows; of equal ones the last counts, which is the most exact."""
    rows = [*value_rows(spread)]
    words = descriptions_of(spread)
    for row in rows:
        if isinstance(row.at, MutableValue) and row.at.defining is not None:
            yield from _instance(spread, row, row.at.defining)
    for row in output_rows(spread):
        yield from ((name, row) for name in _output_names(spread, row))
    for function in spread.module.functions:
        prefix = "" if function.attrs["name"] == spread.graph.name else f"{function.attrs['name']}/"
        by_value = {row.at: row for row in rows}
        for i, argument in enumerate(function.blocks[0].args):
            if argument in by_value:
                yield f"{prefix}%arg{i}", by_value[argument]
    for row in reversed(rows):
        if isinstance(row.at, MutableValue) and row.at.index == 0:
            yield words.holder(row.at).removesuffix("#0"), row
        yield row.name, row


def _instance(spread: PropagatedData, row: ValueRow, op: Operation) -> Iterator[tuple[str, ValueRow]]:
    name = op.origin.name if op.origin is not None else ""
    if name and isinstance(row.at, MutableValue) and row.at.index == 0:
        yield name, row


def _output_names(spread: PropagatedData, row: ValueRow) -> Iterator[str]:
    assert isinstance(row.at, Output)
    yield f"output {row.at.index}"
    told = spread.imported.output_names if spread.imported is not None else ()
    if row.at.index < len(told) and told[row.at.index]:
        yield told[row.at.index]


def _read(spread: PropagatedData) -> set[str]:
    """The names of all values that were read, also of those that are gone."""
    graph = spread.graph
    inner = {f"{name}/{value.name}" for name, function in graph.functions.items() for value in function.values}
    return {value.name for value in graph.values} | inner


# -- the story


def explain(spread: PropagatedData, name: str) -> str:
    """The story of a value as text, a line per step, from what was asked to the value.

    Raises:
        UnknownNameError: there is no such value.
    """
    row = find(spread, name)
    return "\n".join(_Description(spread, row).lines()) + "\n"


class _Description:
    def __init__(self, spread: PropagatedData, row: ValueRow) -> None:
        self.spread = spread
        self.row = row
        self.words = descriptions_of(spread)
        self.levels: dict[int, None] = {}
        self.conflicts: dict[Operation, list[AxisConflict]] = {}
        for conflict in all_conflicts(spread):
            self.conflicts.setdefault(conflict.op, []).append(conflict)
        self.reported: set[AxisConflict] = set()

    def lines(self) -> Iterator[str]:
        yield from self.head()
        row = self.row
        if row.sharding is None:
            yield "no rule splits it: no sharding reached it, and none was asked of it"
        else:
            for dim, spec in enumerate(row.sharding.dims):
                yield ""
                if spec.axes:
                    yield from self.split(dim, row.sharding)
                else:
                    yield from self.whole(dim)
        yield from self.kept()
        yield from self.taken()
        yield from self.legend()

    def head(self) -> Iterator[str]:
        row = self.row
        meshes = len(self.spread.module.meshes)
        yield f"{row.name}: {row.type}" + (f", sharding {shown(row.sharding, meshes)}" if row.sharding else "")
        if row.sharding is not None and not row.sharding.mesh.is_empty:
            local = row.type.with_shape(row.sharding.local_shape(row.type.shape))
            yield f"{_STEP}on mesh {row.sharding.mesh} a device holds {local}"
        op = row.at.defining if isinstance(row.at, MutableValue) else None
        if op is not None:
            operands = joined(self.words.holder(value) for value in op.operands)
            made = f"{_STEP}made by {self.words.operator(op)}" + (f" from {operands}" if operands else "")
            yield _with_source(made, self.words.line(op))

    # -- dims

    def split(self, dim: int, sharding: Sharding) -> Iterator[str]:
        spec = sharding.dims[dim]
        causes = [cause for axis in spec.axes for cause in self.spread.history.trace(self.row.at, dim, axis)]
        for group in _alike(causes):
            axes = axes_text(tuple(cause.axis for cause in group), sharding)
            parts = 1
            for cause in group:
                parts *= cause.axis.size
            yield f"dim {dim}, of {self.row.type.shape[dim]}, is split in {parts} over {axes}:"
            yield from self.chain(group[0])

    def chain(self, cause: AxisCause) -> Iterator[str]:
        steps = cause.chain[::-1]
        rows = [(self.words.dim(one.holder, one.dim), self.tag(one), self.words.cause(one)) for one in steps]
        widths = [min(max(len(row[i]) for row in rows), 40) for i in range(2)]
        for number, (one, (at, tag, told)) in enumerate(zip(steps, rows, strict=True), 1):
            when = f"{tag:<{widths[1]}}  " if widths[1] else ""
            yield _with_source(f"{_STEP}{number:>3}. {at:<{widths[0]}}  {when}{told}", self.words.source(one))
            yield from self.alternatives(one)

    def tag(self, cause: AxisCause) -> str:
        """When the step was done: at which level, in the round of which user priority."""
        if cause.event is None:
            return ""
        level = cause.event.level
        if level is not None:
            self.levels[level] = None
        priority = f"priority {cause.event.priority} " if cause.event.priority else ""
        return f"{priority}level {level + 1}" if level is not None else priority.strip()

    def alternatives(self, cause: AxisCause) -> Iterator[str]:
        """The conflicts at the operator of a step that the two places of the step had a part in."""
        if cause.event is None:
            return
        places = (cause.holder, cause.origin)
        for conflict in self.conflicts.get(cause.event.op, ()):
            sides = (conflict.wanted, conflict.into, conflict.against)
            if conflict not in self.reported and any(side.holder in places for side in sides):
                yield from self.conflict(conflict)

    def whole(self, dim: int) -> Iterator[str]:
        size = self.row.type.shape[dim]
        place = self.place()
        start = self.spread.record.start.get(place)
        found = [one for one in all_conflicts(self.spread) if one.into.holder is place and one.into.dim == dim]
        if start is not None and start.dims[dim].closed and not start.dims[dim].axes:
            request = self.spread.record.requests.get(place)
            who = self.words.request(request) if request is not None else "asked of it"
            yield f"dim {dim}, of {size}, is whole: a closed dim without axes was {who}"
        elif found:
            yield f"dim {dim}, of {size}, is whole:"
        else:
            yield f"dim {dim}, of {size}, is whole: no axes came to it"
        for conflict in found:
            yield from self.conflict(conflict)

    def conflict(self, conflict: AxisConflict) -> Iterator[str]:
        self.reported.add(conflict)
        sharding = sharding_at(self.spread, conflict)
        yield _with_source(
            f"{_NOTE}{_kind(conflict)}: {self.words.conflict(conflict, sharding)}", self.words.line(conflict.op)
        )
        for side in (conflict.wanted, conflict.against):
            yield from self.origin(conflict, side.holder, side.dim, side.axes, sharding)

    def origin(
        self, conflict: AxisConflict, place: Holder, dim: int | None, axes: Iterable, sharding: Sharding
    ) -> Iterator[str]:
        """Where the axes of one side come from in the first place."""
        if dim is None:
            return
        # What a step decides is there only behind it.
        number = conflict.number + conflict.decided if conflict.number is not None else None
        for axis in axes:
            for cause in self.spread.history.at(place, dim, axis, number):
                line = f"{_NOTE}  {axes_text((cause.axis,), sharding)} of {self.words.dim(place, dim)}: "
                yield _with_source(line + self.words.request(cause.request), self.words.request_location(cause.request))

    # -- the rest

    def place(self) -> Holder:
        at = self.row.at
        return at if isinstance(at, Output) else self.spread.record.holder_of(at)

    def kept(self) -> Iterator[str]:
        """Axes that keep it whole, or whose terms it holds."""
        sharding = self.row.sharding
        if sharding is not None and sharding.unreduced:
            axes = axes_text(sharding.unreduced, sharding)
            yield f"\nit holds terms of a {sharding.reduction} over {axes}, as was asked"
        if sharding is not None and sharding.replicated:
            yield f"\nit stays whole along {axes_text(sharding.replicated, sharding)}, as was asked"

    def taken(self) -> Iterator[str]:
        """What passes after spreading took away again, and the conflicts that it had a part in otherwise."""
        place = self.place()
        before = self.spread.record.end.get(place)
        for lost in self.spread.history.lost(self.row.at, self.row.sharding):
            if before is not None:
                yield f"\n{_lost(lost, before)}"
        others = [
            one
            for one in all_conflicts(self.spread)
            if one not in self.reported and place in (one.wanted.holder, one.into.holder, one.against.holder)
        ]
        if others:
            yield "\nother conflicts that it had a part in:"
            for conflict in others:
                yield from self.conflict(conflict)

    def legend(self) -> Iterator[str]:
        if self.levels:
            order = self.spread.options.order or ORDER
            yield "\nlevels of operator priority, each run until nothing changes before the next:"
            for level in sorted(self.levels):
                yield f"{_STEP}level {level + 1} of {len(order)}: {level_description(order[level])}"


def _kind(conflict: AxisConflict) -> str:
    if conflict.decided:
        return "conflict, decided"
    return "conflict, left" if conflict.left else "conflict at that time"


def _lost(lost: Lost, before: Sharding) -> str:
    axes = axes_text(lost.axes, before)
    if lost.why == UNEVEN:
        return f"dim {lost.dim} had {axes} too, taken away because inputs, outputs and calls are split evenly"
    if lost.why == PIECES:
        return f"dim {lost.dim} had {axes} too, taken away because inputs and outputs are split by whole axes"
    return f"dim {lost.dim} had {axes} too, until the operator's shardings were made to fit together"


def _alike(causes: list[AxisCause]) -> list[list[AxisCause]]:
    """Neighbours that came the same way, together."""
    groups: list[list[AxisCause]] = []
    for cause in causes:
        if groups and _way(groups[-1][0]) == _way(cause):
            groups[-1].append(cause)
        else:
            groups.append([cause])
    return groups


def _way(cause: AxisCause) -> list[tuple]:
    return [(one.how, one.holder, one.dim, one.number) for one in cause.chain]


def _with_source(line: str, source: str) -> str:
    return f"{line}  [{source}]" if source else line
