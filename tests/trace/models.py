"""Small models that the tests of tracing and of gradients share; all sizes differ, so no dims mix up."""

from __future__ import annotations

import numpy as np

from autoshard import nn, ops
from autoshard.trace import Cell, CellList, Parameter


class Linear(Cell):
    """The tutorial's dense layer: weight [in, out], primitives `matmul` and `add`."""

    def __init__(self, rows: int, columns: int, rng: np.random.Generator, dtype: str = "float64") -> None:
        super().__init__()
        self.weight = Parameter(rng.normal(size=(rows, columns)).astype(dtype), "weight")
        self.bias = Parameter(rng.normal(size=columns).astype(dtype), "bias")
        self.matmul = ops.MatMul()
        self.add = ops.Add()

    def construct(self, x):
        x = self.matmul(x, self.weight)
        x = self.add(x, self.bias)
        return x


class FFN(Cell):
    """The tutorial's feed-forward network, 6-10-4."""

    def __init__(self, dtype: str = "float64") -> None:
        super().__init__()
        rng = np.random.default_rng(3)
        self.dense1 = Linear(6, 10, rng, dtype)
        self.relu = ops.ReLU()
        self.dense2 = Linear(10, 4, rng, dtype)

    def construct(self, x):
        x = self.dense1(x)
        x = self.relu(x)
        x = self.dense2(x)
        return x


class Language(Cell):
    """Token ids [batch, seq] to logits over 10 classes, through transformer layers of width 12."""

    def __init__(self, layers: int = 2, dropout: float = 0.0, dtype: str = "f64", seq: int | None = None) -> None:
        super().__init__()
        settings = {"causal": True, "dropout": dropout, "dtype": dtype, "seq_length": seq}
        self.embedding = nn.Embedding(24, 12, "xavier_uniform", dtype=dtype)
        self.layers = CellList(nn.TransformerBlock(12, 3, 20, **settings) for _ in range(layers))
        self.norm = nn.RMSNorm(12, dtype=dtype)
        self.head = nn.Dense(12, 10, has_bias=False, dtype=dtype)

    def construct(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))
