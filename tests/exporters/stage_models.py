"""Training steps that tests of exported stages plan, and what two steps lead to in one piece."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import autoshard as ash
from autoshard import nn, ops
from autoshard.frontends.targets import cuttable_target
from autoshard.ir.graph import Graph
from autoshard.pipeline import PlannedPipeline, plan_pipeline
from autoshard.trace import Cell, CellList, Parameter, evaluate, set_seed
from autoshard.transform import train_step

STEPS = 2
ROWS, WIDTH, WORDS = 12, 8, 10
Step = tuple[Any, tuple]
"""What is planned, and its data."""


class Tied(Cell):
    """A table at both ends, a skip over two layers, a parameter and a constant with rows of the batch; 5 columns."""

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        self.table = Parameter(rng.normal(size=(6, 10)), "table")
        self.shift = Parameter(rng.normal(size=(ROWS, 6)), "shift")
        self.weights = np.cumsum(rng.uniform(size=(ROWS, 6)), 0)
        self.layers = CellList(nn.Dense(*sizes, dtype="f64") for sizes in ((10, 5), (5, 10), (10, 10)))
        self.dropout = nn.Dropout(0.3)

    def construct(self, x, y):
        first = ops.matmul(x + ops.tanh(self.shift), self.table)
        made = ops.tanh(self.layers[1](ops.tanh(self.layers[0](first)))) + first
        made = ops.matmul(self.dropout(ops.tanh(self.layers[2](made))), ops.transpose(self.table, perm=(1, 0)))
        return ops.reduce_mean((made - y) * (made - y) * self.weights), made


def tied() -> Step:
    """Adam counts its steps; the second output has rows of the batch."""
    set_seed(3)
    cell = Tied().set_train()
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(ROWS, 6)), rng.normal(size=(ROWS, 6))
    return train_step(cell, nn.Adam(cell.trainable_params(), 0.1, eps=1e-3), x, y), (x, y)


def padded() -> Step:
    """Of 5 columns one device has 3, the other 2."""
    step, data = tied()
    return ash.annotate(step, {"layers.0.weight": ("dp", None), "layers.0.bias": ("dp",)}), data


def feed_forward() -> Step:
    """Blocks that named plans cut."""

    class Block(Cell):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Dense(WIDTH, 4 * WIDTH), nn.Dense(4 * WIDTH, WIDTH)

        def construct(self, x):
            return x + self.down(ops.gelu(self.up(self.norm(x))))

    class Net(Cell):
        def __init__(self) -> None:
            super().__init__()
            self.layers = CellList([Block() for _ in range(4)])

        def construct(self, x, y):
            for layer in self.layers:
                x = layer(x)
            return ops.reduce_mean(ops.square(x - y))

    set_seed(1)
    net, rng = Net(), np.random.default_rng(2)
    x, y = (rng.normal(size=(2 * ROWS, WIDTH)).astype(np.float32) for _ in range(2))
    return train_step(net, nn.Momentum(net.trainable_params(), 0.1, 0.9), x, y), (x, y)


def words() -> Step:
    """A model of torch whose table of words is its head, too; labels that do not count."""
    import torch
    from torch.nn import functional

    class Words(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(WORDS, WIDTH)
            self.first, self.second = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)
            self.head = torch.nn.Linear(WIDTH, WORDS, bias=False)
            self.head.weight = self.table.weight

        def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            found = self.table(ids)
            found = self.head(found + self.second(functional.gelu(self.first(found))))
            return functional.cross_entropy(found.flatten(0, 1), labels.flatten(), ignore_index=-100)

    torch.manual_seed(0)
    ids, labels = torch.randint(0, WORDS, (ROWS, 7)), torch.randint(0, WORDS, (ROWS, 7))
    labels[:5, 3:] = -100
    model: Any = ash.from_torch(
        Words(), (ids, labels), loss="output", optimizer=lambda found: nn.AdamWeightDecay(found, 0.01, eps=1e-3)
    )
    return model.cuttable, model.example_arrays


def scanned() -> Step:
    """A model of JAX: a scan over its layers, a step of optax."""
    import jax
    import jax.numpy as jnp
    import optax

    rng = np.random.default_rng(5)
    params = {
        "layers": jnp.asarray(rng.normal(size=(3, WIDTH, WIDTH)) / 3, jnp.float32),
        "head": jnp.asarray(rng.normal(size=(WIDTH, 5)), jnp.float32),
    }

    def function(p, x):
        return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, p["layers"])[0] @ p["head"]

    x = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
    model: Any = ash.from_jax(
        function, x, params=params, loss=lambda y, x: jnp.square(y).mean(), optimizer=optax.adam(1e-2, eps=1e-3),
        gradients="autoshard",
    )  # fmt: skip
    return model.cuttable, model.example_arrays


CASES: dict[str, tuple[Callable[[], Step], dict[str, Any]]] = {
    "tied uneven": (tied, {"pipeline": "tp=2/dp=2,tp=2/tp=2", "micro_batches": 2, "schedule": "gpipe"}),
    "tied in v": (tied, {"mesh": "pp=2,dp=2", "micro_batches": 3, "schedule": "zbv"}),
    "tied inner": (tied, {"mesh": "tp=2,pp=3", "micro_batches": 3}),
    "padded": (padded, {"mesh": "pp=2,dp=2", "micro_batches": 4}),
    "zero1": (feed_forward, {"mesh": "pp=2,dp=2,tp=2", "micro_batches": 4, "search": "zero1(dp) + megatron(tp)"}),
    "zero3": (feed_forward, {"mesh": "pp=2,d=4", "micro_batches": 3, "search": "zero3", "schedule": "zb_h1"}),
    "looped": (feed_forward, {"mesh": "pp=2,dp=2", "micro_batches": 4, "search": "data_parallel",
                              "schedule": "interleaved_1f1b"}),
    "uneven": (feed_forward, {"pipeline": "dp=3/dp=4", "micro_batches": 2, "search": "data_parallel"}),
    "words": (words, {"mesh": "pp=2,dp=2", "micro_batches": 3}),
    "scanned": (scanned, {"mesh": "pp=2,tp=4", "micro_batches": 4, "schedule": "dualpipev"}),
}  # fmt: skip


def planned_case(name: str, **settings: Any) -> tuple[PlannedPipeline, dict[str, np.ndarray], Graph]:
    """A case in stages, what goes in by name, and the step in one piece."""
    make, own = CASES[name]
    target, data = make()
    planned = plan_pipeline(target, data, **{**own, **settings})
    traced = cuttable_target(target)
    names = [value.name for value in traced.graph.inputs]
    assert [value.name for value in planned.graph.inputs] == names
    given = (np.array(one) for one in traced.inputs(*data))
    return planned, dict(zip(names, given, strict=True)), traced.graph


def unsplit(graph: Graph, given: dict[str, np.ndarray], steps: int = STEPS) -> list[np.ndarray]:
    """The outputs of the last of some steps in one piece."""
    arrays, found = list(given.values()), []
    for _ in range(steps):
        found = evaluate(graph, arrays)
        for out, into in graph.updates.items():
            arrays[into] = found[out]
    return [np.asarray(one) for one in found]


def assert_close(found: dict[str, np.ndarray], wanted: list[np.ndarray]) -> None:
    """That outputs are what they should be, up to the order of additions."""
    assert len(found) == len(wanted)
    for (name, one), other in zip(found.items(), wanted, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype, name
        scale = float(np.max(np.abs(other), initial=0.0))
        exact = 1e-9 if other.dtype == np.float64 else 1e-4
        np.testing.assert_allclose(one, other, rtol=exact, atol=exact * max(scale, 1e-3), err_msg=name)
