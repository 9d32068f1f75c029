"""Exact search under a memory limit.

Read `within_limit.py`, then `rows.py` (bytes at moments over kinds of choices; `copies.py` for copies of a value that
several operators use, `spans.py` for their costs), `lagrangian.py` (the search) with `lagrangian_subproblem.py`,
`cutting_planes.py` and `path_relinking.py`, and `columns.py` (the integer program at the end, for HiGHS: `highs.py`).
"""
