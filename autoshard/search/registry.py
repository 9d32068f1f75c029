"""Search modes by name: each is a function from problem to plan in a file of its own, and users can add theirs.

@search_mode("mine")
def mine(problem: Problem) -> Plan: ...

A mode decides a strategy for every node of `problem.graph` and a layout for every value: `problem.configured` and
`problem.input_layouts` are settled, `problem.left` and `problem.outputs` follow. `plan_of` in causes.py makes the plan
from strategies alone. How good it is, `evaluate_plan` tells.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from difflib import get_close_matches
from functools import partial, update_wrapper

from autoshard.plan.plan import Plan
from autoshard.search.flat import Modes, Search, flat, flat_problem, has_loops, has_manual, nested_plan
from autoshard.search.problem import Problem
from autoshard.util.errors import PlanError, UnknownNameError

_MODES: dict[str, Search] = {}
_OPTIONS: dict[str, tuple[str, ...]] = {}
_KEEPS_LIMIT: set[str] = set()
_FAMILIES: dict[str, Callable[[str], Search]] = {}


def search_mode(
    name: str, regions: bool = False, options: Collection[str] = (), keeps_limit: bool = False
) -> Callable[[Search], Search]:
    """Register a search under a name.

    Args:
        options: the names of `problem.options` that it reads.
        regions: it plans nodes with regions by itself; else it is given flat graphs only, see `flat.py`.
        keeps_limit: it looks for a plan within the memory limit; the plans of others are only held against it.

    Raises:
        UnknownNameError: the name is taken.

    >>> import numpy as np
    >>> from autoshard import nn, plan, search_mode
    >>> from autoshard.search import find_mode
    >>> @search_mode("doctest_rules")
    ... def by_rules(problem):
    ...     return find_mode("factor")(problem)
    >>> plan(nn.ReLU(), (np.ones((16, 12), np.float32),), devices=4, search="doctest_rules").plan.mesh.devices
    4
    """

    def register(function: Search) -> Search:
        if name in _MODES:
            raise UnknownNameError(f"search mode {name!r} is already defined")
        _MODES[name] = function if regions else update_wrapper(partial(plan_flat, function), function)
        _OPTIONS[name] = tuple(options)
        if keeps_limit:
            _KEEPS_LIMIT.add(name)
        return function

    return register


def mode_family(mark: str) -> Callable[[Callable[[str], Search]], Callable[[str], Search]]:
    """Register what makes a search of each name with a mark in it, such as '(' of 'zero3(dp) + megatron(tp)'."""

    def register(function: Callable[[str], Search]) -> Callable[[str], Search]:
        _FAMILIES[mark] = function
        return function

    return register


def plan_flat(mode: Search, problem: Problem) -> Plan:
    """The plan that a search finds, which is given flat graphs only; see `plans_flat`."""
    return next(plans_flat(lambda flattened: iter((mode(flattened),)), problem))


def plans_flat(modes: Modes, problem: Problem) -> Iterator[Plan]:
    """The plans that searches find, for a graph with regions by way of its flat form; made as they are asked for.

    Manual computations run as people wrote them, which the mode "factor" plans.

    Raises:
        PlanError: a manual computation in a problem that does not say what people ask for.
    """
    if not has_loops(problem.graph):
        yield from modes(problem)
        return
    form = flat(problem.graph)
    manual = find_mode("factor")(problem) if has_manual(problem.graph) else None
    for found in modes(flat_problem(problem, form, manual)):
        yield nested_plan(found, form, manual)


def search_modes() -> tuple[str, ...]:
    return tuple(sorted(_MODES))


def find_mode(name: str) -> Search:
    """The search of that name.

    Raises:
        UnknownNameError: none has it.
    """
    for mark, family in _FAMILIES.items():
        if mark in name:
            return partial(plan_flat, family(name))
    if name not in _MODES:
        near = get_close_matches(name, _MODES, n=3)
        meant = f"; did you mean {' or '.join(near)}?" if near else ""
        raise UnknownNameError(f"unknown search mode {name!r}{meant}; known are {', '.join(search_modes())}")
    return _MODES[name]


def keeps_limit(name: str) -> bool:
    """Whether the search of that name looks for a plan within the memory limit."""
    return name in _KEEPS_LIMIT


def mode_options(name: str) -> tuple[str, ...]:
    """The names of the options that a mode has."""
    return _OPTIONS.get(name, ())


def check_options(name: str, given: Iterable[str]) -> None:
    """That a mode has all options of these names.

    Raises:
        PlanError: one that it does not have.
    """
    known = mode_options(name)
    for option in given:
        if option not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise PlanError(f"search mode {name!r} has no option {option!r}; {has}")
