"""Functions that the command line tests plan: sizes differ, so that a swapped dim shows."""

from __future__ import annotations

import numpy as np

import autoshard.ops as ops
from autoshard.nn import SGD
from autoshard.trace.cell import Cell
from autoshard.trace.function import trace
from autoshard.trace.parameter import Parameter
from autoshard.transform.train import train_step


class Dense(Cell):
    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.weight = Parameter(np.ones((into, out), np.float32), name="weight")
        self.bias = Parameter(np.zeros(out, np.float32), name="bias")
        self.matmul, self.add = ops.MatMul(), ops.Add()

    def construct(self, x):
        return self.add(self.matmul(x, self.weight), self.bias)


class Net(Cell):
    def __init__(self, first=((2, 1), (1, 4)), add=None) -> None:
        super().__init__()
        self.dense1, self.relu, self.dense2 = Dense(10, 24), ops.ReLU(), Dense(24, 12)
        if first:
            self.dense1.matmul.shard(first)
        if add:
            self.dense1.add.shard(add)

    def construct(self, x):
        return self.dense2(self.relu(self.dense1(x)))


X = np.ones((48, 10), np.float32)


def forward():
    return Net(), (X,)


def single_input():
    return Net(), X


def traced():
    return trace(Net(), X)


def free():
    return Net(first=None), (X,)


def disagreeing():
    return Net(add=((8, 1), (1,))), (X,)


def step():
    """A step of training."""
    network = Net(first=None)
    return train_step(lambda x: ops.reduce_mean(network(x)), SGD(network.trainable_params(), 0.1), X)


def wrong_strategy():
    return Net(first=((7, 1), (1, 1))), (X,)


def nothing():
    return None


def three():
    return Net(), X, X


NUMBER = 3
