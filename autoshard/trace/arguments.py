"""The arguments of model code by name: what inputs are called, and what is given by name as a tuple in order."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from autoshard.trace.cell import Cell
from autoshard.util.errors import GraphError, ShardingError, at
from autoshard.util.source import caller
from costmodel import format_count


def argument_names(fn: Any, leaves: Sequence[tuple[str, Any]]) -> list[str]:
    """`x`, `batch.label`: the path of each leaf with the parameter's name in place of its position."""
    heads_and_tails = [path.partition(".") for path, _ in leaves]
    plain = _positional_names(fn, max((int(head) + 1 for head, _, _ in heads_and_tails), default=0))
    return [f"{plain[int(head)]}.{tail}" if tail else plain[int(head)] for head, _, tail in heads_and_tails]


def _positional_names(fn: Any, count: int) -> list[str]:
    """The names of the first `count` arguments."""
    target = fn.construct if isinstance(fn, Cell) else fn
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "input")
    plain = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [*plain[:count], *(f"{rest}{i}" for i in range(len(plain), count))]


def check_count(fn: Any, count: int, what: str) -> None:
    """That `fn` can be called with so many arguments, as far as that is known.

    Raises:
        GraphError: it cannot.
    """
    target = fn.construct if isinstance(fn, Cell) else fn
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*range(count))
    except TypeError as error:
        name = f"{type(fn).__name__}.construct" if isinstance(fn, Cell) else getattr(fn, "__name__", repr(fn))
        given = format_count(count, "input")
        raise GraphError(f"{what}: {name} takes {signature}, but gets {given}: {error}") from None


def by_position(given: Any, fn: Any, count: int, what: str) -> Any:
    """What is given by the arguments' names as a tuple with an entry per argument; anything else as it is.

    Raises:
        ShardingError: a name that is no argument's.
    """
    if not isinstance(given, Mapping):
        return given
    names = _positional_names(fn, count)
    unknown = [name for name in given if name not in names]
    if unknown:
        raise ShardingError(f"{what}{at(caller())} names {unknown[0]!r}; the arguments are {', '.join(names)}")
    return tuple(given.get(name) for name in names)
