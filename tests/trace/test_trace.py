"""trace: names, sources, roles, annotations, structures of arguments and results, errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from autoshard import ops
from autoshard.core.tensortype import TensorType
from autoshard.layout import Layout, Mesh
from autoshard.trace import Cell, CellList, NodeAnnotation, Parameter, trace
from autoshard.util.errors import GraphError, RuntimeSetupError, ShapeError, StrategyError
from tests.trace.models import FFN, Language, Linear

X = np.random.default_rng(0).normal(size=(12, 6))


def here(text: str) -> str:
    """The line number, as `file:line` ends, of the only line of this file's models that is `text`."""
    import tests.trace.models as models

    lines = Path(models.__file__).read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if line.strip() == text]
    return f"models.py:{number}"


def test_the_tutorials_network_keeps_its_names_and_lines() -> None:
    traced = trace(FFN(), X)
    graph = traced.graph
    assert [node.name for node in graph.nodes] == [
        "dense1.matmul",
        "dense1.add",
        "relu",
        "dense2.matmul",
        "dense2.add",
    ]
    assert [value.name for value in graph.inputs] == [
        "x",
        "dense1.weight",
        "dense1.bias",
        "dense2.weight",
        "dense2.bias",
    ]
    assert graph.roles == ("data", "parameter", "parameter", "parameter", "parameter")
    assert [parameter.name for parameter in traced.parameters.values()] == [v.name for v in graph.inputs[1:]]
    first = graph.node("dense1.matmul").source
    assert first is not None and str(first).endswith(here("x = self.matmul(x, self.weight)"))
    assert first.text == "x = self.matmul(x, self.weight)"
    assert str(graph.node("relu").source).endswith(here("x = self.relu(x)"))
    assert graph.name == "ffn" and graph.updates == {}


def test_traced_equals_eager() -> None:
    net = FFN()
    traced = trace(net, TensorType.of((12, 6), "f64"))
    np.testing.assert_array_equal(traced(X), net(X))


def test_the_line_of_a_layer_is_the_users() -> None:
    source = trace(Language(1), TensorType.of((4, 6), "i32")).graph.node("layers.0.attention.query.matmul").source
    assert str(source).endswith(here("x = layer(x)"))


def test_a_strategy_is_kept_beside_the_graph_with_its_line() -> None:
    net = FFN()
    net.dense1.matmul.shard(((2, 1), (1, 4)))
    traced = trace(net, X)
    ((node, annotation),) = traced.annotations.items()
    assert node is traced.graph.node("dense1.matmul")
    assert annotation.in_strategy == ((2, 1), (1, 4)) and annotation.out_strategy is None
    assert "test_trace.py:" in str(annotation.source)
    assert annotation.source is not None and annotation.source.text == "net.dense1.matmul.shard(((2, 1), (1, 4)))"


def test_each_use_of_a_primitive_is_a_node_with_the_strategy() -> None:
    class Twice(Cell):
        def __init__(self) -> None:
            super().__init__()
            self.relu = ops.ReLU().shard(((2, 3),))

        def construct(self, x):
            return self.relu(self.relu(x) - 1)

    traced = trace(Twice(), X)
    assert [node.name for node in traced.graph.nodes] == ["relu", "scalar_add", "relu_1"]
    assert [node.name for node in traced.annotations] == ["relu", "relu_1"]
    # A number among the operands is a node of its own, which the strategy is not meant for.
    capped = ops.Maximum().shard(((2, 3), ()))
    assert [node.op.name for node in trace(lambda x: capped(x, 0.0), X).annotations] == ["Maximum"]


def test_cell_shard_fixes_inputs_outputs_and_parameters() -> None:
    class Net(FFN):
        def construct(self, x):
            return super().construct(x), x

    net = Net()
    layout = Layout.parse("dp, tp", Mesh(dp=2, tp=3))
    net.shard((None,), (layout, None), {"dense2.weight": (2, 1)})
    net.dense1.shard(((3, 2),))
    traced = trace(net, X)
    assert {node.name: (node.op.name, one.in_strategy) for node, one in traced.annotations.items()} == {
        "dense1.input0": ("Identity", ((3, 2),)),
        "dense2.weight.shard": ("Identity", ((2, 1),)),
        "output0": ("Identity", (layout,)),
    }
    assert all("test_trace.py:" in str(one.source) for one in traced.annotations.values())
    node = traced.graph.node("dense2.matmul")
    assert node.operands[1] is traced.graph.node("dense2.weight.shard").results[0]
    np.testing.assert_array_equal(traced(X)[0], net(X)[0])


@pytest.mark.parametrize(
    "given, message",
    [
        ({"in_strategy": ((2, 1), (1, 1))}, "2 strategies for 1 input tensors"),
        ({"in_strategy": (2, 1)}, "entry 2 must be a tuple"),
        ({"in_strategy": ((0, 1),)}, r"entry \(0, 1\) must be a tuple of positive"),
        ({"out_strategy": 4}, "out_strategy is 4"),
        (
            {"parameter_plan": {"dense1.wieght": (2, 1)}},
            "'dense1.wieght', but the parameters are like dense1.weight",
        ),
    ],
)
def test_bad_cell_shard(given, message) -> None:
    with pytest.raises((StrategyError, ShapeError), match=message + ".*"):
        trace(FFN().shard(**given), X)


