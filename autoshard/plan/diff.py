"""What differs between two plans of one graph: `plan.diff(other)`, strategies and layouts by name, as text or rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from autoshard.core.strategy import Strategy
from autoshard.ir.graph import Graph, Node, Value, walk
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh
from autoshard.util.errors import PlanError
from autoshard.util.notebook import table


class Compared(Protocol):
    """What is read of a plan to compare it."""

    @property
    def graph(self) -> Graph: ...
    @property
    def mesh(self) -> Mesh: ...
    @property
    def layouts(self) -> Mapping[Value, Layout]: ...
    @property
    def outputs(self) -> tuple[Any, ...]: ...
    def strategy(self, node: Node) -> Strategy: ...


@dataclass(frozen=True)
class Change:
    """One difference: of what `kind` (operator, value, output or mesh) and name; `before` and `after` as text."""

    kind: str
    name: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.before} -> {self.after}"


@dataclass(frozen=True)
class PlanDiff:
    """The differences between two plans, in graph order; false if there are none."""

    changes: tuple[Change, ...]

    def __bool__(self) -> bool:
        return bool(self.changes)

    def __str__(self) -> str:
        return "\n".join(map(str, self.changes)) or "the plans are equal"

    def _repr_html_(self) -> str:
        """In notebooks: a row for each difference."""
        rows = [[one.kind, one.name, one.before, one.after] for one in self.changes]
        return table(f"{len(rows)} differences", ["kind", "name", "before", "after"], rows)


def diff(before: Compared, after: Compared) -> PlanDiff:
    """What differs from the first plan to the second.

    Raises:
        PlanError: they are for graphs with other values or operators.
    """
    unlike = next(differences(before.graph, after.graph), None)
    if unlike is not None:
        raise PlanError(f"plans of {before.graph.name!r} and {after.graph.name!r} cannot be compared: {unlike}")
    return PlanDiff(tuple(_changes(before, after)))


def _changes(before: Compared, after: Compared) -> Iterator[Change]:
    if before.mesh is not after.mesh:
        yield Change("mesh", "", str(before.mesh), str(after.mesh))
    for old, new in zip(before.graph.inputs, after.graph.inputs, strict=True):
        yield from _value("input", old, new, before, after)
    for old, new in zip(walk(before.graph.nodes), walk(after.graph.nodes), strict=True):
        texts = [f"{one} leaving {', '.join(map(_layout, one.result_layouts))}" for one in
                 (before.strategy(old), after.strategy(new))]  # fmt: skip
        if texts[0] != texts[1]:
            yield Change("operator", old.label, *texts)
        left = zip(old.results, before.strategy(old).result_layouts, new.results, strict=True)
        for value, layout, other in left:
            if before.layouts[value] is not layout or texts[0] == texts[1]:
                yield from _value("value", value, other, before, after)
    for value, old, new in zip(before.graph.outputs, before.outputs, after.outputs, strict=True):
        if _layout(old) != _layout(new):
            yield Change("output", value.name, _layout(old), _layout(new))


def _value(kind: str, old: Value, new: Value, before: Compared, after: Compared) -> Iterator[Change]:
    texts = _layout(before.layouts[old]), _layout(after.layouts[new])
    if texts[0] != texts[1]:
        yield Change(kind, old.name, *texts)


def _layout(layout: object) -> str:
    return f"[{layout}]"


def differences(one: Graph, other: Graph) -> Iterator[str]:
    """In words, what keeps a plan of one graph from being a plan of the other; nothing where they are alike."""
    yield from _unlike("inputs", [_typed(value) for value in one.inputs], [_typed(value) for value in other.inputs])
    yield from _unlike("operators", _operators(one), _operators(other))
    yield from _unlike("outputs", [_typed(value) for value in one.outputs], [_typed(value) for value in other.outputs])


def _operators(graph: Graph) -> list[str]:
    return [signature(node) for node in walk(graph.nodes)]


def signature(node) -> str:
    """What a node is, from what it is, as text: equal for nodes that a plan may treat alike."""
    operands, results = (", ".join(map(_typed, values)) for values in (node.operands, node.results))
    return f"{node.op.name} ({operands}) -> ({results})"


def _typed(value: Value) -> str:
    return f"{value.name}: {value.type}"


def _unlike(what: str, ours: list[str], others: list[str]) -> Iterator[str]:
    for i, (one, other) in enumerate(zip(ours, others, strict=False)):
        if one != other:
            yield f"number {i} of the {what} is {one} in one and {other} in the other"
    if len(ours) != len(others):
        yield f"one has {len(ours)} {what}, the other {len(others)}"
