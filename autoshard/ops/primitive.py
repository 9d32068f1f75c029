"""Primitives: operators as MindSpore's objects, made with attributes, named by a cell, annotated by `shard`.

    matmul = ops.MatMul(transpose_b=True).shard(((2, 1), (1, 4)))
    y = matmul(x, w)

Each operator has a class of its own, so `isinstance(p, ops.MatMul)` works. `current_primitive` tells whoever
builds the node of a call which primitive made it.
"""

from __future__ import annotations

from contextvars import ContextVar
from functools import cache
from typing import Any, ClassVar

from autoshard.layout.layout import Layout
from autoshard.ops.positional import by_name, sort_arguments
from autoshard.ops.registry import Operator, lookup
from autoshard.util.checks import positive
from autoshard.util.errors import StrategyError, at
from autoshard.util.offered import NotOfferedError
from autoshard.util.source import Source, caller

Given = tuple[tuple[int, ...] | Layout, ...]
_INSTEAD = {
    "recompute": "operators are made again with the cell that holds them: call that cell's recompute()",
    "add_prim_attr": "its attributes are those that it is made with; leave hints for MindSpore's backends out",
    "set_stage": "stages are those of cells: set pipeline_stage of the cell that holds it",
    "set_device": "every rank computes all of its operators",
    "place": "every rank computes all of its operators",
}
"""What there is for methods of MindSpore's primitives."""
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
        self.attrs: dict[str, Any] = self._attributes(args, attrs)
        self.name = ""
        self.in_strategy: Given | None = None
        self.out_strategy: Given | None = None
        self.source: Source | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.attrs.items())})"

    def __getattr__(self, name: str) -> Any:
        what = f"{type(self).__name__!r} object has no attribute {name!r}"
        raise NotOfferedError(
            what, name, lambda: [one for one in dir(type(self)) if one[0] != "_"], _INSTEAD.get(name, "")
        )

    def _attributes(self, args: tuple, attrs: dict[str, Any]) -> dict[str, Any]:
        """Attributes by name, of the arguments that the primitive is made with."""
        order = [name for name in self.operator.attributes if name not in self.operator.call_attributes]
        return by_name(self.operator, order, args, attrs)

    def _apply(self, args: tuple, attrs: dict[str, Any]) -> Any:
        """The operator's result for the arguments of a call."""
        order = [name for name in self.operator.call_attributes if name not in self.operator.operand_names]
        operands, given = sort_arguments(self.operator, args, attrs, order)
        return self.operator(*operands, **{**self.attrs, **given})

    @property
    def state(self) -> dict[str, Any]:
        """Parameters that the primitive changes when it is used, by name; the cell that holds it owns them."""
        return {}

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
        """Apply the operator to operands (one sequence, if it takes any number) and call attributes.

        Raises:
            ShapeError: operands or attributes that it cannot take.
        """
        token = _CURRENT.set(self)
        try:
            return self._apply(args, attrs)
        finally:
            _CURRENT.reset(token)


@cache
def primitive_class(operator: Operator) -> type[Primitive]:
    """The class of the operator's primitives, always the same one."""
    # The module that hands the classes out by name; pickle finds them there.
    namespace = {"operator": operator, "__doc__": operator.__doc__, "__module__": "autoshard.ops"}
    return type(operator.name, (Primitive,), namespace)


def named_primitive(operator: str, name: str, **attrs: Any) -> Primitive:
    """A primitive of an operator by its name, under an instance name of its own."""
    primitive = primitive_class(lookup(operator))(**attrs)
    primitive.name = name
    return primitive


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
