"""Exact search under a memory limit.

Read `within_limit.py` (small problems go to `wcsp/`, large ones on), `rows.py` (bytes at moments over kinds of choices;
 `copies.py` for copies of a value that several operators use, `spans.py` for their costs), `lagrangian.py` (the
search) with `lagrangian_subproblem.py`, `path_relinking.py`, and `columns.py` (the integer program at the end).
"""
