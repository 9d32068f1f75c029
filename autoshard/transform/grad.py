"""Reverse mode, graph to graph: the gradient's nodes follow the forward nodes, which stay the same objects.

Operators say their gradients with other operators; here they are applied to symbolic tensors, from the last
node to the first, once each (Linnainmaa 1970; Griewank and Walther, Evaluating Derivatives, chapter 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from autoshard.core.tensortype import DType, dtype
from autoshard.ir.graph import Builder, Graph, Node, Value
from autoshard.ops.registry import Operator, lookup
from autoshard.trace.tensor import Recorder, Tensor, snake
from autoshard.transform.simplify import live_nodes, with_nodes
from autoshard.util.errors import GraphError, at
from autoshard.util.source import Source


def gradient(graph: Graph, of: Value, wrt: Sequence[Value]) -> tuple[Graph, dict[Value, Value]]:
    """Extend a graph by the gradient of the sum of `of` for each value in `wrt`.

    Returns:
        The graph with the same inputs, nodes and outputs, followed by the gradient's nodes (named
        `grad.<forward instance>.<operator>`) and, as further outputs, one gradient per entry of `wrt`; and
        the gradients by value. A value that `of` does not depend on has a gradient of zeros.

    Raises:
        GraphError: `of` or a value in `wrt` is no float of this graph, or an operator between them has no
            gradient.
    """
    _check(graph, of, wrt)
    recorder = _Reverse(Builder.after(graph, graph.name))
    _sweep(graph, of, wrt, recorder)
    grads = {value: recorder.total(value) for value in wrt}
    grads = {value: recorder.zeros(value) if grad is None else grad for value, grad in grads.items()}
    outputs = (*graph.outputs, *(grads[value] for value in wrt))
    made = tuple(recorder.builder.nodes[len(graph.nodes) :])
    full = recorder.builder.build(outputs, graph.updates)
    return with_nodes(full, graph.nodes + live_nodes(made, outputs)), grads


def _sweep(graph: Graph, of: Value, wrt: Sequence[Value], recorder: _Reverse) -> None:
    """Visit the nodes on a path from `wrt` to `of` backwards and collect the cotangents of their operands."""
    dependent = _dependent(graph, wrt)
    if of not in dependent:
        return
    recorder.start(of)
    for node in reversed(graph.nodes):
        if not any(recorder.reached(value) for value in node.results):
            continue
        if node.regions and not dependent.isdisjoint(node.uses):
            _refuse(node)
        wanted = [i for i, value in enumerate(node.operands) if value in dependent]
        if not wanted:
            continue
        for i, cotangent in zip(wanted, recorder.back(node, wanted), strict=True):
            if cotangent is not None:
                recorder.collect(node, i, cotangent)


class _Reverse(Recorder):
    """Records gradient nodes, each named and placed after the forward node that it comes from."""

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self._terms: dict[Value, list[Value]] = {}
        self._totals: dict[Value, Value] = {}
        self._stem = ""
        self._source: Source | None = None

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
            tensors = [Tensor(term, self) for term in terms]
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
        g = tuple(None if total is None else Tensor(total, self) for total in totals)
        y = tuple(Tensor(value, self) for value in node.results)
        single = len(node.results) == 1
        operands = [Tensor(value, self) for value in node.operands]
        grads = node.op.cotangents(g[0] if single else g, y[0] if single else y, operands, node.attrs)
        # A gradient that is None for all operands may be said once.
        grads = grads if len(grads) == len(operands) else (*grads, *[None] * (len(operands) - len(grads)))
        return [grads[i] for i in wanted]

    def collect(self, node: Node, i: int, cotangent: Any) -> None:
        """Add a term to the gradient of operand i.

        Raises:
            GraphError: the operator's gradient function gives another shape than the operand's.
        """
        value = node.operands[i]
        lifted = self.tensor(self.lift(cotangent, [value.type.dtype]))
        if lifted.shape != value.type.shape:
            raise GraphError(
                f"the gradient of {node.op.name} gives {lifted.type} for operand {i} of "
                f"{node.label}{at(node.source)}, which is {value.type}; its gradient function must "
                f"sum over broadcast dims"
            )
        self._terms.setdefault(value, []).append(lifted.astype(value.type.dtype).value)


def _refuse(node: Node) -> NoReturn:
    raise GraphError(
        f"{node.op.name} has no gradient, but {node.label}{at(node.source)} lies between the loss "
        f"and what it is differentiated for; use ops.stop_gradient if no gradient should pass here"
    )


def _dependent(graph: Graph, wrt: Sequence[Value]) -> set[Value]:
    """The values of real or complex numbers that depend on a value in `wrt` through such."""
    found = set(wrt)
    for node in graph.nodes:
        if not found.isdisjoint(node.uses):
            found.update(value for value in node.results if _continuous(value.type.dtype))
    return found


def _continuous(of: DType) -> bool:
    return of.is_float or of.name in ("c64", "c128")


def _check(graph: Graph, of: Value, wrt: Sequence[Value]) -> None:
    known = set(graph.values)
    for value in (of, *wrt):
        if value not in known:
            raise GraphError(f"differentiating {graph.name!r}: {value!r} is no value of this graph")
        if not dtype(value.type.dtype).is_float:
            raise GraphError(f"differentiating {graph.name!r}: {value!r} is not of a float type")
