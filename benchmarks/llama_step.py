"""Training steps of Llama's layers, planned by autoshard and written by hand with mpi4py.

A layer is RMSNorm, causal attention, RMSNorm and a gated feed-forward part (SwiGLU), with residuals and without biases.
All split it as Megatron does: queries, keys, values, gate and up by columns, output and down by rows, whose products
are partial and reduced; norms, and what flows between layers, are whole on each rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from autoshard import Parameter, nn, ops
from autoshard.ops.norm import rms_norm
from benchmarks.attention_step import HIDDEN, attend
from benchmarks.stepping import MOMENTUM, Stepwise, Task

EPSILON = 1e-6
NORMS, COLUMNS, ROWS = ("norm1", "norm2"), ("query", "key", "value", "gate", "up"), ("output", "down")


def task(hidden: int, batch: int, ranks: int, heads: int, sequence: int, layers: int) -> Task:
    """The layers over batch / sequence sequences of tokens, and labels that are near to what they give."""
    values = initial(hidden, layers)
    random = np.random.default_rng(1)
    x, y = (random.normal(size=(batch, hidden)).astype(np.float32) for _ in range(2))

    def by_hand(comm: Any, task: Task) -> ByHand:
        return ByHand(comm, task, heads, sequence, layers)

    return Task(
        f"{layers} of Llama's layers", values, x, x + y, lambda: Layers(values, layers, heads, sequence), by_hand,
        "megatron",
    )  # fmt: skip


def inner_of(hidden: int) -> int:
    """The width of the feed-forward part."""
    return 3 * hidden


def initial(hidden: int, layers: int) -> dict[str, np.ndarray]:
    """Parameters by name, in float32."""
    random, inner, found = np.random.default_rng(0), inner_of(hidden), {}
    wide = {"gate": (hidden, inner), "up": (hidden, inner), "down": (inner, hidden)}
    for layer in range(layers):
        for name in NORMS:
            found[f"{layer}.{name}"] = np.ones(hidden, np.float32)
        for name in (*COLUMNS, *ROWS):
            shape = wide.get(name, (hidden, hidden))
            found[f"{layer}.{name}"] = random.normal(0, shape[0] ** -0.5, shape).astype(np.float32)
    return found


class Layers(nn.Cell):
    """The layers, one behind the other."""

    def __init__(self, values: Mapping[str, np.ndarray], layers: int, heads: int, sequence: int) -> None:
        super().__init__()
        self.layers = nn.CellList([Layer(values, i, heads, sequence) for i in range(layers)])

    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Layer(nn.Cell):
    """One layer: tokens [batch * sequence, hidden] in and out."""

    norm1: Any
    norm2: Any
    query: Any
    key: Any
    value: Any
    output: Any
    gate: Any
    up: Any
    down: Any

    def __init__(self, values: Mapping[str, np.ndarray], number: int, heads: int, sequence: int) -> None:
        super().__init__()
        for name in (*NORMS, *COLUMNS, *ROWS):
            setattr(self, name, Parameter(values[f"{number}.{name}"], name=name))
        hidden = len(values[f"{number}.norm1"])
        self.form = (-1, sequence, heads, hidden // heads)
        self.later = np.triu(np.ones((sequence, sequence), bool), 1)
        self.scale = 1 / math.sqrt(hidden // heads)

    def construct(self, x):
        normed = self._normed(x, self.norm1)
        q, k, v = (self._by_heads(ops.matmul(normed, one)) for one in (self.query, self.key, self.value))
        scores = ops.BatchMatMul(transpose_b=True)(ops.mul(q, self.scale), k)
        weights = ops.Softmax(axis=-1)(ops.MaskedFill()(scores, self.later, float(HIDDEN)))
        context = ops.Transpose()(ops.BatchMatMul()(weights, v), (0, 2, 1, 3))
        x = ops.add(x, ops.matmul(ops.Reshape()(context, x.shape), self.output))
        normed = self._normed(x, self.norm2)
        inner = ops.mul(ops.silu(ops.matmul(normed, self.gate)), ops.matmul(normed, self.up))
        return ops.add(x, ops.matmul(inner, self.down))

    def _normed(self, x, weight):
        return rms_norm(x, weight, epsilon=EPSILON)

    def _by_heads(self, x):
        return ops.Transpose()(ops.Reshape()(x, (x.shape[0] // self.form[1], *self.form[1:])), (0, 2, 1, 3))


# -- by hand


class ByHand(Stepwise):
    """The same step in numpy and mpi4py: every array is allocated once, every operation writes in place."""

    def __init__(self, comm: Any, task: Task, heads: int, sequence: int, layers: int) -> None:
        super().__init__()
        self.comm, self.rate, self.count = comm, task.rate, task.x.size
        rank, ranks = comm.Get_rank(), comm.Get_size()
        self.held = {name: block(name, one, rank, ranks).copy() for name, one in task.values.items()}
        self.moments = {name: np.zeros_like(one) for name, one in self.held.items()}
        self.grads = {name: np.empty_like(one) for name, one in self.held.items()}
        self.layers = [LayerByHand(self, i, task.x.shape, heads // ranks, sequence) for i in range(layers)]
        self.slope = np.empty_like(task.x)

    def step(self, x: np.ndarray, y: np.ndarray) -> float:
        for layer in self.layers:
            x = layer.forward(x)
        np.subtract(x, y, out=self.slope)
        loss = float(np.vdot(self.slope, self.slope) / self.count)
        self.slope *= np.float32(2 / self.count)
        for layer in reversed(self.layers):
            layer.backward(self.slope)
        for name, value in self.held.items():
            moment, grad = self.moments[name], self.grads[name]
            moment *= MOMENTUM
            moment += grad
            np.multiply(moment, self.rate, out=grad)
            value -= grad
        return loss


def block(name: str, value: np.ndarray, rank: int, ranks: int) -> np.ndarray:
    """What a rank holds of a parameter."""
    kind = name.partition(".")[2]
    if kind in NORMS:
        return value
    return np.split(value, ranks, 1 if kind in COLUMNS else 0)[rank]


class LayerByHand:
    """One layer's arrays, and what it does with them."""

    def __init__(self, step: ByHand, number: int, shape: tuple[int, int], heads: int, sequence: int) -> None:
        self.comm, tokens = step.comm, shape[0]
        names = (*NORMS, *COLUMNS, *ROWS)
        self.held, self.grads = ({name: of[f"{number}.{name}"] for name in names} for of in (step.held, step.grads))
        self.normed = {name: np.empty(shape, np.float32) for name in NORMS}
        self.scaled = {name: np.empty(shape, np.float32) for name in NORMS}
        self.roots = {name: np.empty((tokens, 1), np.float32) for name in NORMS}
        self.middle, self.out, self.spare = (np.empty(shape, np.float32) for _ in range(3))
        width, inner = (self.held[name].shape[1] for name in ("query", "gate"))
        self.tokens = {n: np.empty((tokens, width), np.float32) for n in ("query", "key", "value", "context", "slope")}
        self.heads = {
            name: one.reshape(-1, sequence, heads, width // heads).transpose(0, 2, 1, 3)
            for name, one in self.tokens.items()
        }
        self.weights, self.d_weights = (
            np.empty((tokens // sequence, heads, sequence, sequence), np.float32) for _ in range(2)
        )
        self.ends = np.empty((*self.weights.shape[:3], 1), np.float32)
        self.later = np.triu(np.ones((sequence, sequence), bool), 1)
        self.scale = np.float32(1 / math.sqrt(width // heads))
        self.gate, self.up, self.sigmoid, self.inner = (np.empty((tokens, inner), np.float32) for _ in range(4))

    def forward(self, x: np.ndarray) -> np.ndarray:
        """What comes out of the layer."""
        self.x, normed = x, self._norm("norm1", x)
        for name in ("query", "key", "value"):
            np.matmul(normed, self.held[name], out=self.tokens[name])
        self.tokens["query"] *= self.scale
        attend(self.heads, self.weights, self.ends, self.later)
        np.matmul(self.tokens["context"], self.held["output"], out=self.spare)
        self._reduce(self.spare)
        np.add(x, self.spare, out=self.middle)
        normed = self._norm("norm2", self.middle)
        np.matmul(normed, self.held["gate"], out=self.gate)
        np.matmul(normed, self.held["up"], out=self.up)
        np.negative(self.gate, out=self.sigmoid)
        np.exp(self.sigmoid, out=self.sigmoid)
        self.sigmoid += 1
        np.reciprocal(self.sigmoid, out=self.sigmoid)
        np.multiply(self.gate, self.sigmoid, out=self.inner)
        self.inner *= self.up
        np.matmul(self.inner, self.held["down"], out=self.spare)
        self._reduce(self.spare)
        return np.add(self.middle, self.spare, out=self.out)

    def backward(self, slope: np.ndarray) -> None:
        """The layer's gradients; the slope of what came out becomes that of what went in."""
        held, grads, heads, tokens = self.held, self.grads, self.heads, self.tokens
        np.matmul(self.inner.T, slope, out=grads["down"])
        np.matmul(slope, held["down"].T, out=self.inner)
        # d gate = d inner * up * sigmoid * (1 + gate * (1 - sigmoid)); d up = d inner * gate * sigmoid
        self.up *= self.inner
        self.up *= self.sigmoid
        self.inner *= self.gate
        self.inner *= self.sigmoid
        np.subtract(1, self.sigmoid, out=self.sigmoid)
        self.gate *= self.sigmoid
        self.gate += 1
        self.gate *= self.up
        np.matmul(self.scaled["norm2"].T, self.gate, out=grads["gate"])
        np.matmul(self.scaled["norm2"].T, self.inner, out=grads["up"])
        np.matmul(self.gate, held["gate"].T, out=self.spare)
        np.matmul(self.inner, held["up"].T, out=self.out)
        self.spare += self.out
        self._norm_back("norm2", slope)
        np.matmul(tokens["context"].T, slope, out=grads["output"])
        np.matmul(slope, held["output"].T, out=tokens["slope"])
        weights, back = self.weights, self.d_weights
        np.matmul(heads["slope"], heads["value"].swapaxes(-1, -2), out=back)
        np.matmul(weights.swapaxes(-1, -2), heads["slope"], out=heads["value"])
        np.einsum("bhqk,bhqk->bhq", back, weights, out=self.ends[..., 0])
        back -= self.ends
        back *= weights
        np.matmul(back.swapaxes(-1, -2), heads["query"], out=heads["context"])
        np.matmul(back, heads["key"], out=heads["slope"])
        tokens["slope"] *= self.scale
        for i, (name, gradient) in enumerate((("query", "slope"), ("key", "context"), ("value", "value"))):
            np.matmul(self.scaled["norm1"].T, tokens[gradient], out=grads[name])
            np.matmul(tokens[gradient], held[name].T, out=self.out if i else self.spare)
            if i:
                self.spare += self.out
        self._norm_back("norm1", slope)

    def _reduce(self, array: np.ndarray) -> None:
        from mpi4py import MPI

        self.comm.Allreduce(MPI.IN_PLACE, array)

    def _norm(self, name: str, x: np.ndarray) -> np.ndarray:
        root, normed, scaled = self.roots[name], self.normed[name], self.scaled[name]
        np.einsum("th,th->t", x, x, out=root[:, 0])
        root /= x.shape[1]
        root += np.float32(EPSILON)
        np.sqrt(root, out=root)
        np.divide(x, root, out=normed)
        return np.multiply(normed, self.held[name], out=scaled)

    def _norm_back(self, name: str, slope: np.ndarray) -> None:
        """Add to the slope what comes back through a norm, whose own slope is the sum of `spare` over ranks."""
        self._reduce(self.spare)
        normed = self.normed[name]
        np.einsum("th,th->h", self.spare, normed, out=self.grads[name])
        self.spare *= self.held[name]
        means = np.einsum("th,th->t", self.spare, normed)[:, None]
        means /= normed.shape[1]
        normed *= means
        self.spare -= normed
        self.spare /= self.roots[name]
        slope += self.spare
