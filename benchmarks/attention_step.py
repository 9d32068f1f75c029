"""Training steps of an attention block, planned by autoshard and written by hand with mpi4py.

Both split it by heads, as Megatron does (Shoeybi et al. 2019, section 3): queries, keys and values by columns of their
products, the output's product by rows, which is partial.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from autoshard import nn
from benchmarks import stepping
from benchmarks.stepping import Dense, Task

SIDES = ("query", "key", "value")
HIDDEN = np.float32(np.finfo(np.float32).min / 2)
"""The score of a key that comes after the query."""


def task(hidden: int, batch: int, ranks: int, heads: int, sequence: int) -> Task:
    """The block over batch / sequence sequences of tokens, and labels that a block of the same form makes of them."""
    values = initial(hidden)
    x = np.random.default_rng(1).normal(size=(batch, hidden)).astype(np.float32)
    y = _attended(x, initial(hidden, 2), heads, sequence)

    def by_hand(comm: Any, task: Task) -> ByHand:
        return ByHand(comm, task, heads, sequence)

    return Task("an attention block", values, x, y, lambda: Block(values, ranks, heads, sequence), by_hand)


def initial(hidden: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Parameters by name, in float32."""
    random, found = np.random.default_rng(seed), {}
    for name in (*SIDES, "output"):
        found[f"{name}.weight"] = random.normal(0, hidden**-0.5, (hidden, hidden)).astype(np.float32)
        found[f"{name}.bias"] = random.normal(0, 0.1, hidden).astype(np.float32)
    return found


def _attended(x: np.ndarray, values: Mapping[str, np.ndarray], heads: int, sequence: int) -> np.ndarray:
    """What the block gives on whole tensors."""
    made = (x @ values[f"{name}.weight"] + values[f"{name}.bias"] for name in SIDES)
    q, k, v = (_by_heads(one, heads, sequence) for one in made)
    scores = q @ k.swapaxes(-1, -2) / np.float32(math.sqrt(q.shape[-1])) + np.triu(np.full((sequence,) * 2, HIDDEN), 1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    context = (weights @ v).transpose(0, 2, 1, 3).reshape(x.shape)
    return context @ values["output.weight"] + values["output.bias"]


def _by_heads(x: np.ndarray, heads: int, sequence: int) -> np.ndarray:
    """Tokens [batch, heads * size] seen as [sequences, heads, sequence, size]."""
    return x.reshape(-1, sequence, heads, x.shape[1] // heads).transpose(0, 2, 1, 3)


def attend(heads: Mapping[str, np.ndarray], weights: np.ndarray, ends: np.ndarray, later: np.ndarray) -> None:
    """Causal attention of heads [sequences, heads, sequence, size] by hand: "context" of "query" (scaled), "key" and
    "value", written over `weights`, `ends` (largest, then sum of a row) and the context."""
    np.matmul(heads["query"], heads["key"].swapaxes(-1, -2), out=weights)
    np.copyto(weights, HIDDEN, where=later)
    weights.max(-1, keepdims=True, out=ends)
    weights -= ends
    np.exp(weights, out=weights)
    weights.sum(-1, keepdims=True, out=ends)
    weights /= ends
    np.matmul(weights, heads["value"], out=heads["context"])


class Block(nn.Cell):
    """Causal attention by heads between four dense layers; the query's product is annotated to split its columns."""

    def __init__(self, values: Mapping[str, np.ndarray], parts: int, heads: int, sequence: int) -> None:
        super().__init__()
        self.attention = nn.MultiHeadAttention(len(values["query.bias"]), heads, causal=True, seq_length=sequence)
        for name in (*SIDES, "output"):
            setattr(self.attention, name, Dense(values[f"{name}.weight"], values[f"{name}.bias"]))
        self.attention.query.matmul.shard(((1, 1), (1, parts)))

    def construct(self, x):
        return self.attention(x)


class ByHand(stepping.ByHand):
    """The same step by hand. What a gradient no longer needs of the forward pass, the next one is written over."""

    last_bias = "output.bias"

    def __init__(self, comm: Any, task: Task, heads: int, sequence: int) -> None:
        super().__init__(comm, task)
        own = heads // self.ranks
        self.tokens = {name: np.empty_like(self.out) for name in (*SIDES, "context", "slope")}
        # The same memory by heads; products read and write it as it lies.
        self.heads = {name: _by_heads(one, own, sequence) for name, one in self.tokens.items()}
        self.weights, self.d_weights = (
            np.empty((len(self.out) // sequence, own, sequence, sequence), np.float32) for _ in range(2)
        )
        self.ends = np.empty((*self.weights.shape[:3], 1), np.float32)
        self.later = np.triu(np.ones((sequence, sequence), bool), 1)
        self.scale = np.float32(1 / math.sqrt(self.width // own))

    def _block(self, name: str) -> tuple:
        side, kind = name.split(".")
        return (slice(None), self.mine) if kind == "weight" and side != "output" else (self.mine,)

    def _forward(self, x: np.ndarray) -> None:
        for name in SIDES:
            np.matmul(x, self.held[f"{name}.weight"], out=self.tokens[name])
            self.tokens[name] += self.held[f"{name}.bias"]
        self.tokens["query"] *= self.scale
        attend(self.heads, self.weights, self.ends, self.later)
        np.matmul(self.tokens["context"], self.held["output.weight"], out=self.whole)

    def _backward(self, x: np.ndarray) -> None:
        grads, heads, weights, slope = self.grads, self.heads, self.weights, self.d_weights
        np.matmul(self.tokens["context"].T, self.whole, out=grads["output.weight"])
        np.matmul(self.whole, self.held["output.weight"].T, out=self.tokens["slope"])
        np.matmul(heads["slope"], heads["value"].swapaxes(-1, -2), out=slope)
        np.matmul(weights.swapaxes(-1, -2), heads["slope"], out=heads["value"])
        np.einsum("bhqk,bhqk->bhq", slope, weights, out=self.ends[..., 0])
        slope -= self.ends
        slope *= weights
        np.matmul(slope.swapaxes(-1, -2), heads["query"], out=heads["context"])
        np.matmul(slope, heads["key"], out=heads["slope"])
        self.tokens["slope"] *= self.scale
        for name, gradient in zip(SIDES, ("slope", "context", "value"), strict=True):
            np.matmul(x.T, self.tokens[gradient], out=grads[f"{name}.weight"])
            self.tokens[gradient].sum(0, out=grads[f"{name}.bias"])
