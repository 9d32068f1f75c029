"""Searches: from problem to plan, by a named mode."""

from autoshard.search import batch as _batch  # these register their modes
from autoshard.search import bfs as _bfs
from autoshard.search import factor as _factor
from autoshard.search.evaluate import Cost, evaluate
from autoshard.search.problem import Problem
from autoshard.search.registry import find_mode, search_mode, search_modes

__all__ = ["Cost", "Problem", "evaluate", "find_mode", "search_mode", "search_modes"]
del _batch, _bfs, _factor
