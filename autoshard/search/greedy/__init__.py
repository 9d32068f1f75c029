"""Greedy search: one operator after another, against the neighbours that are decided already.

Read `bfs.py` (the order of decisions, mode "bfs"), then `choose.py` (one decision) and `candidates.py` (which
strategies are worth pricing).
"""
