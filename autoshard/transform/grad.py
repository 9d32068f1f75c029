"""Reverse mode, graph to graph: the gradient's nodes follow the forward nodes, which stay the same objects.

Operators say their gradients with other operators; here they are applied to symbolic tensors, from the last
node to the first, once each (Linnainmaa 1970; Griewank and Walther, Evaluating Derivatives, chapter 3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from autoshard.core.tensortype import dtype
from autoshard.ir.graph import Builder, Graph, Node, Region, Value
from autoshard.ops.reduce import sum_to
from autoshard.ops.registry import Operator, lookup
from autoshard.trace.tensor import Recorder, TracedTensor, snake
from autoshard.transform.custom_gradient import CustomRule, copy_nodes, is_custom, without_custom_gradients
from autoshard.transform.simplify import live_nodes, with_nodes
from autoshard.util.errors import GraphError, NoGradientError, ShapeError, at
from autoshard.util.source import Source


def gradient(graph: Graph, of: Value, wrt: Sequence[Value]) -> tuple[Graph, dict[Value, Value]]:
    """Extend a graph by the gradient of the sum of `of` for each value in `wrt`.

    Returns:
        The graph with the same inputs, nodes and outputs, followed by the gradient's nodes (named
        `grad.<forward instance>.<operator>`) and, as further outputs, one gradient per entry of `wrt`; and
        the gradients by value. A value that `of` does not depend on has a gradient of zeros.

    Raises:
        GraphError: `of` is no float of this graph, a value in `wrt` is neither a float nor a complex number of it, or
            an operator between them has no gradient. That of a complex value z is the c with dL = Re(c dz).
    """
    _check(graph, of, wrt)
    graph, rules = without_custom_gradients(graph)
    recorder = Reverse(Builder.after(graph, graph.name), rules)
    grads = dict(zip(wrt, recorder.gradients(graph.nodes, of, wrt), strict=True))
    outputs = (*graph.outputs, *(grads[value] for value in wrt))
    made = tuple(recorder.builder.nodes[len(graph.nodes) :])
    full = recorder.builder.build(outputs, graph.updates)
    return with_nodes(full, graph.nodes + live_nodes(made, outputs)), grads


def reaching(graph: Graph, of: Value) -> set[Value]:
    """The values that `of` depends on by paths that gradients take; a gradient may be zero everywhere, as a step's."""
    found = {of}
    _reach_back(graph.nodes, found)
    return found


def _reach_back(nodes: Sequence[Node], found: set[Value]) -> None:
    for node in reversed(nodes):
        real = [value for value in node.results if value.type.dtype.is_inexact]
        if node.op.name in _STOPS or found.isdisjoint(real):
            continue
        for region in node.regions:
            outer = zip(node.results, region.outputs, strict=False)
            found.update(inner for result, inner in outer if result in found)
            _reach_back(region.nodes, found)
        found.update(CustomRule(node).inputs if is_custom(node) else node.operands)


_STOPS = frozenset({"StopGradient", "FloorDiv"})
"""Operators of real numbers that no gradient passes, not even one of zeros."""


