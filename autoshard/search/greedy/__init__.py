"""Greedy search: one operator after another, against the neighbours that are decided already.

Read `bfs.py` (the order of decisions, mode "bfs"), then `choose.py` (one decision), `candidates.py`
(which strategies are worth pricing), `strategy_arrays.py` (bounds for all strategies of a rule at once).
"""
