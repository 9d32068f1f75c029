"""HyperMap, Map and MultitypeFuncGraph: functions of nested rows, and functions by the types of their arguments.

They are of Python alone, so that what they apply is traced, planned and split as if it were written out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from autoshard.core.tensortype import DType
from autoshard.core.tensortype import dtype as element
from autoshard.util.errors import GraphError, UnknownNameError, at
from autoshard.util.near import did_you_mean
from autoshard.util.source import caller


def partial(function: Callable, *args: Any) -> Callable:
    """The function with its first arguments."""
    return functools.partial(function, *args)


def _is_tensor(one: Any) -> bool:
    return hasattr(one, "dtype") and hasattr(one, "shape")


_KINDS: dict[str, Callable[[Any], bool]] = {
    "tensor": _is_tensor,
    "number": lambda one: isinstance(one, int | float) and not _is_tensor(one),
    "bool": lambda one: isinstance(one, bool),
    "int": lambda one: isinstance(one, int) and not isinstance(one, bool),
    "float": lambda one: isinstance(one, float) and not _is_tensor(one),
    "string": lambda one: isinstance(one, str),
    "tuple": lambda one: isinstance(one, tuple),
    "list": lambda one: isinstance(one, list),
    "none": lambda one: one is None,
    "typenone": lambda one: one is None,
    "function": lambda one: callable(one) and not _is_tensor(one),
}


def _kind(given: Any, what: str) -> Callable[[Any], bool]:
    """Whether an argument is of the kind that `register` was given."""
    if isinstance(given, DType):
        return lambda one: _is_tensor(one) and element(one.dtype) == given
    name = str(given).replace("_", "").lower()
    if name.startswith("tensor[") or name in _KINDS:
        return _KINDS[name.partition("[")[0]]
    raise UnknownNameError(f"{what}: there is no type {given!r}{did_you_mean(str(given), [k.title() for k in _KINDS])}")


class MultitypeFuncGraph:
    """A function of several definitions, of which the arguments' types say which is called.

    Args:
        name: of the function, for messages.
        read_value: MindSpore's; it makes no difference.

    Example:
        >>> add = MultitypeFuncGraph("add")
        >>> @add.register("Number", "Number")
        ... def add_numbers(x, y):
        ...     return x + y
        >>> add(1, 2)
        3
    """

    def __init__(self, name: str, read_value: bool = False) -> None:
        self.name, self.entries = name, []  # type: ignore[var-annotated]

    def register(self, *type_names: Any) -> Callable[[Callable], Callable]:
        """Decorates the definition for arguments of these types: "Tensor", "Number", "Bool", "Function", ...

        Raises:
            UnknownNameError: when it decorates: another name.
        """

        def decorate(function: Callable) -> Callable:
            what = f"MultitypeFuncGraph {self.name!r}.register{at(caller())}"
            self.entries.append((type_names, tuple(_kind(one, what) for one in type_names), function))
            return function

        return decorate

    def __call__(self, *args: Any) -> Any:
        """What the first definition that fits gives; a single one is taken for anything.

        Raises:
            GraphError: none fits.
        """
        fits = [entry for entry in self.entries if len(entry[1]) == len(args)]
        for _, kinds, function in fits if len(self.entries) > 1 else self.entries:
            if len(self.entries) == 1 or all(kind(one) for kind, one in zip(kinds, args, strict=True)):
                return function(*args)
        known = "; ".join(f"({', '.join(map(str, names))})" for names, _, _ in self.entries)
        given = ", ".join("Tensor" if _is_tensor(one) else type(one).__name__ for one in args)
        raise GraphError(
            f"MultitypeFuncGraph {self.name!r}{at(caller())} is called with ({given}); it is registered for "
            f"{known or 'nothing'}"
        )


class Map:
    """A function applied to the elements of rows, one of each; the function is given here, or as the first argument.

    Args:
        reverse: MindSpore's order of evaluation; it makes no difference to the results.

    Example:
        >>> Map()(lambda x, y: x + y, (1, 2), (10, 20))
        (11, 22)
    """

    def __init__(self, ops: Callable | None = None, reverse: bool = False) -> None:
        self.ops, self.reverse = ops, reverse

    def __call__(self, *args: Any) -> Any:
        """The results as a tuple (of lists a list).

        Raises:
            GraphError: no rows, or rows of unequal lengths.
        """
        function, rows = (args[0], args[1:]) if self.ops is None else (self.ops, args)
        self._check(rows)
        return _like(rows[0], [self._element(function, one) for one in zip(*rows, strict=True)])

    def _element(self, function: Callable, elements: tuple) -> Any:
        return function(*elements)

    def _check(self, rows: tuple) -> None:
        lengths = [len(one) if isinstance(one, tuple | list) else type(one).__name__ for one in rows]
        if not rows or len(set(lengths)) > 1 or not isinstance(lengths[0], int):
            raise GraphError(
                f"{type(self).__name__}{at(caller())} takes rows (tuples or lists) of one length; their lengths are "
                f"{lengths}"
            )


class HyperMap(Map):
    """As Map; of rows in rows it goes down to their elements.

    Example:
        >>> HyperMap()(lambda x: x * x, ((1, 2), (3,)))
        ((1, 4), (9,))
    """

    def __call__(self, *args: Any) -> Any:
        """The results, nested as the rows are.

        Raises:
            GraphError: rows of unequal lengths.
        """
        function, rows = (args[0], args[1:]) if self.ops is None else (self.ops, args)
        if rows and not isinstance(rows[0], tuple | list):
            return function(*rows)
        return super().__call__(*args)

    def _element(self, function: Callable, elements: tuple) -> Any:
        return HyperMap(function)(*elements)


def _like(row: Any, found: list) -> Any:
    return found if isinstance(row, list) else tuple(found)
