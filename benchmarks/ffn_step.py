"""Training steps of a feed-forward network, planned by autoshard and written by hand with mpi4py.

All split it alike: the first matrix by columns, the second by rows, every bias and momentum like what it belongs to.
The second product is partial.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from autoshard import nn, ops
from benchmarks import stepping
from benchmarks.stepping import Dense, Task


def task(hidden: int, batch: int, ranks: int) -> Task:
    """The network, and labels that a network of the same form makes of random points."""
    values, teacher = initial(hidden), initial(hidden, 2)
    x = np.random.default_rng(1).normal(size=(batch, hidden)).astype(np.float32)
    inner = np.maximum(x @ teacher["dense1.weight"] + teacher["dense1.bias"], 0)
    y = inner @ teacher["dense2.weight"] + teacher["dense2.bias"]
    return Task("two dense layers", values, x, y, lambda: FFN(values, ranks), ByHand)


def initial(hidden: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Parameters by name, in float32."""
    random = np.random.default_rng(seed)
    weights = random.normal(0, hidden**-0.5, (2, hidden, hidden)).astype(np.float32)
    biases = random.normal(0, 0.1, (2, hidden)).astype(np.float32)
    return {
        "dense1.weight": weights[0],
        "dense1.bias": biases[0],
        "dense2.weight": weights[1],
        "dense2.bias": biases[1],
    }


class FFN(nn.Cell):
    """Two dense layers with a ReLU between them; the first product is annotated to split its columns."""

    def __init__(self, values: Mapping[str, np.ndarray], parts: int) -> None:
        super().__init__()
        self.dense1 = Dense(values["dense1.weight"], values["dense1.bias"])
        self.relu = ops.ReLU()
        self.dense2 = Dense(values["dense2.weight"], values["dense2.bias"])
        self.dense1.matmul.shard(((1, 1), (1, parts)))

    def construct(self, x):
        return self.dense2(self.relu(self.dense1(x)))


class ByHand(stepping.ByHand):
    """The same step by hand."""

    last_bias = "dense2.bias"

    def __init__(self, comm: Any, task: Task) -> None:
        super().__init__(comm, task)
        self.inner, self.d_inner = (np.empty_like(self.out) for _ in range(2))
        self.positive = np.empty(self.inner.shape, bool)

    def _block(self, name: str) -> tuple:
        return (slice(None), self.mine) if name == "dense1.weight" else (self.mine,)

    def _forward(self, x: np.ndarray) -> None:
        np.matmul(x, self.held["dense1.weight"], out=self.inner)
        self.inner += self.held["dense1.bias"]
        np.maximum(self.inner, 0, out=self.inner)
        np.matmul(self.inner, self.held["dense2.weight"], out=self.whole)

    def _backward(self, x: np.ndarray) -> None:
        grads = self.grads
        np.matmul(self.whole, self.held["dense2.weight"].T, out=self.d_inner)
        np.matmul(self.inner.T, self.whole, out=grads["dense2.weight"])
        np.greater(self.inner, 0, out=self.positive)
        self.d_inner *= self.positive
        self.d_inner.sum(0, out=grads["dense1.bias"])
        np.matmul(x.T, self.d_inner, out=grads["dense1.weight"])
