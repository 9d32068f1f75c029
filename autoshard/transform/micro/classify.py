"""Which form each value of a training step has when it is cut into micro batches, by the rules of the operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autoshard.core.strategy import Strategy
from autoshard.core.tensortype import TensorType
from autoshard.ir.graph import DATA, Builder, Graph, Node, Value
from autoshard.ir.trips import constant_scalar
from autoshard.ir.verify import describe
from autoshard.layout.mesh import Mesh
from autoshard.ops.attributes import OperatorPlacement, resolve
from autoshard.ops.hlo_reduce import begins_with_nothing, reduce_add, reduce_with
from autoshard.ops.hlo_scatter import scatter_add_slices, scatter_slices
from autoshard.ops.hlo_shape import iota
from autoshard.ops.random import dropout, dropout_rows
from autoshard.transform.micro.forms import LATE, ONCE, Form, MicroPartial, MicroRows, factor_of, local, part_in
from autoshard.util.errors import GraphError, ShapeError

AXIS = "micro"


@dataclass(frozen=True)
class Cut:
    """How an operator runs for one micro batch: the forms of its operands (None: whole) and results, and attributes."""

    operands: tuple[MicroRows | MicroPartial | None, ...]
    results: tuple[Form, ...]
    attrs: Mapping[str, Any]
    types: tuple[TensorType, ...]


def is_barrier(node: Node) -> bool:
    """Whether a node passes on what it gets as it is."""
    return node.op.name == "OptimizationBarrier"


def with_single_barriers(graph: Graph) -> Graph:
    """The graph with a barrier of its own for each value of one that holds several back at once."""

    def apart(node: Node) -> list[Node]:
        if not is_barrier(node):
            return [node]
        pairs = zip(node.operands, node.results, strict=True)
        return [replace(node, operands=(value,), results=(result,)) for value, result in pairs]

    return replace(graph, nodes=tuple(one for node in graph.nodes for one in apart(node)))


class MicroRefusal(Exception):
    """Why an operator cannot run for one micro batch alone."""


@dataclass
class Forms:
    """The forms of the values of a graph, and how the nodes of the loop run. `whole` are values that follow from data
    alone and are needed for the whole batch before the first micro batch: they are made once more, from all data.
    """

    graph: Graph
    parts: int
    of: dict[Value, Form]
    cuts: dict[Node, Cut]
    whole: set[Value]


def classify(graph: Graph, parts: int) -> Forms:
    """The forms of all values of a training step.

    The batch is dim 0 of the data inputs, of all that have as many rows as the first.

    Raises:
        GraphError: the rows cannot be dealt out evenly, or an operator needs the whole batch at once.
    """
    return _Classifier(graph, parts).run()


class _Classifier:
    def __init__(self, graph: Graph, parts: int) -> None:
        self.graph, self.parts, self.mesh = graph, parts, Mesh(((AXIS, parts),))
        self.forms = Forms(graph, parts, {}, {}, set())
        self.from_data: set[Value] = set()
        self.makers = {value: node for node in graph.nodes for value in node.results}
        self.builder = Builder.after(graph, graph.name)
        self.numbered: dict[tuple[int, ...], Value] = {}

    def run(self) -> Forms:
        self._inputs()
        nodes = []
        for original in self.graph.nodes:
            for node in self._by_rows(original):
                nodes.append(node)
                if all(value in self.from_data for value in node.uses):
                    self.from_data.update(node.results)
                self._node(node)
        self.forms.graph = replace(self.graph, nodes=tuple(nodes))
        return self.forms

    def _by_rows(self, node: Node) -> list[Node]:
        """A node, or what tells it which rows it has: dropout, which draws by the place of an element in the batch."""
        form = self.forms.of[node.operands[0]] if node.op is dropout else None
        if not isinstance(form, MicroRows) or node.attrs["whole"]:
            return [node]
        x, counter = node.operands
        size = (x.type.shape[form.dim],)
        found = [] if size in self.numbered else [self._numbers(size)]
        attrs = dropout_rows.check_attributes({**node.attrs, "dim": form.dim, "whole": x.type.shape})
        return [*found, replace(node, op=dropout_rows, operands=(x, counter, self.numbered[size]), attrs=attrs)]

    def _numbers(self, size: tuple[int]) -> Node:
        """The numbers of so many rows."""
        attrs = iota.check_attributes({"shape": size, "dim": 0})
        self.numbered[size] = Value(TensorType.of(size, attrs["dtype"]), self.builder.unique("micro_batches.rows"))
        made = Node(iota, (), attrs, (self.numbered[size],))
        self.makers[self.numbered[size]] = made
        return made

    def _inputs(self) -> None:
        graph, of = self.graph, self.forms.of
        data = [value for value, role in zip(graph.inputs, graph.roles, strict=True) if role == DATA]
        self.from_data.update(data)
        batched = [value for value in data if value.type.rank]
        if not batched:
            raise GraphError(f"{graph.name!r} cannot be cut into micro batches: no data input has a batch dim")
        rows = batched[0].type.shape[0]
        if rows % self.parts or not rows:
            fitting = [str(count) for count in range(1, rows + 1) if rows % count == 0]
            shown = ", ".join(fitting if len(fitting) < 12 else [*fitting[:5], "...", *fitting[-2:]])
            raise GraphError(
                f"{graph.name!r} cannot be cut into {self.parts} micro batches: {batched[0].name} has {rows} rows, "
                f"which {self.parts} does not divide; {shown or 'nothing'} would"
            )
        of.update(dict.fromkeys(graph.inputs, ONCE))
        of.update({value: MicroRows(0) for value in batched if value.type.shape[0] == rows})

    def _node(self, node: Node) -> None:
        of = self.forms.of
        used = [of[value] for value in node.uses]
        if not any(isinstance(form, MicroRows) for form in used):
            results = self._without_rows(node, used)
        else:
            results = self._with_rows(node)
        of.update(zip(node.results, results, strict=True))

    def _without_rows(self, node: Node, used: Sequence[Form]) -> Sequence[Form]:
        """Of a node that has no rows of micro batches: once, late, or one more step for each term."""
        if all(form == ONCE for form in used):
            return [ONCE] * len(node.results)
        terms = [form for form in used if isinstance(form, MicroPartial)]
        if not terms or LATE in used or not self._pays(node, used):
            return [LATE] * len(node.results)
        wants = tuple(form if isinstance(form, MicroPartial) else None for form in used)
        self.forms.cuts[node] = Cut(wants, (terms[0],), node.attrs, node.result_types)
        return [terms[0]]

    def _pays(self, node: Node, used: Sequence[Form]) -> bool:
        """Whether a linear operator on terms runs for each micro batch: if then less has to be added up than otherwise,
        or if it costs nothing and terms of other uses may join."""
        terms = tuple(i for i, form in enumerate(used) if isinstance(form, MicroPartial))
        sets = [members or tuple(range(len(node.operands))) for members in node.op.linear]
        if node.regions or len(node.results) != 1 or terms not in sets or not node.op.has_rule:
            return False
        if {used[i] for i in terms} != {MicroPartial("sum")}:
            return False
        alone = all(len(self.graph.users[node.operands[i]]) == 1 for i in terms)
        before, after = sum(node.operands[i].type.nbytes for i in terms), node.results[0].type.nbytes
        return alone and (after < before or bool(node.op.view) and after == before)

    def _with_rows(self, node: Node) -> Sequence[Form]:
        """Of a node with rows of micro batches: it runs for each, or if it follows from data alone once for all."""
        try:
            self._whole_operands(node)
            cut = self._barrier(node) if is_barrier(node) else self._cut(node)
        except MicroRefusal as why:
            if not all(value in self.from_data for value in node.results) or not node.results:
                raise GraphError(
                    f"{self.graph.name!r} cannot be cut into {self.parts} micro batches: {describe(node)} {why}"
                ) from None
            self.forms.whole.update(node.uses)
            return [ONCE] * len(node.results)
        self.forms.cuts[node] = cut
        return cut.results

    def _whole_operands(self, node: Node) -> None:
        """What the node needs besides rows must be there before the first micro batch."""
        of = self.forms.of
        for value in node.uses:
            if of[value] == LATE or isinstance(of[value], MicroPartial):
                if value not in self.from_data:
                    raise MicroRefusal(
                        f"needs {value.name}, which is known only after the last micro batch: it is computed from the "
                        "whole batch (as the statistics of a batch normalization are)"
                    )
                self.forms.whole.add(value)
                of[value] = ONCE

    def _barrier(self, node: Node) -> Cut:
        """Of a barrier of one value, which passes on what it gets."""
        (value,) = node.operands
        form = self.forms.of[value]
        assert isinstance(form, MicroRows)
        of = value.type.with_shape(local(value.type.shape, form, self.parts))
        return Cut((form,), (form,), node.attrs, (of,))

    def _cut(self, node: Node) -> Cut:
        if node.regions or not node.op.has_rule:
            raise MicroRefusal("holds computations of its own, which are not cut into micro batches yet")
        given = [self.forms.of[value] for value in node.operands]
        factor, inner = self._rows(node, given)
        found = cut_by(node, factor, inner, self.mesh, self.makers)
        for value, form, wanted in zip(node.operands, given, found.operands, strict=True):
            if isinstance(form, MicroRows) and form != wanted:
                raise MicroRefusal(f"takes the rows of the batch of {value.name} in another order")
        return found

    def _rows(self, node: Node, given: Sequence[Form]) -> tuple[int, int]:
        """The factor that has the rows of the batch, and how many of its elements belong to a row."""
        rule = node.rule
        found = set()
        for value, form, dims in zip(node.operands, given, rule.operands, strict=True):
            if isinstance(form, MicroRows):
                one = factor_of(rule, dims, form, self.parts)
                if one is None:
                    raise MicroRefusal(f"takes apart or joins the rows of the batch of {value.name}")
                found.add(one)
        if len(found) > 1:
            raise MicroRefusal("sets rows of the batch against each other")
        return found.pop()


def _begins_with_nothing(node: Node, makers: Mapping[Value, Node]) -> bool:
    """Whether its first part begins with initial values, which change nothing however often they count."""
    if node.op in (reduce_add, reduce_with):
        starts = node.operands[len(node.operands) // 2 :]
    elif node.op in (scatter_add_slices, scatter_slices):
        starts = node.operands[: len(node.operands) // 2]
    else:
        return False
    known = [number for value in starts if (number := _same_everywhere(value, makers)) is not None]
    return len(known) == len(starts) and begins_with_nothing(known, node.attrs)


def _same_everywhere(value: Value, makers: Mapping[Value, Node]) -> np.ndarray | None:
    """The number that all elements of a value are; None if that is not known."""
    while (node := makers.get(value)) is not None and node.op.spread == "broadcast":
        value = node.operands[0]
    if node is not None and node.op.name == "Fill":
        return np.asarray(node.attrs["value"], value.type.dtype.numpy)
    return constant_scalar(value, makers)


def cut_by(node: Node, factor: int, inner: int, mesh: Mesh, makers: Mapping[Value, Node]) -> Cut:
    """How a node runs if each micro batch has its share of one factor.

    Args:
        makers: the node that makes each value of the graph, as far as one does.

    Raises:
        Refused: the operator needs all of it, or knows where in the batch a row lies.
    """
    rule, parts = node.rule, mesh.devices
    of = rule.factors[factor]
    if not of.splittable or of.exchange or of.whole or factor in rule.contracted and factor not in rule.summed:
        raise MicroRefusal("needs all rows of the batch at once")
    if of.size % (inner * parts):
        raise MicroRefusal(f"has {of.size // inner} rows, which {parts} does not divide")
    axes = tuple((mesh.ref(AXIS),) if i == factor else () for i in range(len(rule.factors)))
    strategy = Strategy(rule, mesh, axes)
    placement = OperatorPlacement(
        node.operand_types, node.result_types, strategy.operand_layouts, strategy.result_layouts
    )
    try:
        attrs = node.op.local_attributes(node.attrs, placement)
        operands = tuple(of.with_shape(placement.local_operand(i)) for i, of in enumerate(node.operand_types))
        results = tuple(of.with_shape(placement.local_result(i)) for i, of in enumerate(node.result_types))
        fits = node.op.result_types(operands, attrs) == results
    except ShapeError as error:
        raise MicroRefusal(f"cannot run on a part of the batch: {error}") from None
    first, last = ({name: resolve(value, rank) for name, value in attrs.items()} for rank in (0, parts - 1))
    if first != last and not _begins_with_nothing(node, makers):
        raise MicroRefusal("does something else for the first rows of the batch than for others")
    if not fits:
        raise MicroRefusal("makes something else of a part of the batch")
    forms = tuple(part_in(rule, dims, factor, inner) or MicroPartial(rule.reduction) for dims in rule.results)
    wants = tuple(part_in(rule, dims, factor, inner) for dims in rule.operands)
    return Cut(wants, forms, first, results)
