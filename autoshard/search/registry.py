"""Search modes by name: each is a function from problem to plan in a file of its own, and users can add theirs.

@search_mode("mine")
def mine(problem: Problem) -> Plan: ...
"""

from __future__ import annotations

from collections.abc import Callable

from autoshard.errors import UnknownNameError
from autoshard.plan import Plan
from autoshard.search.problem import Problem

Search = Callable[[Problem], Plan]
_MODES: dict[str, Search] = {}


def search_mode(name: str) -> Callable[[Search], Search]:
    """Register a search under a name.

    Raises:
        UnknownNameError: the name is taken.
    """

    def register(function: Search) -> Search:
        if name in _MODES:
            raise UnknownNameError(f"search mode {name!r} is already defined")
        _MODES[name] = function
        return function

    return register


def search_modes() -> tuple[str, ...]:
    return tuple(sorted(_MODES))


def find_mode(name: str) -> Search:
    """The search of that name.

    Raises:
        UnknownNameError: none has it.
    """
    if name not in _MODES:
        raise UnknownNameError(f"unknown search mode {name!r}; known are {', '.join(search_modes())}")
    return _MODES[name]
