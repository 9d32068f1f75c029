"""Functions whose models ask for shardings, for the command line tests of propagation."""

from __future__ import annotations

import numpy as np

import autoshard.ops as ops
from autoshard.trace.cell import Cell
from autoshard.trace.parameter import Parameter


class Dense(Cell):
    def __init__(self, into: int, out: int, sharding: str) -> None:
        super().__init__()
        self.weight = Parameter(np.ones((into, out), np.float32), name="weight", sharding=sharding)
        self.matmul = ops.MatMul()

    def construct(self, x):
        return self.matmul(x, self.weight)


class Net(Cell):
    def __init__(self) -> None:
        super().__init__()
        self.dense1 = Dense(10, 24, "[{?}, {tp, ?}]")
        self.relu = ops.ReLU()
        self.dense2 = Dense(24, 12, "[{?}, {tp, ?}]")

    def construct(self, x):
        hidden = self.relu(self.dense1(x))
        return self.dense2(ops.sharding_constraint(hidden, "[{dp, ?}, {?}]"))


def net():
    return Net(), np.ones((48, 10), np.float32)
