"""Optimizers as their papers and torch have them, for models of any frontend; MindSpore's are in `autoshard.nn`.

from autoshard.optim import AdamW
"""

from __future__ import annotations

from autoshard.trace.optim import SGD, Adam, AdamW, Group, Momentum, Optimizer, State

__all__ = ["Adam", "AdamW", "Group", "Momentum", "Optimizer", "SGD", "State"]
