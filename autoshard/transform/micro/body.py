"""What is done for one micro batch, as nodes: rows come in, terms of sums and rows of results come out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from autoshard.ir.graph import Builder, Node, Value
from autoshard.layout.mesh import Mesh
from autoshard.ops.registry import lookup
from autoshard.transform.micro.classify import Forms
from autoshard.transform.micro.cuts import AXIS, Cut, MicroRefusal, cut_at
from autoshard.transform.micro.forms import CARRIED, ONCE, OWN, Form, MicroPartial, MicroRows, local
from autoshard.util.errors import GraphError


@dataclass(frozen=True)
class MicroBody:
    """One micro batch.

    Attributes:
        slices: the rows that come in, and of which whole value which part they are.
        nodes: in order of execution; they may also use values that are the same for all micro batches.
        outputs: for each value of the training step that is needed afterwards what one micro batch gives to it.
        of: the node of the training step that each node stands for.
        terms: the results that are terms of sums (or of other reductions) over the micro batches.
        carried: states that the micro batch before has left, or the step before, and the values of the training step
            that they become.
    """

    slices: dict[Value, tuple[Value, MicroRows]]
    nodes: tuple[Node, ...]
    outputs: dict[Value, tuple[Value, Form]]
    of: dict[Node, Node]
    terms: dict[Value, MicroPartial] = field(default_factory=dict)
    carried: dict[Value, Value] = field(default_factory=dict)

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
        return replace(self, slices=slices, nodes=tuple(reversed(kept)), outputs=outputs, of=of)


def write_body(forms: Forms, needed: Iterable[Value], builder: Builder) -> MicroBody:
    """The nodes of one micro batch that the needed values take."""
    writer = _BodyWriter(forms, builder)
    writer.enter(forms.carried)
    for node in forms.graph.nodes:
        if node in forms.cuts:
            writer.write(node, forms.cuts[node])
    outputs = {value: writer.made_of(value) for value in needed}
    terms = {one: form for made in writer.made.values() for form, one in made.items() if isinstance(form, MicroPartial)}
    body = MicroBody(writer.slices, tuple(writer.nodes), outputs, writer.of, terms, dict(forms.carried))
    return body.giving(outputs)


class _BodyWriter:
    def __init__(self, forms: Forms, builder: Builder) -> None:
        self.forms, self.graph, self.builder = forms, forms.graph, builder
        self.mesh = Mesh(((AXIS, forms.parts),))
        self.makers = {value: node for node in forms.graph.nodes for value in node.results}
        self.made: dict[Value, dict[Form, Value]] = {}
        self.carried = set(forms.carried.values())
        self.slices: dict[Value, tuple[Value, MicroRows]] = {}
        self.nodes: list[Node] = []
        self.of: dict[Node, Node] = {}

    def enter(self, states: Iterable[Value]) -> None:
        """Copy states that are carried, so that what reads them later has them as the micro batch found them."""
        for state in states:
            self.made[state] = {OWN: self._add("Identity", state)}

    def made_of(self, value: Value) -> tuple[Value, Form]:
        """What a micro batch gives to a value."""
        if value in self.carried:
            return self._operand(value, OWN), CARRIED
        form, one = next(iter(self.made[value].items()))
        return (self._share(value, one), MicroPartial()) if form == OWN else (one, form)

    def _share(self, value: Value, own: Value) -> Value:
        """What a micro batch adds to the mean of what each has of its own.

        Raises:
            GraphError: a mean of whole numbers is none.
        """
        if not value.type.dtype.is_inexact:
            raise GraphError(
                f"{self.graph.name!r} cannot be cut into {self.forms.parts} micro batches with statistics of each: "
                f"{value.name} ({value.type}) is another one for each of them, and has no mean"
            )
        return self.made[value].setdefault(MicroPartial(), self._add("ScalarMul", own, factor=1 / self.forms.parts))

    def _own(self, value: Value) -> Value:
        """What stands for a reduction over the whole batch: that over a part's rows, sums times the number of parts."""
        form, one = next(iter(self.made[value].items()))
        assert isinstance(form, MicroPartial)
        return self._add("ScalarMul", one, factor=self.forms.parts) if form.reduction == "sum" else one

    def _add(self, name: str, of: Value, **attrs: Any) -> Value:
        op = lookup(name)
        made = Value(of.type, self.builder.unique(f"{of.name.removesuffix('.micro')}.own.micro"))
        self.nodes.append(Node(op, (of,), op.check_attributes(attrs), (made,)))
        return made

    def write(self, node: Node, cut: Cut) -> None:
        operands = [self._operand(*pair) for pair in zip(node.operands, cut.operands, strict=True)]
        results = self._results(node, cut)
        for value, form, one in zip(node.results, cut.results, results, strict=True):
            self.made.setdefault(value, {})[form] = one
        self.nodes.append(replace(node, operands=tuple(operands), results=results, attrs=cut.attrs))
        self.of[self.nodes[-1]] = node

    def _results(self, node: Node, cut: Cut) -> tuple[Value, ...]:
        pairs = zip(node.results, cut.types, strict=True)
        return tuple(Value(of, self.builder.unique(f"{value.name}.micro")) for value, of in pairs)

    def _operand(self, value: Value, form: Form | None) -> Value:
        if form is None:
            return value
        known = self.made.setdefault(value, {})
        if form == OWN and form not in known:
            known[OWN] = self._own(value)
        elif form not in known:
            assert isinstance(form, MicroRows)
            again = self._again(value, form)
            assert again is not None or self.forms.of[value] != OWN, "rows of what is its own are made again"
            known[form] = again or self._slice(value, form)
        return known[form]

    def _slice(self, value: Value, part: MicroRows) -> Value:
        of = value.type.with_shape(local(value.type.shape, part, self.forms.parts))
        one = Value(of, self.builder.unique(f"{value.name}.micro"))
        self.slices[one] = value, part
        return one

    def _again(self, value: Value, part: MicroRows) -> Value | None:
        """The rows of a value that is the same for all micro batches, made where they are needed: broadcast scalars
        and the like are not made whole. None if making it takes work, or it depends on where a row lies. Rows of what
        is each micro batch's own are always made so."""
        node, position = self.graph.producers.get(value, (None, 0))
        own = self.forms.of[value] == OWN
        if node is None or not own and (node.regions or not node.op.has_rule or not (node.op.constant or node.op.view)):
            return None
        try:
            cut = cut_at(node, position, part, self.mesh, self.makers)
        except MicroRefusal:
            return None
        if not own and not self._there(node, cut):
            return None
        operands = [self._operand(*pair) for pair in zip(node.operands, self._wants(node, cut), strict=True)]
        results = self._results(node, cut)
        self.nodes.append(replace(node, operands=tuple(operands), results=results, attrs=cut.attrs))
        return results[position]

    def _wants(self, node: Node, cut: Cut) -> list[Form | None]:
        """The forms of the operands, where those that are whole may be the micro batch's own."""
        known = self.forms.cuts.get(node)
        own = known.operands if known is not None else cut.operands
        return [OWN if one is None and its == OWN else one for one, its in zip(cut.operands, own, strict=True)]

    def _there(self, node: Node, cut: Cut) -> bool:
        """Whether all that the node reads is the same for all micro batches, or has the rows that it takes."""
        return all(
            self.forms.of[value] == ONCE or form is not None and form in self.made.get(value, {})
            for value, form in zip(node.operands, cut.operands, strict=True)
        )
