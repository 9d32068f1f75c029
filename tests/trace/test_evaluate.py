"""evaluate: whole-tensor execution, its checks, and that it lets go of values it no longer needs."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

from autoshard import ops
from autoshard.ops.registry import operator, remove
from autoshard.trace import evaluate, trace
from autoshard.util.errors import RuntimeSetupError

X = np.random.default_rng(0).normal(size=(12, 6))


def test_by_order_and_by_value() -> None:
    graph = trace(lambda x, y: (ops.matmul(x, y), x), X, X.T).graph
    a, b = graph.inputs
    for inputs in ([X, X.T], {b: X.T, a: X}):
        product, same = evaluate(graph, inputs)
        np.testing.assert_array_equal(product, X @ X.T)
        np.testing.assert_array_equal(same, X)


def test_inputs_that_do_not_fit() -> None:
    graph = trace(lambda x, y: x + y, X, X[0]).graph
    with pytest.raises(RuntimeSetupError, match=r"1 arrays for 2 inputs \(x, y\)"):
        evaluate(graph, [X])
    with pytest.raises(RuntimeSetupError, match=r"no array for input y \(f64\[6\]\)"):
        evaluate(graph, {graph.inputs[0]: X})
    with pytest.raises(RuntimeSetupError, match=r"input y is f64\[6\], but got f32\[6\]"):
        evaluate(graph, [X, X[0].astype(np.float32)])


def test_values_are_let_go_after_their_last_use() -> None:
    made: list[weakref.ref] = []
    alive: list[int] = []

    @operator("TestWatched", rule="... -> ...")
    def watched(x):
        alive.append(sum(ref() is not None for ref in made))
        result = x + 1
        made.append(weakref.ref(result))
        return result

    def chain(x):
        for _ in range(10):
            x = watched(x)
        return x

    try:
        (result,) = evaluate(trace(chain, X).graph, [X])
    finally:
        remove("TestWatched")
    np.testing.assert_allclose(result, X + 10)
    assert max(alive) <= 2


def test_several_results_and_unused_ones() -> None:
    first = trace(lambda x: ops.split(x, axis=1, output_num=3)[1], X)
    np.testing.assert_array_equal(first(X), X[:, 2:4])
