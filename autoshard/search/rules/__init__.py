"""Rules: from propagated shardings to strategies, without prices.

`spread_constraints.py` propagates what people ask for over the program; `strategy_from_shardings.py` makes the strategy
of one operator from the shardings of its operands and results, as far as ranks can run it.
"""
