"""Retarget: a function that is written for numpy as one on a Namespace, without a second text of it.

The code stays the same; the names in it are found elsewhere: `np` is the namespace, functions of autoshard's operators
that it calls are retargeted themselves, ufuncs and number types that it closes over are the namespace's, and what it
imports of scipy comes from the engine. So an operator's meaning is said once.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from autoshard.engines.array import Array
from autoshard.engines.namespace import Namespace
from autoshard.ir.graph import Graph
from autoshard.ir.run import CALLS, is_elementwise
from autoshard.ir.text import parse
from autoshard.ops.attributes import Literal
from autoshard.ops.body import KNOWN, Body
from autoshard.ops.registry import Operator
from autoshard.util.errors import AutoshardError

_OURS = ("autoshard.ops.",)
_KEPT = (Operator, Body, Literal)


class Retarget:
    """Functions of autoshard's operators on the arrays of one namespace.

    `modules` are what functions import while they run, by name: stand-ins for scipy's.
    """

    def __init__(self, space: Namespace, modules: Mapping[str, Any], replaced: Mapping[str, Callable]) -> None:
        self.space, self._modules, self._replaced = space, modules, replaced
        self._builtins = {**vars(builtins), "__import__": self._import, **numbers_of(space)}
        self._functions: dict[FunctionType, FunctionType] = {}
        self._globals: dict[int, dict[str, Any]] = {}
        self._types: dict[type, type] = {}

    def value(self, value: Any) -> Any:
        """The same for this namespace: of values that do not depend on numpy, themselves."""
        if isinstance(value, type):
            return self._type(value)
        if isinstance(value, FunctionType):
            return self._of_function(value)
        if isinstance(value, ModuleType):
            return self._of_module(value)
        if isinstance(value, Operator):
            return _Meaning(self, value)
        if isinstance(value, Body):
            return self.body(value)
        if isinstance(value, np.ufunc):
            return getattr(self.space, value.__name__)
        if isinstance(value, np.generic | np.ndarray):
            return self.space.asarray(value)
        if isinstance(value, partial):
            return partial(self.value(value.func), *map(self.value, value.args), **value.keywords)
        if isinstance(value, dict):
            return {key: self.value(one) for key, one in value.items()}
        if type(value) is tuple or type(value) is list:
            return type(value)(map(self.value, value))
        return self._of_callable(value) if callable(value) else value

    def _type(self, value: type) -> Any:
        if issubclass(value, np.ndarray | np.generic):
            return getattr(self.space, value.__name__)
        ours = value.__module__.startswith(_OURS) and value not in _KEPT
        return self.derived(value) if ours and _methods(value) else value

    def _of_function(self, value: FunctionType) -> Callable:
        return self.function(value) if value.__module__.startswith(_OURS) else self._of_callable(value)

    def _of_module(self, value: ModuleType) -> Any:
        if value is np:
            return self.space
        return _Module(self, value) if value.__name__.startswith(_OURS) else value

    def _of_callable(self, value: Any) -> Any:
        """A function of numpy's, or one of ours with a memory of its results."""
        home, _, part = (getattr(value, "__module__", None) or "").partition(".")
        if home == "numpy":
            return getattr(getattr(self.space, part) if part in ("fft", "linalg") else self.space, value.__name__)
        known = getattr(value, "__wrapped__", None)
        return value if known is None else self.value(known)

    def body(self, body: Body) -> Body:
        """The scalar function of an operator on this namespace."""
        return Body(body.name, body.text, self.value(KNOWN[body.name]) if body.name in KNOWN else self._scalar(body))

    def _scalar(self, body: Body) -> Callable:
        """What the text of a body computes, elementwise; its call raises NotImplementedError where `unsaid` has why."""

        def run(*arrays: Any) -> tuple:
            if unsaid(body):
                raise NotImplementedError(unsaid(body))
            graph = parse(body.text)
            return self._applied(graph, graph.functions, arrays)

        return run

    def _applied(self, graph: Graph, functions: Mapping[str, Graph], arrays: Sequence[Any]) -> tuple:
        held = dict(zip(graph.inputs, map(self.space.asarray, arrays), strict=True))
        for node in graph.nodes:
            operands = [held[one] for one in node.operands]
            if node.op.name in CALLS:
                made = self._applied(functions[node.attrs["callee"]], functions, operands)
            else:
                made = self.value(node.op.run)(*operands, **node.attrs)
            parts = made if isinstance(made, tuple) else (made,)
            pairs = zip(node.results, parts, strict=True)
            held.update((one, self.space.asarray(part, one.type.dtype.numpy)) for one, part in pairs)
        return tuple(held[one] for one in graph.outputs)

    def function(self, of: FunctionType) -> FunctionType:
        """The function with all names in it found for this namespace."""
        if of in self._functions:
            return self._functions[of]
        made = FunctionType(of.__code__, self._globals_of(of), of.__name__, of.__defaults__, self._closure(of))
        made.__kwdefaults__ = of.__kwdefaults__
        self._functions[of] = made
        return made

    def derived(self, of: type) -> type:
        """A class with those of its methods that compute for this namespace."""
        if of not in self._types:
            made = self._types[of] = type(of.__name__, (of,), {})
            for name, method in _methods(of).items():
                setattr(made, name, self.function(method))
        return self._types[of]

    def _closure(self, of: FunctionType) -> tuple[CellType, ...] | None:
        return None if of.__closure__ is None else tuple(_cell(self, cell) for cell in of.__closure__)

    def _globals_of(self, of: FunctionType) -> dict[str, Any]:
        """The names of the function's module, each once; those of functions are made when they are first called."""
        known = self._globals.get(id(of.__globals__))
        if known is None:
            known = self._globals[id(of.__globals__)] = {"__builtins__": self._builtins}
            for name, value in of.__globals__.items():
                if f"{of.__module__}.{name}" in self._replaced:
                    known[name] = self._replaced[f"{of.__module__}.{name}"](value, self)
                elif not name.startswith("__"):
                    known[name] = self.value(value)
        return known

    def _import(self, name: str, *args: Any, **kwargs: Any) -> ModuleType:
        if name.partition(".")[0] == "scipy":
            if name in self._modules:
                return self._modules[name]
            raise NotImplementedError(f"{self.space.library.name} has nothing for {name}")
        return builtins.__import__(name, *args, **kwargs)


