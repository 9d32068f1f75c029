"""Exact search under a memory limit.

Read `within_limit.py`, then `rows.py` (bytes at moments over kinds of choices; `copies.py` for copies of a value that
several operators use, and their costs), `lagrangian.py` (the search, by cutting planes) with `lagrangian_subproblem.py`
and `path_relinking.py`, and `columns.py` (the integer program at the end; `integer_program.py` has HiGHS solve it).
"""
