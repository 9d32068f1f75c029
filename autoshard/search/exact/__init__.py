"""Exact search: the least sum of a factor graph, with a bound that proves it.

Read `search.py`, which calls the rest: `reduce.py` eliminates variables of degree at most 2, and betters choices one
by one; `srmp.py` bounds what is left by message passing, whose order is in `message_schedule.py` and whose arithmetic
for one multi-layout cost in `min_marginals.py`; `enumerate_gap.py` lists the combinations within the gap;
`consistency.py` drops those that nothing supports, and `sparse_elimination.py` joins the rest, variable by variable.
`over_mesh_cuts.py` does all this for each cut of a mesh; `memory/` solves under limits.
"""

from typing import Any

from autoshard.util.moved import former


def __getattr__(name: str) -> Any:
    return former(__name__, name)