class Reverse(Recorder):
    """Records gradient nodes, each named and placed after the forward node that it comes from."""

    def __init__(self, builder: Builder, rules: Mapping[Node, CustomRule]) -> None:
        super().__init__(builder)
        self.rules = rules
        self._terms: dict[Value, list[Value]] = {}
        self._totals: dict[Value, Value] = {}
        # Inside of branches, the values that stand for those of the forward pass.
        self._known: dict[Value, Value] = {}
        self._stem = ""
        self._source: Source | None = None

    def gradients(self, nodes: Sequence[Node], of: Value, wrt: Sequence[Value]) -> list[Value]:
        """Of the sum of `of`, which the nodes make, for each value in `wrt`; zeros where there is none."""
        if of in self.dependent(nodes, wrt):
            self.start(of)
            self.sweep(nodes, wrt)
        return [self.total(value) or self.zeros(value) for value in wrt]

    def pulled(
        self, nodes: Sequence[Node], of: Sequence[Value], cotangents: Sequence[Value], wrt: Sequence[Value]
    ) -> list[Value]:
        """What cotangents of the values `of`, which the nodes make, are for each value in `wrt`."""
        for value, cotangent in zip(of, cotangents, strict=True):
            self._terms.setdefault(value, []).append(cotangent)
        self.sweep(nodes, wrt)
        return [self.total(value) or self.zeros(value) for value in wrt]

    def sweep(self, nodes: Sequence[Node], wrt: Sequence[Value]) -> None:
        """Visit the nodes on a path from `wrt` backwards and collect the cotangents of their operands."""
        dependent = self.dependent(nodes, wrt)
        for node in reversed(nodes):
            rule = self.rules.get(node)
            if rule is not None:
                self.custom(rule, dependent)
            elif any(self.reached(value) for value in node.results):
                self.visit(node, dependent)

    def dependent(self, nodes: Sequence[Node], wrt: Sequence[Value]) -> set[Value]:
        """The values of real or complex numbers that depend on a value in `wrt` through such, or by a rule."""
        found = set(wrt)
        for node in nodes:
            rule = self.rules.get(node)
            if not found.isdisjoint(node.uses):
                found.update(value for value in node.results if value.type.dtype.is_inexact)
            if rule is not None and not found.isdisjoint(rule.inputs):
                found.update(rule.outputs)
        return found

    def visit(self, node: Node, dependent: set[Value]) -> None:
        """Pass the cotangents of a node's results on to its operands."""
        if node.regions:
            if not dependent.isdisjoint(node.uses):
                self.branches(node, [value for value in dict.fromkeys(node.uses) if value in dependent])
            return
        wanted = [i for i, value in enumerate(node.operands) if value in dependent]
        for i, cotangent in zip(wanted, self.back(node, wanted) if wanted else (), strict=True):
            if cotangent is not None:
                self.collect(node, node.operands[i], cotangent)

    def custom(self, rule: CustomRule, dependent: set[Value]) -> None:
        """Record a backward pass that the model says itself."""
        if not any(self.reached(value) for value in rule.outputs) or dependent.isdisjoint(rule.inputs):
            return
        rule.check()
        self._at(rule.node.label, rule.node.source)
        totals = [self.total(value) or self.zeros(value) for value in rule.outputs]
        self._at(rule.node.label, rule.node.source)
        known = {**self._known, **dict(zip(rule.cotangents, totals, strict=True))}
        copy_nodes(rule.nodes, known, self)
        for value, gradient in zip(rule.inputs, rule.gradients, strict=True):
            if value in dependent:
                self.collect(rule.node, value, self.tensor(known.get(gradient, gradient)))

    def branches(self, node: Node, wanted: Sequence[Value]) -> None:
        """Record the gradient of a choice: the same choice among the gradients of the branches.

        Each branch computes again what it needs of its forward pass.
        """
        if node.op.name not in ("Case", "If"):
            _refuse(node)
        self._at(node.label, node.source)
        totals = [self.total(value) for value in node.results]
        self._at(node.label, node.source)
        regions = tuple(self.branch(region, totals, wanted) for region in node.regions)
        index = [self.tensor(self._known.get(value, value)) for value in node.operands]
        made = self.add(node.op, index, {"types": tuple(value.type for value in wanted)}, regions)
        for value, cotangent in zip(wanted, made, strict=True):
            self.collect(node, value, cotangent)

    def branch(self, region: Region, totals: Sequence[Value | None], wanted: Sequence[Value]) -> Region:
        """The gradients of what a branch yields for the values that it uses."""

        def body() -> list[Value]:
            before = self._terms, self._totals, self._known
            self._terms, self._totals, self._known = {}, {}, dict(self._known)
            try:
                copy_nodes(region.nodes, self._known, self)
                for value, total in zip(region.outputs, totals, strict=True):
                    if total is not None and value.type.dtype.is_inexact:
                        self._terms.setdefault(value, []).append(total)
                self.sweep(region.nodes, wanted)
                return [self.total(value) or self.zeros(value) for value in wanted]
            finally:
                self._terms, self._totals, self._known = before

        return self.region(body, (), "case")

    def describe(self, op: Operator) -> tuple[str, Source | None]:
        return f"grad.{self._stem}.{snake(op.name)}", self._source

    def _at(self, stem: str, source: Source | None) -> None:
        self._stem, self._source = stem, source

    def start(self, of: Value) -> None:
        """The gradient of a sum for its terms is one."""
        self._at(of.name, None)
        self._terms[of] = [self.fill(of.type.shape, 1, of.type.dtype).value]

    def zeros(self, value: Value) -> Value:
        self._at(value.name, None)
        return self.fill(value.type.shape, 0, value.type.dtype).value

    def reached(self, value: Value) -> bool:
        return value in self._terms

    def total(self, value: Value) -> Value | None:
        """The sum of all cotangents of a value, None where there is none."""
        terms = self._terms.get(value)
        if terms is None:
            return None
        if value not in self._totals:
            tensors = [TracedTensor(term, self) for term in terms]
            if len(tensors) > 1:
                tensors = [lookup("Add" if len(tensors) == 2 else "AddN")(*tensors)]
            self._totals[value] = tensors[0].value
            self.builder.cotangents.setdefault(tensors[0].value, value)
        return self._totals[value]

    def back(self, node: Node, wanted: Sequence[int]) -> list[Any]:
        """The cotangents of the wanted operands, from those of the node's results."""
        if not node.op.differentiable:
            _refuse(node)
        self._at(node.label, node.source)
        totals = [self.total(value) for value in node.results]
        g = tuple(None if total is None else TracedTensor(total, self) for total in totals)
        known = self._known
        y = tuple(TracedTensor(known.get(value, value), self) for value in node.results)
        single = len(node.results) == 1
        operands = [TracedTensor(known.get(value, value), self) for value in node.operands]
        try:
            grads = node.op.cotangents(g[0] if single else g, y[0] if single else y, operands, node.attrs)
        except ShapeError as error:
            raise NoGradientError(f"the gradient of {node.label}{at(node.source)}: {error}") from error
        # A gradient that is None for all operands may be said once.
        grads = grads if len(grads) == len(operands) else (*grads, *[None] * (len(operands) - len(grads)))
        return [grads[i] for i in wanted]

    def collect(self, node: Node, value: Value, cotangent: Any) -> None:
        """Add a term to the gradient of a value that a node uses; of an elementwise one, summed over broadcast dims.

        Raises:
            GraphError: the operator's gradient function gives another shape than the value's.
        """
        lifted = self.tensor(self.lift(cotangent, [value.type.dtype]))
        if node.op.spread == "pointwise" and _spreads(value.type.shape, lifted.shape):
            lifted = sum_to(lifted, value.type.shape)
        if lifted.shape != value.type.shape:
            raise GraphError(
                f"the gradient of {node.op.name} gives {lifted.type} for operand {value.name} of "
                f"{node.label}{at(node.source)}, which is {value.type}; its gradient function must "
                f"sum over broadcast dims"
            )
        self._terms.setdefault(value, []).append(lifted.astype(value.type.dtype).value)


