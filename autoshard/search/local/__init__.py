"""Local search: an assignment is improved by changes of one operator, a chain, or all operators around a value.

Read `local_cost.py` (what a change of one operator costs), then `icm.py` (sweeps and chains), `joint_moves.py`, and for
memory limits `byte_prices.py` and `memory_multiplier.py`.
"""
