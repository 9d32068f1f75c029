"""Weighted constraint satisfaction: the least sum of cost tables, with memory rows kept to the byte.

Nothing here knows of graphs or layouts. Read `problem.py` and `solve.py`, then `minimum.py` (reductions, bounds,
elimination) on a `network.py` of interned tables (`interning.py`) in whole units (`scale.py`); `trws.py` bounds,
`icm.py` finds first assignments, `milp.py` gives a core to HiGHS. Under a limit: `memory_rows.py`, `lagrangian.py`
with `cutting_planes.py` and `label_setting.py`, `least_memory.py`. Tables of which few entries are known:
`consistency.py` and `sparse_elimination.py`.

    solve(CostProblem(sizes=(2, 3), factors=[CostFactor((0, 1), cost)])).choice
"""

from autoshard.search.exact.wcsp.consistency import SparseTables
from autoshard.search.exact.wcsp.least_memory import LeastMemory, least_memory
from autoshard.search.exact.wcsp.problem import CostFactor, CostProblem, MemoryRow, TableSolution
from autoshard.search.exact.wcsp.solve import solve
from autoshard.search.exact.wcsp.sparse_elimination import BestWithinGap, least_sum

__all__ = [
    "BestWithinGap",
    "CostFactor",
    "CostProblem",
    "LeastMemory",
    "MemoryRow",
    "SparseTables",
    "TableSolution",
    "least_memory",
    "least_sum",
    "solve",
]
