"""The laws of a graph. `verify` checks them all; a pass may assume a verified graph and must leave one.

Each value is made once and before its use, names are unique, result types are what the operator infers, and
an output that replaces an input has the input's type.
"""

from __future__ import annotations

from collections.abc import Iterable

from autoshard.errors import GraphError, ShapeError, at
from autoshard.ir.graph import DATA, ROLES, Graph, Node, Value


def verify(graph: Graph) -> None:
    """Check every law of the representation.

    Raises:
        GraphError: the first one that is broken; names the node and the user's source line.
    """
    _check_inputs(graph)
    _check_order(graph)
    _check_names(graph)
    for node in graph.nodes:
        check_node(node)
    _check_outputs(graph)
    _check_updates(graph)
    _check_cotangents(graph)


def describe(node: Node) -> str:
    """The node in an error's words: `dense1.matmul (MatMul) at train.py:33`."""
    label = node.name or (node.results[0].name if node.results else "a node without results")
    return f"{label} ({node.op.name}){at(node.source)}"


def check_node(node: Node) -> None:
    """Check one node by itself: its attributes, its arity, the types of its results.

    Raises:
        GraphError: it breaks a law.
    """
    where = describe(node)
    if set(node.attrs) != set(node.op.attributes):
        known = _words(node.op.attributes)
        raise GraphError(f"{where} has the attributes {_words(node.attrs)}; the operator has {known}")
    try:
        inferred = node.op.result_types(node.operand_types, node.attrs)
    except ShapeError as error:
        raise GraphError(f"{where}: {error}") from None
    if inferred != node.result_types:
        raise GraphError(
            f"{where} has results of type {_words(node.result_types)}, but from operands "
            f"{_words(node.operand_types)} the operator makes {_words(inferred)}"
        )


def _words(items: Iterable) -> str:
    return "(" + ", ".join(map(str, items)) + ")"


def _check_inputs(graph: Graph) -> None:
    if len(graph.roles) != len(graph.inputs):
        raise GraphError(f"graph {graph.name!r} has {len(graph.inputs)} inputs but {len(graph.roles)} roles")
    for value, role in zip(graph.inputs, graph.roles, strict=True):
        if role not in ROLES:
            what = f"input {value.name!r} of graph {graph.name!r}"
            raise GraphError(f"{what} has role {role!r}; roles are {', '.join(ROLES)}")


def _check_order(graph: Graph) -> None:
    """Single assignment, and definition before use."""
    defined: dict[Value, str] = {}
    for value in graph.inputs:
        _define(defined, value, f"graph {graph.name!r}: an input")
    for node in graph.nodes:
        where = describe(node)
        for i, value in enumerate(node.operands):
            if value not in defined:
                raise GraphError(f"{where}: operand {i}, {value.name!r}, is not defined before it")
        for value in node.results:
            _define(defined, value, where)


def _define(defined: dict[Value, str], value: Value, where: str) -> None:
    if value in defined:
        raise GraphError(f"{where} defines {value.name!r}, which {defined[value]} defines already")
    defined[value] = where


def _check_names(graph: Graph) -> None:
    seen: dict[str, Value] = {}
    for value in graph.values:
        if value.name in seen:
            made = graph.producers.get(value)
            where = f"made by {describe(made[0])}" if made else "an input"
            raise GraphError(f"graph {graph.name!r} has two values named {value.name!r}; the second is {where}")
        seen[value.name] = value


def _check_outputs(graph: Graph) -> None:
    known = set(graph.values)
    for i, value in enumerate(graph.outputs):
        if value not in known:
            raise GraphError(f"output {i} of graph {graph.name!r}, {value.name!r}, is no value of the graph")


def _check_updates(graph: Graph) -> None:
    replaced: dict[int, int] = {}
    for out, into in graph.updates.items():
        what = f"graph {graph.name!r}: the update of input {into} by output {out}"
        if not 0 <= out < len(graph.outputs) or not 0 <= into < len(graph.inputs):
            raise GraphError(f"{what}: there are {len(graph.outputs)} outputs and {len(graph.inputs)} inputs")
        output, target = graph.outputs[out], graph.inputs[into]
        if output.type != target.type:
            raise GraphError(f"{what}: {output!r} cannot replace {target!r}; the types must be equal")
        if graph.roles[into] == DATA:
            raise GraphError(f"{what}: {target.name!r} is data; only a parameter or a state can be replaced")
        if into in replaced:
            raise GraphError(f"{what}: output {replaced[into]} replaces {target.name!r} already")
        replaced[into] = out


def _check_cotangents(graph: Graph) -> None:
    known = set(graph.values)
    for grad, of in graph.cotangents.items():
        if grad not in known or of not in known:
            raise GraphError(f"graph {graph.name!r}: {grad!r} is said to be the gradient of {of!r}; not both are in it")
        if grad.type != of.type:
            raise GraphError(
                f"graph {graph.name!r}: {grad!r} cannot be the gradient of {of!r}; the types must be equal"
            )
