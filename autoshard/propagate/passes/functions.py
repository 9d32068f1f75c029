"""The functions of a mutable module: free names, who calls whom, and in which order to visit them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from autoshard.layout.sharding import Sharding
from autoshard.ops.registry import lookup
from autoshard.propagate.mutable_ir import MutableModule, Operation, find
from autoshard.propagate.passes.edit import clone_block, named
from autoshard.util.errors import GraphError

_SYMBOL = re.compile(r"@([\w$.-]+)")
# Operators with the name of a function in an attribute.
_NAMING = {"Call": "callee", "Composite": "callee", "Opaque": "text"}


class Symbols:
    """The names of a module's functions and meshes; new ones get `_0`, `_1`, ... as MLIR's symbol table gives them."""

    def __init__(self, module: MutableModule) -> None:
        self.work = module
        self.functions = {op.attrs["name"]: op for op in module.op.blocks[0]}
        self._tried = 0

    def free(self, name: str) -> str:
        """`name`, or with the next number behind it that is free. The numbers go on, whatever the name."""
        found = name
        while found in self.functions or found in self.work.meshes:
            found = f"{name}_{self._tried}"
            self._tried += 1
        return found

    def callee(self, call: Operation) -> Operation:
        """The function that a Call calls.

        Raises:
            GraphError: there is none of that name.
        """
        name = call.attrs["callee"]
        if name not in self.functions:
            raise GraphError(f"a call of {name!r}, but the module has only {', '.join(self.functions)}")
        return self.functions[name]

    def add(self, function: Operation) -> None:
        """Put a function at the end of the module; its name becomes a free one."""
        function.attrs["name"] = self.free(function.attrs["name"])
        self.work.op.blocks[0].append(function)
        self.functions[function.attrs["name"]] = function

    def remove(self, function: Operation) -> None:
        del self.functions[function.attrs["name"]]
        function.erase()


def new_function(name: str, outputs: list[Sharding | None], original: str, public: bool = False) -> Operation:
    """A function without a body, copied from the function `original`, by which copies find together again."""
    attrs: dict[str, Any] = {"name": name, "public": public, "outputs": outputs, "copy_of": original}
    return Operation(lookup("Function"), (), (), attrs)


def original_name(function: Operation) -> str:
    """The name of the function that this is a copy of, its own if it is none."""
    return function.attrs.get("copy_of", function.attrs["name"])


def clone_function(function: Operation, symbols: Symbols) -> str:
    """Copy a function and, one by one, those that it calls; returns the copy's name."""
    attrs = function.attrs
    copy = new_function(attrs["name"], list(attrs["outputs"]), original_name(function), attrs["public"])
    clone_block(function.blocks[0], copy, {})
    for call in calls(copy):
        call.attrs["callee"] = clone_function(symbols.callee(call), symbols)
    symbols.add(copy)
    return copy.attrs["name"]


def calls(op: Operation) -> list[Operation]:
    """The calls inside, inner ones first."""
    return named(op, "Call")


def callees_first(module: MutableModule) -> list[Operation]:
    """All functions, each after those that it calls, in the order in which the module and the calls name them."""
    functions = {op.attrs["name"]: op for op in module.op.blocks[0]}
    found: dict[Operation, None] = {}
    started: set[str] = set()

    def visit(name: str) -> None:
        if name in started or name not in functions:
            return
        started.add(name)
        for call in calls(functions[name]):
            visit(call.attrs["callee"])
        found[functions[name]] = None

    for name in functions:
        visit(name)
    return list(found)


def callers_first(module: MutableModule) -> None:
    """Put the functions in the order in which propagation visits them (sdy-pre-order-funcs)."""
    body = module.op.blocks[0]
    for function in reversed(callees_first(module)):
        body.remove(function)
        body.append(function)


def drop_unused_functions(module: MutableModule) -> None:
    """Erase the private functions that no public one needs (symbol-dce)."""
    functions = {op.attrs["name"]: op for op in module.op.blocks[0]}
    if all(op.attrs["public"] for op in functions.values()):
        return
    needed: set[str] = set()
    waiting = [name for name, op in functions.items() if op.attrs["public"]]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting += [used for used in _mentioned(functions[name]) if used in functions]
    for name, function in functions.items():
        if name not in needed:
            function.erase()


def _mentioned(function: Operation) -> Iterator[str]:
    """Names of functions in the operations of one; those that nothing but their text is known of count as well."""
    for op in find(function, lambda operator: operator.name in _NAMING):
        name = _NAMING[op.operator.name]
        if name == "text":
            yield from _SYMBOL.findall(op.attrs["text"])
        else:
            yield op.attrs[name]
