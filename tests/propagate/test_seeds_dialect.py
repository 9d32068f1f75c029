"""Shardy's document on dialects of one's own: operators that only this file knows, and how shardings pass them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from golden_seeds import by_name, check, read_asked, sections, show_work

from autoshard.core.rule import source_rule
from autoshard.ir.annotations import ShardingAnnotations
from autoshard.ir.graph import Node, Value
from autoshard.ir.graph import walk as nodes_in
from autoshard.ir.text import parse
from autoshard.ops import registry
from autoshard.ops.control import ARG, OPERAND, RESULT, YIELD, Edge, Sizes, ValueLocation, typed
from autoshard.ops.options import Spreading
from autoshard.propagate.edges import add_edges, sink_edges
from autoshard.propagate.levels import ORDER, Level
from autoshard.propagate.mutable_ir import MutableModule, from_graph
from autoshard.propagate.pipeline import run_pipeline
from autoshard.propagate.run import run_op_priority
from autoshard.propagate.step import BOTH

FILE = "own_operators.txt"


def repeated(sizes: Sizes) -> tuple[Edge, ...]:
    """Operand i and what is yielded become argument i and result i."""
    return tuple(
        Edge((ValueLocation(OPERAND, i), ValueLocation(YIELD, i)), (ValueLocation(RESULT, i), ValueLocation(ARG, i)))
        for i in range(sizes.operands)
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

    @registry.operator("SeedRepeat", **typed(), spread=Spreading(edges=repeated))
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


def load(example: str) -> MutableModule:
    graph = parse(sections(FILE)[f"{example}: in"])
    mesh, asked = read_asked(sections(FILE)[f"{example}: asked"])
    made = (value for node in nodes_in(graph.nodes) for value in (*node.results, *_arguments(node)))
    known = {value.name: value for value in (*graph.inputs, *made)}
    return from_graph(
        graph, ShardingAnnotations({"mesh": mesh}, {known[name]: sharding for name, sharding in asked.items()})
    )


def _arguments(node: Node) -> Iterator[Value]:
    return (value for region in node.regions for value in region.args)


@pytest.mark.parametrize("example", ["rule", "region", "constant-like"])
def test_the_pipeline_passes_them(example: str) -> None:
    module = load(example)
    log = run_pipeline(module)
    assert not log.without_rule
    check(FILE, f"{example}: out", show_work(module))


def ordered(*levels: Level) -> MutableModule:
    module = load("order")
    add_edges(module)
    run_op_priority(module, order=levels)
    sink_edges(module)
    return module


def test_an_order_of_operators() -> None:
    """Elementwise operators are first by their class; a list of operators comes before classes."""
    orders: dict[str, tuple[Level, ...]] = {"spread classes": ORDER}
    for name in ("SeedProduct", "SeedBlend"):
        orders[f"{name} first"] = (Level(operators={name: BOTH}), Level(others=BOTH))
    orders["SeedProduct alone"] = (Level(operators={"SeedProduct": BOTH}),)
    made = {title: show_work(ordered(*levels)) for title, levels in orders.items()}
    for title, text in made.items():
        check(FILE, f"order: out by {title}", text)
    assert made["spread classes"] == made["SeedBlend first"] != made["SeedProduct first"]


def test_what_is_asked_inside_a_region_comes_out_of_it() -> None:
    module = load("region")
    run_pipeline(module)
    found = {name: str(sharding) for name, sharding in by_name(module).items()}
    assert {found[name] for name in ("a", "y", "r")} == {'<@mesh, [{"x"}, {"y"}]>'}
    assert {found[name] for name in ("b", "u")} == {'<@mesh, [{}, {"x"}]>'}


def test_an_operator_without_rule_and_edges_is_reported() -> None:
    """Nothing passes it, and the log says so."""

    @registry.operator("SeedWall", **typed())
    def wall(x, *, types):
        return x

    try:
        graph = parse(
            "graph main(x: f32[8, 12] data)\n  y: f32[8, 12] = SeedWall(x) {types=(f32[8, 12],)}\n  return y\n"
        )
        mesh, asked = read_asked('mesh x=2\nx [{"x", ?}, {?}]')
        module = from_graph(graph, ShardingAnnotations({"mesh": mesh}, {graph.inputs[0]: asked["x"]}))
        log = run_pipeline(module)
        assert [op.name for op in log.without_rule] == ["SeedWall"]
        assert by_name(module)["y"] is None
    finally:
        registry.remove(wall.name)