def unsaid(body: Body) -> str:
    """Why the text of a function inside of an operator does not say what it computes elementwise; '' if it does."""
    if body.name in KNOWN:
        return ""
    try:
        graph = parse(body.text)
    except AutoshardError:
        return "there is no text of a function inside of it"
    every = (*graph.nodes, *(node for function in graph.functions.values() for node in function.nodes))
    fits = all(is_elementwise(node.op) or node.op.name in CALLS for node in every)
    return "" if fits else "a function inside of it is not elementwise"


def _methods(of: type) -> dict[str, FunctionType]:
    """The methods of a class that computes with numpy, but for those that nobody wrote; of other classes none."""
    found = {name: one for name, one in vars(of).items() if isinstance(one, FunctionType)}
    written = {name: one for name, one in found.items() if not one.__code__.co_filename.startswith("<")}
    return written if any(_uses_numpy(one.__code__) for one in written.values()) else {}


def _uses_numpy(code: CodeType) -> bool:
    return "np" in code.co_names or any(isinstance(one, CodeType) and _uses_numpy(one) for one in code.co_consts)


def _cell(to: Retarget, cell: CellType) -> CellType:
    return CellType(to.value(cell.cell_contents))


def numbers_of(space: Namespace) -> dict[str, type]:
    """`int` and `float` for what is traced: an Array of one such number, as nobody knows which it is."""
    return {of.__name__: _Number(of.__name__, (of,), {"space": space, "like": of}) for of in (int, float)}


class _Number(type):
    """The type of a stand-in for a type of Python's numbers; only what it makes of Arrays differs."""

    space: Namespace
    like: type

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.like)

    def __call__(cls, value: Any = 0, *args: Any) -> Any:
        if isinstance(value, Array) and not value.is_known:
            return value.astype(np.int64 if cls.like is int else np.float64)
        return cls.like(value, *args)


class _Module:
    """A module of operators, by whose name functions are called."""

    def __init__(self, to: Retarget, module: ModuleType) -> None:
        self._to, self._module = to, module

    def __getattr__(self, name: str) -> Any:
        return self._to.value(getattr(self._module, name))


class _Meaning:
    """An operator that another one's meaning calls."""

    def __init__(self, to: Retarget, op: Operator) -> None:
        self._to, self._op = to, op

    def __call__(self, *operands: Any, **attrs: Any) -> Any:
        full = self._op.check_attributes(attrs)
        return self._to.value(self._op.run)(*map(self._to.space.asarray, operands), **full)

    @property
    def run(self) -> Callable:
        return self._to.value(self._op.run)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._op, name)


__all__ = ["Array", "Retarget"]
