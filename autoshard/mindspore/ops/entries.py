"""Entries of a strategy, for one tensor each: tuples of parts, or Layouts, taken apart and put together alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autoshard.layout.layout import Layout
from autoshard.util.errors import StrategyError

Entry = tuple[int, ...] | Layout


def dims_of(entry: Any) -> int | None:
    """Of how many dims the tensor is that an entry stands for; None if it is no entry."""
    if isinstance(entry, Layout):
        return entry.rank
    return len(entry) if isinstance(entry, tuple) else None


def taken(entry: Entry, dims: Sequence[int | None]) -> Entry:
    """The entry of a tensor whose dim i is split as dim dims[i] of this one is, or is whole for None."""
    if isinstance(entry, Layout):
        return Layout(entry.mesh, [() if i is None else entry.dims[i] for i in dims])
    return tuple(1 if i is None else entry[i] for i in dims)


def leading(count: int) -> Callable[[Any, Any, Any], tuple[Any, Any]]:
    """The strategy of an operator that takes the first of a primitive's tensors, or of all that are split alike."""

    def translate(attrs: Any, given: Any, out: Any) -> tuple[Any, Any]:
        return given[:count] if isinstance(given, tuple) else given, out

    return translate


def refused(given: Any, right: str) -> StrategyError:
    """The error for an in_strategy that is of another form; `right` says how it is written."""
    return StrategyError(f"in_strategy is {given!r}; it is {right}")