def _spreads(small: Sequence[int], large: Sequence[int]) -> bool:
    """Whether broadcasting makes a tensor of the second shape out of one of the first."""
    extra = len(large) - len(small)
    return extra >= 0 and all(a in (1, b) for a, b in zip(small, large[extra:], strict=True))


def _refuse(node: Node) -> NoReturn:
    raise NoGradientError(
        f"{node.op.name} has no gradient, but {node.label}{at(node.source)} lies between the loss "
        f"and what it is differentiated for; use ops.stop_gradient if no gradient should pass here"
    )


def _check(graph: Graph, of: Value, wrt: Sequence[Value]) -> None:
    known = set(graph.values)
    for value in (of, *wrt):
        if value not in known:
            raise GraphError(f"differentiating {graph.name!r}: {value!r} is no value of this graph")
    check_floats(graph.name, of, wrt)


def check_floats(name: str, of: Value, wrt: Sequence[Value]) -> None:
    """Raises GraphError if, in the graph of that name, `of` is not of floats, or one of `wrt` neither of floats nor of
    complex numbers."""
    fit = {value: dtype(value.type.dtype).is_inexact for value in wrt}
    for value, fits in {**fit, of: dtype(of.type.dtype).is_float}.items():
        if not fits:
            raise GraphError(f"differentiating {name!r}: {value!r} is not of a float type")
