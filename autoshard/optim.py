"""Optimizers as their papers and torch have them, for models of any frontend; MindSpore's are in `autoshard.nn`.

from autoshard.optim import AdamW

>>> from autoshard import nn, optim
>>> type(optim.AdamW(nn.Dense(12, 64).trainable_params(), 1e-3)).__name__
'AdamW'
"""

from __future__ import annotations

from autoshard.trace.loss_scale import DynamicLossScale, LossScale
from autoshard.trace.optim import SGD, Adam, AdamW, Group, Momentum, Optimizer, State

__all__ = ["Adam", "AdamW", "DynamicLossScale", "Group", "LossScale", "Momentum", "Optimizer", "SGD", "State"]
