"""The functions of a module and who calls whom."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from autoshard.frontends.stablehlo.attributes import attribute
from autoshard.ir.calls import call_cycle, callees
from autoshard.ir.graph import Graph
from autoshard.util.errors import ParseError


def public_of(functions: Mapping[str, Any]) -> tuple[str, ...]:
    """The functions that may be called from outside the module, in order."""
    return tuple(name for name, op in functions.items() if attribute(op, "sym_visibility") != "private")


def entry_of(functions: Mapping[str, Any]) -> str:
    """The function to start from: main, else the first public one, else the first."""
    return next(iter([*("main",) * ("main" in functions), *public_of(functions), *functions]))


def check_calls(graphs: Mapping[str, Graph]) -> None:
    """That every callee has a body, and that no function calls itself.

    Raises:
        ParseError: naming the functions.
    """
    for name, graph in graphs.items():
        missing = [callee for callee in callees(graph) if callee not in graphs]
        if missing:
            raise ParseError(f"@{name} calls @{missing[0]}, which has no body in this module")
    cycle = call_cycle(graphs)
    if cycle:
        circle = " -> ".join(f"@{name}" for name in cycle)
        raise ParseError(f"functions that call themselves cannot be imported: {circle}")


def with_functions(graph: Graph, region: Any, read: Callable[[str, Any], Graph]) -> Graph:
    """A graph read from a region, with the functions of its module that it calls; `read(name, operation)` reads one."""
    wanted = callees(graph)
    if not wanted:
        return graph
    functions: dict[str, Graph] = {}
    found = _functions_around(region)
    while wanted:
        name = wanted.pop()
        if name not in functions and name in found:
            functions[name] = read(name, found[name])
            wanted += callees(functions[name])
    check_calls({graph.name: graph, **functions})
    return replace(graph, functions=functions)


def _functions_around(region: Any) -> dict[str, Any]:
    """All functions of the module that holds a region, by name."""
    op = region.owner.operation
    while op.parent is not None:
        op = op.parent.operation
    inside = [one.operation for one in op.regions[0].blocks[0].operations]
    return {attribute(one, "sym_name"): one for one in inside if one.name == "func.func"}
