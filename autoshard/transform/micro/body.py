"""What is done for one micro batch, as nodes: rows come in, terms of sums and rows of results come out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from autoshard.ir.graph import Builder, Graph, Node, Value
from autoshard.layout.mesh import Mesh
from autoshard.transform.micro.classify import AXIS, Cut, Forms, MicroRefusal, cut_by
from autoshard.transform.micro.forms import ONCE, MicroPartial, MicroRows, factor_of, local


@dataclass(frozen=True)
class MicroBody:
    """One micro batch.

    Attributes:
        slices: the rows that come in, and of which whole value which part they are.
        nodes: in order of execution; they may also use values that are the same for all micro batches.
        outputs: for each value of the training step that is needed afterwards what one micro batch gives to it.
        of: the node of the training step that each node stands for.
        terms: the results that are terms of sums (or of other reductions) over the micro batches.
    """

    slices: dict[Value, tuple[Value, MicroRows]]
    nodes: tuple[Node, ...]
    outputs: dict[Value, tuple[Value, MicroRows | MicroPartial]]
    of: dict[Node, Node]
    terms: dict[Value, MicroPartial] = field(default_factory=dict)

    @property
    def captured(self) -> list[Value]:
        """The values from before the first micro batch that the nodes use, and those that slices are taken of."""
        own = {value for node in self.nodes for value in node.results} | set(self.slices)
        used = (value for node in self.nodes for value in node.uses if value not in own)
        return list(dict.fromkeys((*used, *(whole for whole, _ in self.slices.values()))))

    def giving(self, values: Iterable[Value]) -> MicroBody:
        """Without what these values do not take."""
        outputs = {value: self.outputs[value] for value in values}
        needed = {one for one, _ in outputs.values()}
        kept = []
        for node in reversed(self.nodes):
            if needed.intersection(node.results) or not node.results:
                kept.append(node)
                needed.update(node.uses)
        slices = {one: of for one, of in self.slices.items() if one in needed}
        of = {node: self.of[node] for node in kept if node in self.of}
        return MicroBody(slices, tuple(reversed(kept)), outputs, of, self.terms)


def write_body(forms: Forms, needed: Iterable[Value], builder: Builder) -> MicroBody:
    """The nodes of one micro batch that the needed values take."""
    writer = _BodyWriter(forms, builder)
    for node in forms.graph.nodes:
        if node in forms.cuts:
            writer.write(node, forms.cuts[node])
    outputs = {value: writer.made_of(value) for value in needed}
    terms = {one: form for made in writer.made.values() for form, one in made.items() if isinstance(form, MicroPartial)}
    return MicroBody(writer.slices, tuple(writer.nodes), outputs, writer.of, terms).giving(outputs)


class _BodyWriter:
    def __init__(self, forms: Forms, builder: Builder) -> None:
        self.forms, self.graph, self.builder = forms, forms.graph, builder
        self.mesh = Mesh(((AXIS, forms.parts),))
        self.makers = {value: node for node in forms.graph.nodes for value in node.results}
        self.made: dict[Value, dict[MicroRows | MicroPartial, Value]] = {}
        self.slices: dict[Value, tuple[Value, MicroRows]] = {}
        self.nodes: list[Node] = []
        self.of: dict[Node, Node] = {}

    def made_of(self, value: Value) -> tuple[Value, MicroRows | MicroPartial]:
        """What a micro batch gives to a value."""
        form, one = next(iter(self.made[value].items()))
        return one, form

    def write(self, node: Node, cut: Cut) -> None:
        operands = [self._operand(*pair) for pair in zip(node.operands, cut.operands, strict=True)]
        results = self._results(node, cut)
        for value, form, one in zip(node.results, cut.results, results, strict=True):
            assert not isinstance(form, str)
            self.made.setdefault(value, {})[form] = one
        self.nodes.append(replace(node, operands=tuple(operands), results=results, attrs=cut.attrs))
        self.of[self.nodes[-1]] = node

    def _results(self, node: Node, cut: Cut) -> tuple[Value, ...]:
        pairs = zip(node.results, cut.types, strict=True)
        return tuple(Value(of, self.builder.unique(f"{value.name}.micro")) for value, of in pairs)

    def _operand(self, value: Value, form: MicroRows | MicroPartial | None) -> Value:
        if form is None:
            return value
        known = self.made.setdefault(value, {})
        if form not in known:
            assert isinstance(form, MicroRows)
            known[form] = self._again(value, form) or self._slice(value, form)
        return known[form]

    def _slice(self, value: Value, part: MicroRows) -> Value:
        of = value.type.with_shape(local(value.type.shape, part, self.forms.parts))
        one = Value(of, self.builder.unique(f"{value.name}.micro"))
        self.slices[one] = value, part
        return one

    def _again(self, value: Value, part: MicroRows) -> Value | None:
        """The rows of a value that is the same for all micro batches, made where they are needed: broadcast scalars
        and the like are not made whole. None if making it takes work, or it depends on where a row lies."""
        node, position = self.graph.producers.get(value, (None, 0))
        if node is None or node.regions or not node.op.has_rule or not (node.op.constant or node.op.view):
            return None
        found = factor_of(node.rule, node.rule.results[position], part, self.forms.parts)
        try:
            cut = cut_by(node, *found, self.mesh, self.makers) if found else None
        except MicroRefusal:
            return None
        if cut is None or cut.results[position] != part or not self._there(node, cut):
            return None
        operands = [self._operand(*pair) for pair in zip(node.operands, cut.operands, strict=True)]
        results = self._results(node, cut)
        self.nodes.append(replace(node, operands=tuple(operands), results=results, attrs=cut.attrs))
        return results[position]

    def _there(self, node: Node, cut: Cut) -> bool:
        """Whether all that the node reads is the same for all micro batches, or has the rows that it takes."""
        return all(
            self.forms.of[value] == ONCE or form is not None and form in self.made.get(value, {})
            for value, form in zip(node.operands, cut.operands, strict=True)
        )


def ancestors(graph: Graph, values: Iterable[Value]) -> set[Node]:
    """The nodes that values take."""
    found: set[Node] = set()
    waiting = list(values)
    while waiting:
        node = graph.producers.get(waiting.pop(), (None, 0))[0]
        if node is not None and node not in found:
            found.add(node)
            waiting.extend(node.uses)
    return found
