"""Searches: from problem to plan, by a named mode.

The model. A plan of a graph is an assignment of a factor graph:

- *Variables.* One per operator, and one per graph input whose layout nobody fixed (`factor_graph.py`).
- *Domains.* Of an operator: its strategies on the mesh, as rows of small numbers (`domains.py`); of an input: the
  layouts that its users can want. A mesh of many axes is cut into few units first (`mesh_cuts.py`).
- *Factors*, in seconds. The node cost of an operator depends on its variable alone: the work of a rank, times the
  trips of the loops around it. The multi-layout cost of a value depends on who makes it and on all who use it: each
  layout in which it is wanted and not left is paid once, however many want it (`multi_layout.py`; the single
  redistributions are tables of `redistribution_tables.py`). The sum of all factors is `evaluate_plan(...).seconds`.
- *Memory rows*, in bytes. One per moment of a step: the sum of the live ranges that cover it is at most the limit
  (`memory_limit.py`, `exact/memory/rows.py`).
- *Symmetry.* Equal operators share a domain, factors of equal surroundings are one array, and equal layers are an
  orbit: they are reduced, bounded and searched once (`exact/message_schedule.py`).
- *Constraints.* What people configured or asked of inputs, outputs and values restricts domains (`constraints.py`).

The steps, from problem to plan:

1. `problem.py` states what is given; `flat.py` writes loops and branches as a flat graph for modes that want one.
2. A mode (`registry.py`, `modes/`, `named/`) makes assignments:
   `rules/` from propagated shardings; `greedy/` breadth first from configured operators; `local/` by iterated
   conditional modes, chains and joint moves, and under a memory limit with a multiplier per byte; `exact/` with a
   proof: reduction, dual bound by message passing, enumeration of what is within the gap, branching.
3. `assignment.py` prices an assignment while it changes; `causes.py` makes the plan of it, with reasons.
4. `program_price.py` lowers the best few plans and takes the one whose program costs least; `ring_attention.py` and
   `recompute.py` change what a plan's graph runs; `memory_limit.py` holds it against memory.

`docs/explanation/search.md` says the same with an example, and what a proof proves.
"""

from autoshard.cost.evaluate import Cost, evaluate, evaluate_plan
from autoshard.search import modes as _modes  # these register their modes
from autoshard.search import named as _named
from autoshard.search.problem import Problem
from autoshard.search.registry import find_mode, search_mode, search_modes

__all__ = ["Cost", "Problem", "evaluate", "evaluate_plan", "find_mode", "search_mode", "search_modes"]
del _modes, _named
