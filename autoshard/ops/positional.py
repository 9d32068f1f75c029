"""The arguments of a call sorted into operands and attributes: by position as MindSpore's users write them, or by name.

ops.reshape(x, (2, -1))        ops.concat([x, y], 1)        ops.einsum("nd,de->ne", x, w)
ops.GatherD()(x, 1, index)     ops.gather(x, indices=index, axis=1)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from autoshard.util.errors import ShapeError, at
from autoshard.util.source import caller
from costmodel import format_count


class Signature(Protocol):
    """What a call needs to know of an operator."""

    name: str
    operand_names: tuple[str, ...]
    variadic: bool
    attributes: dict[str, Any]

    @property
    def call_attributes(self) -> tuple[str, ...]: ...


def sort_call(operator: Signature, args: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Operands, and attributes by name, of a call of the operator itself: attributes may follow the operands.

    Their order is that of `attribute_order`; a text before the operands is the first of them.

    Raises:
        ShapeError: more arguments than the operator has operands and attributes, or one given twice.
    """
    if operator.variadic and args and isinstance(args[0], str):
        first = next((name for name in attribute_order(operator) if name not in attrs), None)
        return tuple(_unpacked(args[1:])[0]), by_name(operator, [] if first is None else [first], args[:1], attrs)
    return sort_arguments(operator, args, attrs, attribute_order(operator))


def sort_arguments(
    operator: Signature, args: Sequence[Any], attrs: Mapping[str, Any], order: Sequence[str]
) -> tuple[tuple, dict[str, Any]]:
    """Operands, and attributes by name, where attributes may follow the operands in this order.

    Raises:
        ShapeError: as `sort_call`.
    """
    operands, rest = _take_operands(operator, args)
    if any(_is_tensor(one) for one in rest):
        raise ShapeError(f"{operator.name}{at(caller())} takes {_operands(operator)}, not {len(args)}")
    named = {name: value for name, value in attrs.items() if name not in operator.operand_names}
    if len(named) < len(attrs):
        operands = _completed(operator, operands, attrs)
    return tuple(operands), by_name(operator, order, rest, named)


def attribute_order(operator: Signature) -> tuple[str, ...]:
    """The order in which attributes follow the operands of a call: those of MindSpore's call first."""
    first = [name for name in operator.call_attributes if name not in operator.operand_names]
    return (*first, *(name for name in operator.attributes if name not in first))


def by_name(operator: Signature, order: Sequence[str], args: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes given by position, in this order, and by name, as one mapping of plain values.

    Raises:
        ShapeError: more than there are, one that the operator does not have, or one given twice.
    """
    if len(args) > len(order):
        names = ", ".join(order) or "none"
        raise ShapeError(
            f"{operator.name}{at(caller())}: {format_count(len(args), 'attribute')} given by position; there are "
            f"{len(order)}: {names}"
        )
    given = dict(zip(order, args, strict=False))
    for name, value in attrs.items():
        if name not in operator.attributes:
            known = ", ".join(operator.attributes) or "none"
            raise ShapeError(f"{operator.name}{at(caller())} has no attribute {name!r}; it has: {known}")
        if name in given:
            raise ShapeError(f"{operator.name}{at(caller())}: attribute {name!r} is given by position and by name")
        given[name] = value
    return {name: _plain(value) for name, value in given.items()}


def _unpacked(args: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """The operands of an operator that takes any number, which may come as one sequence, and what follows them."""
    packed = bool(args) and isinstance(args[0], tuple | list)
    return (args[0], args[1:]) if packed else (args, ())


def _take_operands(operator: Signature, args: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """Positional arguments of a call: operands, and values that are left."""
    if operator.variadic:
        return _unpacked(args)
    if set(operator.operand_names) & set(operator.call_attributes):
        return _take_mixed(operator, args)
    count = len(operator.operand_names)
    return args[:count], args[count:]


def _take_mixed(operator: Signature, args: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """Where `call` lists operands too, it is the order of all: MindSpore's GatherD()(x, dim, index)."""
    call = operator.call_attributes
    if len(args) <= len(operator.operand_names):
        return args, ()
    named = dict(zip(call, args, strict=False))
    operands = [named[name] for name in operator.operand_names if name in named]
    rest = [named[name] for name in call if name in named and name not in operator.operand_names]
    return operands, [*rest, *args[len(call) :]]


def _completed(operator: Signature, operands: Sequence[Any], attrs: Mapping[str, Any]) -> Sequence[Any]:
    """The operands with those that are given by name."""
    for name in operator.operand_names[: len(operands)]:
        if name in attrs:
            raise ShapeError(f"{operator.name}{at(caller())}: operand {name!r} is given by position and by name")
    rest = operator.operand_names[len(operands) :]
    missing = [name for name in rest if name not in attrs]
    if missing:
        raise ShapeError(f"{operator.name}{at(caller())} takes {_operands(operator)}; {', '.join(missing)} is missing")
    return (*operands, *(attrs[name] for name in rest))


def _operands(operator: Signature) -> str:
    return f"{format_count(len(operator.operand_names), 'operand')} ({', '.join(operator.operand_names)})"


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "__autoshard_apply__") or isinstance(value, np.ndarray) and value.ndim > 0


def _plain(value: Any) -> Any:
    """Arrays without dims, such as MindSpore's Tensor(1.0) for OneHot's on_value, as numbers."""
    return value.item() if isinstance(value, np.ndarray | np.generic) and value.ndim == 0 else value
