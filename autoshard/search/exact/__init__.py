"""Exact minimization of a sum of cost tables, with memory rows kept to the byte.

solve(CostProblem(sizes=(2, 3), factors=[Factor((0, 1), cost)])).choice
"""

from autoshard.search.exact.least import Least, least_memory
from autoshard.search.exact.listing import Listing
from autoshard.search.exact.problem import CostProblem, Factor, Row, Solution
from autoshard.search.exact.solve import solve
from autoshard.search.exact.sparse import Nearest, least_sum

__all__ = [
    "CostProblem",
    "Factor",
    "Least",
    "Listing",
    "Nearest",
    "Row",
    "Solution",
    "least_memory",
    "least_sum",
    "solve",
]
