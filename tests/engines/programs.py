"""Programs that engines are compared on: random ones, and a transformer's forward pass and step of training."""

from __future__ import annotations

import numpy as np

from autoshard import ops, plan
from autoshard.api import Planned
from autoshard.nn import Cell, Dense, Embedding, LayerNorm, Momentum, TokenLoss, TransformerBlock
from autoshard.optimize import DEFAULT, optimize
from autoshard.partition.lower import lower
from autoshard.partition.program import Program
from autoshard.trace.initializer import set_seed
from autoshard.transform.train import train_step
from costmodel import preset
from tests.oracle.many import Case
from tests.transformer import batches

WORDS = 30


def program_of(one: Case) -> Program:
    """The program of a random plan; of every third after all passes."""
    program = lower(one.plan)
    return optimize(program, preset("cpu").for_ranks(program.mesh.devices), DEFAULT)[0] if one.passes else program


class Words(Cell):
    """An embedding, a block of attention and feed-forward layer, and a product back to words; the mean loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.head = Embedding(WORDS, 32), LayerNorm(32), Dense(32, WORDS, has_bias=False)
        self.block, self.loss = TransformerBlock(32, 8, 48, causal=True), TokenLoss()

    def construct(self, ids, labels):
        return self.loss(self.head(self.norm(self.block(self.embed(ids)))), labels)


class Rows(Cell):
    """Two products with a norm between them; the mean of squares."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = Dense(12, 20), LayerNorm(20), Dense(20, 6)

    def construct(self, x):
        return ops.reduce_mean(ops.square(self.second(self.norm(ops.tanh(self.first(x))))))


def small_step(mesh: str, search: str) -> tuple[Planned, tuple[np.ndarray, ...]]:
    """A step of few operators, of which each stretch takes a compiler seconds."""
    set_seed(5)
    x, network = np.random.default_rng(5).normal(size=(16, 12)).astype(np.float32), Rows()
    return plan(train_step(network, Momentum(network.trainable_params(), 0.1, 0.9), x), (), mesh, search=search), (x,)


def forward(mesh: str, search: str) -> tuple[Planned, tuple[np.ndarray, ...]]:
    """The forward pass, planned, with what it is fed."""
    set_seed(5)
    (given,) = batches(1)
    return plan(Words(), given, mesh, search=search), given


def step(mesh: str, search: str) -> tuple[Planned, tuple[np.ndarray, ...]]:
    """A step of training with momentum, planned, with what it is fed. (Adam divides rounding by rounding.)"""
    set_seed(5)
    (given,) = batches(1)
    network = Words()
    return plan(
        train_step(network, Momentum(network.trainable_params(), 0.1, 0.9), *given), (), mesh, search=search
    ), given
