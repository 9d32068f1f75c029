"""Exact search: the least sum of a factor graph, with a bound that proves it.

Read `search.py`, which calls the rest: `reduce.py` eliminates variables of degree at most 2; `srmp.py` bounds what is
left by message passing, whose order is in `message_schedule.py` and whose arithmetic for one multi-layout cost in
`min_marginals.py`; `enumerate_gap.py` lists the combinations within the gap. `over_mesh_cuts.py` does this for each cut
of a mesh. `wcsp/` solves sums of plain cost tables (weighted constraint satisfaction); `memory/` solves under limits.
"""

from typing import Any

from autoshard.util.moved import former


def __getattr__(name: str) -> Any:
    return former(__name__, name)
