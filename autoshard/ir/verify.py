"""The laws of a graph. `verify` checks them all; a pass may assume a verified graph and must leave one.

Each value is made once and before its use, names are unique, result types are what the operator infers, and
an output that replaces an input has the input's type. What flows into and out of regions and functions has one type,
and no function calls itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from autoshard.ir.calls import call_cycle
from autoshard.ir.graph import DATA, ROLES, Graph, Node, Region, Value, inner_values, walk
from autoshard.ir.run import CALLS
from autoshard.ir.verify_regions import check_regions
from autoshard.util.errors import GraphError, ShapeError, at


def verify(graph: Graph) -> None:
    """Check every law of the representation.

    Raises:
        GraphError: the first one that is broken; names the node and the user's source line.
    """
    for one in (graph, *graph.functions.values()):
        _check_inputs(one)
        _check_order(one)
        _check_names(one)
        for node in walk(one.nodes):
            check_node(node)
            check_regions(node, describe(node))
        _check_outputs(one)
        _check_updates(one)
        _check_cotangents(one)
    _check_calls(graph)


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
    _check_block(graph.nodes, defined, set(graph.inputs))


def _check_block(nodes: Iterable[Node], defined: dict[Value, str], visible: set[Value]) -> None:
    """`defined` has all values made so far, `visible` those that may be used here; both grow."""
    for node in nodes:
        where = describe(node)
        for i, value in enumerate(node.operands):
            if value not in visible:
                raise GraphError(f"{where}: operand {i}, {value.name!r}, is not defined before it")
        for region in node.regions:
            _check_region(region, where, defined, set(visible))
        for value in node.results:
            _define(defined, value, where)
        visible.update(node.results)


def _check_region(region: Region, where: str, defined: dict[Value, str], visible: set[Value]) -> None:
    for value in region.args:
        _define(defined, value, f"{where}: an argument of its region")
    visible.update(region.args)
    _check_block(region.nodes, defined, visible)
    for value in region.outputs:
        if value not in visible:
            raise GraphError(f"{where}: its region yields {value.name!r}, which is not defined in it or before it")


def _define(defined: dict[Value, str], value: Value, where: str) -> None:
    if value in defined:
        raise GraphError(f"{where} defines {value.name!r}, which {defined[value]} defines already")
    defined[value] = where


def _check_names(graph: Graph) -> None:
    seen: set[str] = set()
    for value in graph.inputs:
        _check_name(graph, seen, value, "an input")
    for node in walk(graph.nodes):
        for value in node.results:
            _check_name(graph, seen, value, node)
        for value in (value for region in node.regions for value in region.args):
            _check_name(graph, seen, value, "an argument of a region")


def _check_name(graph: Graph, seen: set[str], value: Value, made: Node | str) -> None:
    if value.name in seen:
        where = made if isinstance(made, str) else f"made by {describe(made)}"
        raise GraphError(f"graph {graph.name!r} has two values named {value.name!r}; the second is {where}")
    seen.add(value.name)


def _check_calls(graph: Graph) -> None:
    """That what is called exists, has the types that calls say, and calls nothing that leads back to it."""
    graphs = {**graph.functions, graph.name: graph}
    for one in graphs.values():
        for node in walk(one.nodes):
            if node.op.name in CALLS:
                _check_callee(node, graph)
    cycle = call_cycle(graphs)
    if cycle:
        raise GraphError(f"graph {graph.name!r}: functions that call themselves: {' -> '.join(cycle)}")


def _check_callee(node: Node, graph: Graph) -> None:
    name = node.attrs["callee"]
    callee = graph if name == graph.name else graph.functions.get(name)
    if callee is None:
        raise GraphError(f"{describe(node)} calls {name!r}; the functions are {_words(graph.functions)}")
    takes = tuple(value.type for value in callee.inputs), tuple(value.type for value in callee.outputs)
    if takes != (node.operand_types, node.result_types):
        found, right = (" -> ".join(map(_words, types)) for types in ((node.operand_types, node.result_types), takes))
        raise GraphError(f"{describe(node)} calls {name!r} as {found}, but it is {right}")


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
    known = {*graph.values, *inner_values(graph)}
    for grad, of in graph.cotangents.items():
        if grad not in known or of not in known:
            raise GraphError(f"graph {graph.name!r}: {grad!r} is said to be the gradient of {of!r}; not both are in it")
        if grad.type != of.type:
            raise GraphError(
                f"graph {graph.name!r}: {grad!r} cannot be the gradient of {of!r}; the types must be equal"
            )
