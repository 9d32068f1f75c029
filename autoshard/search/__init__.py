"""Searches: from problem to plan, by a named mode."""

from autoshard.cost.evaluate import Cost, evaluate, evaluate_plan
from autoshard.search import modes as _modes  # these register their modes
from autoshard.search import named as _named
from autoshard.search.problem import Problem
from autoshard.search.registry import find_mode, search_mode, search_modes

__all__ = ["Cost", "Problem", "evaluate", "evaluate_plan", "find_mode", "search_mode", "search_modes"]
del _modes, _named
