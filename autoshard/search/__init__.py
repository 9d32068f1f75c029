"""Searches: from problem to plan, by a named mode."""

from autoshard.cost.evaluate import Cost, evaluate, evaluate_plan
from autoshard.search import auto as _auto  # these register their modes
from autoshard.search import batch as _batch
from autoshard.search import bfs as _bfs
from autoshard.search import combined as _combined
from autoshard.search import communication as _communication
from autoshard.search import dynamic_programming as _dynamic_programming
from autoshard.search import factor as _factor
from autoshard.search import named as _named
from autoshard.search import optimal as _optimal
from autoshard.search import recursive as _recursive
from autoshard.search.problem import Problem
from autoshard.search.registry import find_mode, search_mode, search_modes

__all__ = ["Cost", "Problem", "evaluate", "evaluate_plan", "find_mode", "search_mode", "search_modes"]
del _auto, _batch, _bfs, _combined, _communication, _dynamic_programming, _factor, _named, _optimal, _recursive
