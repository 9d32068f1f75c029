"""Exact minimization of a sum of cost tables, with memory rows kept to the byte.

solve(CostProblem(sizes=(2, 3), factors=[CostFactor((0, 1), cost)])).choice
"""

from typing import Any

from autoshard.search.exact.least import Least, least_memory
from autoshard.search.exact.listing import Listing
from autoshard.search.exact.problem import CostFactor, CostProblem, MemoryRow, Solution
from autoshard.search.exact.solve import solve
from autoshard.search.exact.sparse import Nearest, least_sum
from autoshard.util.moved import former

__all__ = [
    "CostFactor",
    "CostProblem",
    "Least",
    "Listing",
    "MemoryRow",
    "Nearest",
    "Solution",
    "least_memory",
    "least_sum",
    "solve",
]


def __getattr__(name: str) -> Any:
    return former(__name__, name)