def test_structures_of_arguments_and_results() -> None:
    def fn(batch, scale, pair):
        return {"sum": batch["x"] + pair[0], "all": [pair[1] * scale, None]}

    y = np.arange(6.0)
    args = ({"x": X, "unused": y}, 3, (y, X))
    traced = trace(fn, *args)
    assert [value.name for value in traced.graph.inputs] == ["batch.x", "batch.unused", "pair.0", "pair.1"]
    got = traced(*args)
    np.testing.assert_array_equal(got["sum"], X + y)
    np.testing.assert_array_equal(got["all"][0], X * 3)
    assert got["all"][1] is None
    with pytest.raises(RuntimeSetupError, match=r"the arguments must be arrays nested as in \("):
        traced({"x": X}, 3, (y, X))
    with pytest.raises(RuntimeSetupError, match=r"pair.1 is f64\[12, 6\], but got f64\[6, 12\]"):
        traced({"x": X, "unused": y}, 3, (y, X.T))


def test_arrays_of_other_frameworks_are_read() -> None:
    class Foreign:
        shape = X.shape

        def __array__(self, dtype=None, copy=None):
            return X

    class Hidden(Foreign):
        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("needs a gradient")

    traced = trace(lambda x: x + x, X)
    np.testing.assert_array_equal(traced(Foreign()), X + X)
    with pytest.raises(RuntimeSetupError, match="x is f64.*, but numpy reads no values of what is given: needs a grad"):
        traced(Hidden())


def test_an_argument_may_be_returned() -> None:
    traced = trace(lambda x: (x, x + 1, np.arange(3)), X)
    same, more, constant = traced(X)
    np.testing.assert_array_equal(same, X)
    np.testing.assert_array_equal(more, X + 1)
    np.testing.assert_array_equal(constant, np.arange(3))


def test_parameters_of_one_name_stay_apart() -> None:
    rng = np.random.default_rng(0)
    first, second = Linear(6, 10, rng), Linear(10, 4, rng)
    traced = trace(lambda x: second(first(x)), X)
    names = [value.name for value in traced.graph.inputs]
    assert names == ["x", "weight", "bias", "weight_1", "bias_1"]
    assert [node.name for node in traced.graph.nodes] == ["matmul", "add", "matmul_1", "add_1"]
    np.testing.assert_array_equal(traced(X), second(first(X)))


def test_a_shared_cell_has_its_parameters_once() -> None:
    class Tied(Cell):
        def __init__(self) -> None:
            super().__init__()
            self.layers = CellList([Linear(6, 6, np.random.default_rng(1))] * 2)
            self.again = self.layers[0].weight

        def construct(self, x):
            for layer in self.layers:
                x = layer(x)
            return x @ self.again

    net = Tied()
    traced = trace(net, X)
    assert list(net.parameters_dict()) == ["layers.0.weight", "layers.0.bias"]
    assert [value.name for value in traced.parameters] == ["layers.0.weight", "layers.0.bias"]
    np.testing.assert_array_equal(traced(X), net(X))


class Counting(Cell):
    """Adds how often it was used."""

    def __init__(self) -> None:
        super().__init__()
        self.count = Parameter(np.zeros((), np.int32), requires_grad=False)

    def construct(self, x):
        self.count.assign(self.count + 1)
        return x + self.count


def test_assigned_parameters_are_states_that_outputs_replace() -> None:
    eager, traced = Counting(), trace(Counting(), X.astype(np.float32))
    assert traced.graph.roles == ("data", "state")
    assert traced.graph.updates == {1: 1} and traced.graph.tied[traced.graph.outputs[1]] is traced.graph.inputs[1]
    for step in (1, 2, 3):
        np.testing.assert_allclose(traced(X.astype(np.float32)), X.astype(np.float32) + step)
        np.testing.assert_allclose(eager(X), X + step)
    (counter,) = traced.parameters.values()
    assert counter.asnumpy() == 3


def test_a_constant_parameter_is_no_state() -> None:
    table = Parameter(np.arange(6.0), requires_grad=False)
    assert trace(lambda x: x + table, X).graph.roles == ("data", "parameter")


@pytest.mark.parametrize(
    "fn, message",
    [
        (lambda x: None, r"it returned nothing \(is a return missing\?\)"),
        (lambda x: 3, r"it returned 3 \(int\)"),
        (lambda x: np.ones(3), "which holds no tensor"),
    ],
)
def test_returns_no_tensor(fn, message) -> None:
    with pytest.raises(GraphError, match=message):
        trace(fn, X)


def test_assigning_another_type() -> None:
    state = Parameter(np.zeros((4, 6), np.float32), "state", requires_grad=False)

    def fn(x):
        state.assign(x)
        return x

    with pytest.raises(ShapeError, match=r"assigning f64\[12, 6\] to state, which is f32\[4, 6\] at .*test_trace.py"):
        trace(fn, X)


def test_a_cell_without_construct() -> None:
    with pytest.raises(GraphError, match="Cell has no method construct"):
        trace(Cell(), X)


def test_annotations_compare_by_value() -> None:
    assert NodeAnnotation(((2, 1),)) == NodeAnnotation(((2, 1),), None, None)
