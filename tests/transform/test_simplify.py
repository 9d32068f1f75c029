"""prune and merge_equal keep what a graph computes, and the nodes that they need not change."""

from __future__ import annotations

import numpy as np

from autoshard import nn, ops
from autoshard.ir.graph import walk
from autoshard.trace import Cell, Parameter, evaluate, trace
from autoshard.transform import gradient, merge_equal, prune
from tests.trace.models import Language

X = np.random.default_rng(0).normal(size=(12, 6))


def test_prune_drops_what_no_output_needs() -> None:
    def fn(x):
        dead = ops.exp(x)
        ops.tanh(dead + 1)
        return x * 2

    graph = trace(fn, X).graph
    small = prune(graph)
    assert [node.op.name for node in small.nodes] == ["ScalarMul"] and small.nodes[0] is graph.nodes[-1]
    assert small.inputs == graph.inputs and prune(small) is small


def test_prune_drops_what_nothing_needs_in_loops_and_branches() -> None:
    def fn(x):
        unused = ops.exp(x)

        def turn(state):
            ops.sin(unused)
            return state[0] + 1, ops.tanh(state[1])

        def low(x):
            ops.cos(x)
            return ops.sigmoid(x)

        def high(x):
            return ops.while_loop(lambda state: state[0] < 3, turn, (0, x))[1]

        return ops.cond(ops.reduce_sum(x) > 0, low, high, x)

    graph = trace(fn, X).graph
    small = prune(graph)
    left = {node.op.name for node in walk(small.nodes)}
    assert {node.op.name for node in walk(graph.nodes)} - left == {"Exp", "Sin", "Cos"} and prune(small) is small
    np.testing.assert_array_equal(evaluate(small, [X])[0], evaluate(graph, [X])[0])
    cos = next(node for node in walk(graph.nodes) if node.op.name == "Cos")
    assert cos in {*walk(prune(graph, [cos]).nodes)}


def test_prune_keeps_updates() -> None:
    class Counter(Cell):
        def __init__(self) -> None:
            super().__init__()
            self.count = Parameter(np.zeros((), np.int32), requires_grad=False)

        def construct(self, x):
            self.count.assign(self.count + 1)
            return x + 1

    graph = trace(Counter(), X).graph
    assert prune(graph) is graph and graph.updates == {1: 1}


def test_merge_equal_keeps_the_first() -> None:
    def fn(x):
        a, b = ops.exp(x), ops.exp(x)
        return (a + 1) * (b + 1), ops.reduce_sum(b, axis=0), ops.reduce_sum(a, axis=1)

    graph = trace(fn, X).graph
    merged = merge_equal(graph)
    assert [node.name for node in merged.nodes] == ["exp", "scalar_add", "mul", "reduce_sum", "reduce_sum_1"]
    assert merged.nodes[0] is graph.nodes[0] and merged.nodes[2] is not graph.nodes[4]
    for got, want in zip(evaluate(merged, [X]), evaluate(graph, [X]), strict=True):
        np.testing.assert_array_equal(got, want)
    assert merge_equal(merged) is merged


def test_merge_equal_tells_attributes_and_annotated_nodes_apart() -> None:
    casts = trace(lambda x: (ops.cast(x, dtype="f32"), ops.cast(x, dtype="f16")), X).graph
    assert merge_equal(casts) is casts
    first, second = ops.Exp(), ops.Exp().shard(((2, 1),))
    traced = trace(lambda x: first(x) + second(x), X)
    assert len(merge_equal(traced.graph).nodes) == 2
    assert len(merge_equal(traced.graph, keep=traced.annotations).nodes) == 3


def test_on_a_whole_training_graph() -> None:
    ids = np.random.default_rng(1).integers(0, 10, (4, 6)).astype(np.int32)
    traced = trace(nn.WithLossCell(Language(2), nn.TokenLoss()), ids, ids)
    full, _ = gradient(traced.graph, traced.graph.outputs[0], list(traced.parameters))
    small = merge_equal(prune(full))
    assert len(small.nodes) < len(full.nodes)
    arrays = traced.inputs(ids, ids)
    for got, want in zip(evaluate(small, arrays), evaluate(full, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-14)
