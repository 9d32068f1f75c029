"""Exact minimization of a sum of cost tables, with memory rows kept to the byte.

solve(CostProblem(sizes=(2, 3), factors=[CostFactor((0, 1), cost)])).choice
"""

from autoshard.search.exact.wcsp.consistency import Listing
from autoshard.search.exact.wcsp.least_memory import Least, least_memory
from autoshard.search.exact.wcsp.problem import CostFactor, CostProblem, MemoryRow, Solution
from autoshard.search.exact.wcsp.solve import solve
from autoshard.search.exact.wcsp.sparse_elimination import Nearest, least_sum

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
