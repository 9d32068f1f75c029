"""Primitives: operators as MindSpore's objects, made with attributes, named by a cell, annotated by `shard`.

    matmul = ops.MatMul(transpose_b=True).shard(((2, 1), (1, 4)))
    y = matmul(x, w)

Each operator has a class of its own, so `isinstance(p, ops.MatMul)` works. `current_primitive` tells whoever
builds the node of a call which primitive made it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from functools import cache
from typing import Any, ClassVar

import numpy as np

from autoshard.checks import positive
from autoshard.errors import ShapeError, StrategyError, at
from autoshard.layout.layout import Layout
from autoshard.ops.registry import Operator
from autoshard.source import Source, caller

Given = tuple[tuple[int, ...] | Layout, ...]
_CURRENT: ContextVar[Primitive | None] = ContextVar("current_primitive", default=None)


def current_primitive() -> Primitive | None:
    """The primitive whose call is under way."""
    return _CURRENT.get()


class Primitive:
    """An operator with fixed attributes, for one use or several; `primitive_class` makes a subclass for each.

    Args:
        args, attrs: attributes of the operator, by position (without those of the call) or by name.

    Raises:
        ShapeError: no such attribute.
    """

    operator: ClassVar[Operator]

    def __init__(self, *args: Any, **attrs: Any) -> None:
        order = [name for name in self.operator.attributes if name not in self.operator.call_attributes]
        self.attrs: dict[str, Any] = _by_name(self.operator, order, args, attrs)
        self.name = ""
        self.in_strategy: Given | None = None
        self.out_strategy: Given | None = None
        self.source: Source | None = None

    def __repr__(self) -> str:
        return f"{self.operator.name}({', '.join(f'{name}={value!r}' for name, value in self.attrs.items())})"

    def shard(self, in_strategy: Given | None = None, out_strategy: Given | None = None) -> Primitive:
        """Fix how the operator is split; returns the primitive.

        Args:
            in_strategy: per operand a tuple with the number of parts of each dim, or a Layout.
            out_strategy: the same per result.

        Raises:
            StrategyError: anything but a tuple of tuples of positive whole numbers or of Layouts.
        """
        source = caller()
        what = f"{self.name or self.operator.name}.shard{at(source)}"
        self.in_strategy = _checked_form(in_strategy, "in_strategy", what)
        self.out_strategy = _checked_form(out_strategy, "out_strategy", what)
        self.source = source
        return self

    def __call__(self, *args: Any, **attrs: Any) -> Any:
        """Apply the operator to operands (one sequence, if it takes any number) and call attributes."""
        operands, rest, order = _take_operands(self.operator, args)
        if len(rest) > len(order):
            names = ", ".join(self.operator.operand_names)
            raise ShapeError(
                f"{self.operator.name}{at(caller())}: {len(args)} arguments for the operands ({names}); {len(rest)} "
                f"attributes given by position; there are {len(order)}: {', '.join(order) or 'none'}"
            )
        given = _by_name(self.operator, order, rest, attrs)
        token = _CURRENT.set(self)
        try:
            return self.operator(*operands, **{**self.attrs, **given})
        finally:
            _CURRENT.reset(token)


@cache
def primitive_class(operator: Operator) -> type[Primitive]:
    """The class of the operator's primitives, always the same one."""
    # The module that hands the classes out by name; pickle finds them there.
    namespace = {"operator": operator, "__doc__": operator.__doc__, "__module__": "autoshard.ops"}
    return type(operator.name, (Primitive,), namespace)


def _take_operands(operator: Operator, args: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[str]]:
    """Positional arguments of a call: operands, values that are left, attributes they may be."""
    call = operator.call_attributes
    if operator.variadic:
        packed = bool(args) and isinstance(args[0], tuple | list)
        return (args[0], args[1:], call) if packed else (args, (), call)
    if set(operator.operand_names) & set(call):
        return _take_mixed(operator, args)
    count = len(operator.operand_names)
    return args[:count], args[count:], call


def _take_mixed(operator: Operator, args: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[str]]:
    """Where `call` lists operands too, it is the order of all: MindSpore's GatherD()(x, dim, index)."""
    call = operator.call_attributes
    order = [name for name in call if name not in operator.operand_names]
    if len(args) <= len(operator.operand_names):
        return args, (), order
    named = dict(zip(call, args, strict=False))
    operands = [named[name] for name in operator.operand_names if name in named]
    return operands, [named[name] for name in order if name in named] + list(args[len(call) :]), order


def _by_name(operator: Operator, order: Sequence[str], args: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes given by position and by name, as one mapping of plain values."""
    if len(args) > len(order):
        names = ", ".join(order) or "none"
        raise ShapeError(f"{operator.name}: {len(args)} attributes given by position; there are {len(order)}: {names}")
    given = dict(zip(order, args, strict=False))
    for name, value in attrs.items():
        if name not in operator.attributes:
            known = ", ".join(operator.attributes) or "none"
            raise ShapeError(f"{operator.name} has no attribute {name!r}; it has: {known}")
        if name in given:
            raise ShapeError(f"{operator.name}: attribute {name!r} is given by position and by name")
        given[name] = value
    return {name: _plain(value) for name, value in given.items()}


def _plain(value: Any) -> Any:
    """Arrays without dims, such as MindSpore's Tensor(1.0) for OneHot's on_value, as numbers."""
    return value.item() if isinstance(value, np.ndarray | np.generic) and value.ndim == 0 else value


def _checked_form(given: Any, which: str, what: str) -> Given | None:
    """The strategy with plain ints for numbers; raises StrategyError for what is none."""
    if given is None:
        return None
    if not isinstance(given, tuple):
        raise StrategyError(f"{what}: {which} is {given!r}, but must be a tuple with a tuple or a Layout per tensor")
    return tuple(_checked_entry(one, i, given, which, what) for i, one in enumerate(given))


def _checked_entry(one: Any, i: int, given: tuple, which: str, what: str) -> tuple[int, ...] | Layout:
    if isinstance(one, Layout):
        return one
    if positive(one) is not None:
        alone = all(positive(other) is not None for other in given)
        hint = f", for one tensor ({given!r},)" if alone else ""
        raise StrategyError(
            f"{what}: {which} is {given!r}, whose entry {i} is a number; write a tuple per tensor{hint}"
        )
    if not isinstance(one, tuple):
        raise StrategyError(f"{what}: entry {i} of {which} is {one!r}, but must be a tuple or a Layout")
    for dim, parts in enumerate(one):
        if positive(parts) is None:
            raise StrategyError(
                f"{what}: entry {i} of {which} is {one!r}; dim {dim} has {parts!r} parts, "
                f"but that must be a whole number of at least 1"
            )
    return tuple(int(parts) for parts in one)
