"""Shardy's document on dialects of one's own: operators that only this file knows, and how shardings pass them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from golden_seeds import by_name, check, read_asked, sections, show_work

from autoshard.ir.asked import Asked
from autoshard.ir.graph import Graph
from autoshard.ir.graph import walk as nodes_in
from autoshard.ir.text import parse
from autoshard.ops import registry
from autoshard.ops.control import ARG, OPERAND, RESULT, YIELD, Edge, Sizes, Spot, typed
from autoshard.ops.registry import source_rule
from autoshard.propagate.edges import add_edges, sink_edges
from autoshard.propagate.levels import ORDER, Level
from autoshard.propagate.pipeline import run_pipeline
from autoshard.propagate.run import run_op_priority
from autoshard.propagate.step import BOTH
from autoshard.propagate.work import Work, from_graph

FILE = "own_operators.txt"
ORDERS = {
    "spread classes": ORDER,
    "SeedProduct first": (Level(), Level(others=BOTH)),
    "SeedBlend first": (Level(), Level(others=BOTH)),
    "SeedProduct alone": (Level(),),
}


def repeated(sizes: Sizes) -> tuple[Edge, ...]:
    """Operand i and what is yielded become argument i and result i."""
    return tuple(
        Edge((Spot(OPERAND, i), Spot(YIELD, i)), (Spot(RESULT, i), Spot(ARG, i))) for i in range(sizes.operands)
    )


@pytest.fixture(autouse=True)
def dialect() -> Iterator[None]:
    """The operators of the dialect, each with what propagation asks of it."""

    @registry.operator("SeedGate", rule="b s d, d e -> b s e")
    def gate(x, w):
        return np.tanh(x @ w)

    @registry.operator("SeedProduct", rule="m k, k n -> m n")
    def product(x, w):
        return x @ w

    @registry.operator("SeedBlend", rule="i j, i j -> i j", spread="pointwise")
    def blend(x, y):
        return (x + y) / 2

    @registry.operator("SeedRepeat", **typed(), edges=repeated)
    def repeat(*xs, times, types, regions):
        for _ in range(times):
            xs = regions[0](*xs)
        return tuple(xs)

    @registry.operator("SeedRamp", rule=lambda *, shape: source_rule(shape), dtype="f32", constant="source")
    def ramp(*, shape):
        return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)

    @registry.operator("SeedDouble", rule="i j -> i j", constant="fold")
    def double(x):
        return 2 * x

    names = [operator.name for operator in (gate, product, blend, repeat, ramp, double)]
    yield
    for name in names:
        registry.remove(name)


def load(example: str) -> Work:
    graph = parse(sections(FILE)[f"{example}: in"])
    mesh, asked = read_asked(sections(FILE)[f"{example}: asked"])
    return from_graph(graph, Asked({"mesh": mesh}, {value: asked[value.name] for value in values(graph)}))


def values(graph: Graph) -> list:
    """The values that something is asked of."""
    raise NotImplementedError
