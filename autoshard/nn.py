"""Everything to write a model with: cells, parameters, layers, losses, optimizers.

    from autoshard.nn import Cell, Dense, Momentum, SoftmaxCrossEntropyWithLogits

The code is below `autoshard.trace`.
"""

from __future__ import annotations

from autoshard.trace import nn as _nn
from autoshard.trace.nn import *  # noqa: F403

__all__ = list(_nn.__all__)  # noqa: PLE0604
