"""Gradients of graphs against central finite differences in f64, and what the new graph looks like."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard import nn, ops
from autoshard.core.tensortype import type_of
from autoshard.ir.graph import Graph, Value
from autoshard.ops.registry import operator, operators, remove
from autoshard.trace import Parameter, evaluate, trace
from autoshard.transform import gradient
from autoshard.util.errors import GraphError, ShapeError
from tests.trace.models import FFN, Language

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 6))


def check(graph: Graph, arrays: list[np.ndarray], wrt: list[Value], of: Value | None = None, tries: int = 6) -> None:
    """Compare some elements of each gradient with central differences of the sum of `of`."""
    of = graph.outputs[0] if of is None else of
    full, grads = gradient(graph, of, wrt)
    assert full.nodes[: len(graph.nodes)] == graph.nodes and full.inputs == graph.inputs
    assert full.outputs == (*graph.outputs, *(grads[value] for value in wrt))
    results = dict(zip(full.outputs, evaluate(full, arrays), strict=True))
    at = graph.outputs.index(of)

    def loss(changed: list[np.ndarray]) -> float:
        return float(evaluate(graph, changed)[at].sum())

    rng = np.random.default_rng(1)
    for value in wrt:
        got, i = results[grads[value]], graph.inputs.index(value)
        assert got.shape == value.type.shape and got.dtype == value.type.dtype.numpy
        for place in rng.integers(0, max(got.size, 1), tries):
            index = np.unravel_index(place, got.shape)
            moved = []
            for step in (1e-5, -1e-5):
                arrays[i] = arrays[i].copy()
                arrays[i][index] += step
                moved.append(loss(arrays))
                arrays[i][index] -= step
            np.testing.assert_allclose(
                got[index], (moved[0] - moved[1]) / 2e-5, rtol=2e-5, atol=2e-7, err_msg=value.name
            )


def of_function(fn: Callable, *arrays: np.ndarray) -> None:
    traced = trace(fn, *arrays)
    floats = [value for value in traced.graph.inputs if value.type.dtype.is_float]
    check(traced.graph, traced.inputs(*arrays), floats)


def test_feed_forward_network() -> None:
    net = nn.WithLossCell(FFN(), nn.MSELoss())
    labels = RNG.normal(size=(12, 4))
    traced = trace(net, X, labels)
    check(traced.graph, traced.inputs(X, labels), list(traced.graph.inputs))


def test_transformer() -> None:
    net = nn.WithLossCell(Language(2), nn.TokenLoss())
    ids, labels = RNG.integers(0, 24, (4, 6)).astype(np.int32), RNG.integers(0, 10, (4, 6)).astype(np.int32)
    traced = trace(net, ids, labels)
    check(traced.graph, traced.inputs(ids, labels), list(traced.parameters), tries=3)


def test_dropout_is_the_same_mask_in_both_directions() -> None:
    cell = nn.SequentialCell(nn.Dense(6, 10, dtype="f64"), nn.Dropout(0.4), nn.Dense(10, 4, dtype="f64")).set_train()
    traced = trace(cell, X)
    wrt = [value for value, parameter in traced.parameters.items() if parameter.requires_grad]
    check(traced.graph, traced.inputs(X), [traced.graph.inputs[0], *wrt])


def test_values_used_often_and_indexed() -> None:
    weights = RNG.normal(size=(6, 6))
    of_function(lambda x, w: (x @ w + x * w[0] - x[:, ::2].sum() * x).reshape(6, 12), X, weights)
    of_function(lambda x, w: ops.concat(x[1:3], w, axis=0) ** 2 / (abs(w).max() + 1), X, weights)
    of_function(lambda x: x, X)


def test_of_a_value_inside_the_graph() -> None:
    traced = trace(lambda x: (ops.exp(x), ops.tanh(x) * 3), X)
    check(traced.graph, [X], [traced.graph.inputs[0]], of=traced.graph.outputs[1])


UNARY = {
    "tanh": ops.tanh,
    "sigmoid": ops.sigmoid,
    "sin": ops.sin,
    "square": ops.square,
    "softmax": ops.softmax,
}
BINARY = {"add": ops.add, "mul": ops.mul, "sub": ops.sub, "maximum": ops.maximum}


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_program(data) -> None:
    """Random straight-line programs over a few broadcasting tensors."""
    arrays = [np.random.default_rng(i).normal(size=shape) for i, shape in enumerate([(4, 6), (6,), (4, 1)])]

    def program(*xs):
        held = list(xs)
        for _ in range(data.draw(st.integers(1, 8))):
            if data.draw(st.booleans()):
                held.append(UNARY[data.draw(st.sampled_from(sorted(UNARY)))](data.draw(st.sampled_from(held))))
            else:
                op = BINARY[data.draw(st.sampled_from(sorted(BINARY)))]
                held.append(op(data.draw(st.sampled_from(held)), data.draw(st.sampled_from(held))))
        return held[-1]

    of_function(program, *arrays)


def test_names_and_sources_follow_the_forward_node() -> None:
    net = FFN()
    traced = trace(net, X)
    full, grads = gradient(traced.graph, traced.graph.outputs[0], list(traced.parameters))
    new = full.nodes[len(traced.graph.nodes) :]
    names = [node.name for node in new]
    assert names == [
        "grad.dense2.add.fill",
        "grad.dense2.add.reduce_sum",
        "grad.dense2.matmul.matmul",
        "grad.dense2.matmul.matmul_1",
        "grad.relu.relu_grad",
        "grad.dense1.add.reduce_sum",
        # What would be the gradient of x is left out, as nobody asked for it.
        "grad.dense1.matmul.matmul_1",
    ]
    forward = {node.name: node.source for node in traced.graph.nodes}
    for node in new:
        if node.name.startswith("grad.dense1.matmul."):
            assert node.source == forward["dense1.matmul"]
    by_name = {value.name: grad for value, grad in grads.items()}
    assert by_name["dense2.bias"] is not by_name["dense1.bias"]


def test_dead_gradient_nodes_are_left_out() -> None:
    traced = trace(FFN(), X)
    last = next(value for value in traced.parameters if value.name == "dense2.bias")
    full, _ = gradient(traced.graph, traced.graph.outputs[0], [last])
    assert [node.op.name for node in full.nodes[len(traced.graph.nodes) :]] == ["Fill", "ReduceSum"]


def test_no_path_is_zero() -> None:
    spare = Parameter(np.ones((4, 6)), "spare")

    def fn(x, ids):
        return (x.sum(), ops.stop_gradient(x).sum(), spare * 2, ids + 1)

    traced = trace(fn, X, np.arange(4, dtype=np.int32))
    x, ids, other = traced.graph.inputs
    full, grads = gradient(traced.graph, traced.graph.outputs[1], [x, other])
    results = evaluate(full, traced.inputs(X, np.arange(4, dtype=np.int32)))
    for got, value in zip(results[-2:], (x, other), strict=True):
        np.testing.assert_array_equal(got, np.zeros(value.type.shape))
    with pytest.raises(GraphError, match="ids: i32.* is not of a float type"):
        gradient(traced.graph, traced.graph.outputs[0], [ids])
    with pytest.raises(GraphError, match="is no value of this graph"):
        gradient(traced.graph, traced.graph.outputs[0], [Value(x.type, "stranger")])


def test_gradient_of_a_gradient() -> None:
    traced = trace(lambda x: (x * x * x).sum() + (x @ x.T / (x[:, :1] * x[:, :1] + 2)).mean(), X)
    once, grads = gradient(traced.graph, traced.graph.outputs[0], list(traced.graph.inputs))
    check(once, [X], [traced.graph.inputs[0]], of=grads[traced.graph.inputs[0]])


def test_many_terms_are_one_sum() -> None:
    traced = trace(lambda x: x.sum() + (x * x).sum() + ops.exp(x).sum(), X)
    full, _ = gradient(traced.graph, traced.graph.outputs[0], list(traced.graph.inputs))
    assert [node.op.name for node in full.nodes].count("AddN") == 1
    check(traced.graph, [X], list(traced.graph.inputs))


def test_operators_without_a_gradient() -> None:
    @operator("TestCliff", rule="... -> ...")
    def cliff(x):
        return np.sign(x)

    try:
        traced = trace(lambda x: (cliff(x * 2) + x).sum(), X)
        with pytest.raises(GraphError, match=r"TestCliff has no gradient, but test_cliff at .*test_grad.py:\d+ lies"):
            gradient(traced.graph, traced.graph.outputs[0], list(traced.graph.inputs))
        beside = trace(lambda x, y: (cliff(y) * x).sum(), X, X)
        check(beside.graph, [X, X], [beside.graph.inputs[0]])
    finally:
        remove("TestCliff")


def test_gradients_of_elementwise_operators_are_summed_over_broadcast_dims() -> None:
    @operator("TestForgetful", rule="..., ... -> ...")
    def forgetful(x, y):
        return x + y

    forgetful.gradient(lambda g, r, x, y: (g, g))
    try:
        traced = trace(lambda x, y: forgetful(x, y).sum(), X, X[0])
        full, grads = gradient(traced.graph, traced.graph.outputs[0], list(traced.graph.inputs))
        assert [grads[value].type.shape for value in full.inputs] == [X.shape, X[0].shape]
        *_, second = evaluate(full, [X, X[0]])
        np.testing.assert_array_equal(second, np.full(X.shape[1], X.shape[0]))
    finally:
        remove("TestForgetful")


ELEMENTWISE = [
    op for op in operators()
    if op.differentiable and op.spread == "pointwise" and len(op.operand_names) > 1 and not op.attributes
]  # fmt: skip


@pytest.mark.parametrize("op", ELEMENTWISE, ids=lambda op: op.name)
def test_each_operand_of_an_elementwise_operator_may_be_broadcast(op) -> None:
    """Each operand in turn is a row beside matrices, and its gradient one, too."""
    kinds = [np.bool_ if name in ("condition", "mask") else np.float32 for name in op.operand_names]
    for narrow in range(len(kinds)):
        arrays = [(X + 0.5 if i != narrow else X[0] + 0.25).astype(kind) for i, kind in enumerate(kinds)]
        try:
            op.result_types(tuple(map(type_of, arrays)), {})
        except ShapeError:
            continue  # whole numbers or bools alone
        traced = trace(lambda *xs: ops.reduce_sum(op(*xs)), *arrays)
        floats = [value for value in traced.graph.inputs if value.type.dtype.is_float]
        if traced.graph.outputs[0].type.dtype.is_float:
            gradient(traced.graph, traced.graph.outputs[0], floats)


def test_a_wrong_gradient_function_is_found_out() -> None:
    @operator("TestMistaken", rule="..., ... -> ...")
    def mistaken(x, y):
        return x + y

    mistaken.gradient(lambda g, r, x, y: (ops.transpose(g), g))
    try:
        traced = trace(lambda x, y: mistaken(x, y).sum(), X, X[0])
        with pytest.raises(GraphError, match=r"gives f64\[6, 12\] for operand x of test_mistaken.*f64\[12, 6\]; "):
            gradient(traced.graph, traced.graph.outputs[0], list(traced.graph.inputs))
    finally:
        remove("TestMistaken")


def test_a_deep_graph_does_not_recurse() -> None:
    def deep(x):
        for _ in range(3000):
            x = ops.tanh(x)
        return x

    graph = trace(deep, X).graph
    full, _ = gradient(graph, graph.outputs[0], list(graph.inputs))
    assert len(full.nodes) == 6001
