"""Steps with fewer layers: what is left is the step of a model that was built with so few."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard import nn, ops
from autoshard.ir.verify import verify
from autoshard.trace import Cell, CellList, Parameter, evaluate, set_seed, trace
from autoshard.transform import train_step
from autoshard.transform.layers import RepeatedLayers
from autoshard.transform.recompute import backward_begins, recompute
from autoshard.util.errors import GraphError

X = np.random.default_rng(0).normal(size=(6, 10))


class Block(Cell):
    def __init__(self, inner: int) -> None:
        super().__init__()
        self.up, self.down = nn.Dense(10, inner, dtype="f64"), nn.Dense(inner, 10, dtype="f64")

    def construct(self, x):
        return x + self.down(ops.tanh(self.up(x)))


class Deep(Cell):
    def __init__(self, *inner: int, of_each=None) -> None:
        super().__init__()
        self.first = nn.Dense(10, 10, dtype="f64")
        self.blocks = CellList(Block(size) for size in inner)
        self.of_each = of_each

    def construct(self, x):
        x, found = self.first(x), []
        for block in self.blocks:
            x = block(x)
            found.append(ops.square(x))
        return ops.reduce_mean(self.of_each(found) if self.of_each else found[-1])


def step_of(*inner, **settings):
    set_seed(2)
    net = Deep(*inner, **settings)
    return train_step(net, nn.Adam(net.trainable_params(), 0.1, eps=1e-4), X)


def names(graph, count, of):
    """Names of operators, the last two layers by the numbers that they have of `of`."""
    found = [node.label for node in graph.nodes if "square" not in node.label and "reduce_mean" not in node.label]
    for ahead in (2, 1):
        found = [name.replace(f"blocks.{count - ahead}.", f"blocks.{of - ahead}.") for name in found]
    return found


@pytest.mark.parametrize("count", [3, 4, 5])
def test_what_is_left_is_the_step_of_so_few_layers(count):
    whole, few = step_of(*[14] * 7), step_of(*[14] * count)
    layers = RepeatedLayers.of(whole.graph)
    assert layers is not None and (layers.stem, layers.count) == ("blocks.", 7)
    short = layers.only(count)
    verify(short)
    assert names(short, 7, count) == names(few.graph, count, count)
    for one, other in ((short, few.graph), (few.graph, short)):
        assert [one.updates[i] for i in sorted(one.updates)] == [other.updates[i] for i in sorted(other.updates)]
    given = few.traced.inputs(X)
    for one, other in zip(evaluate(short, given), evaluate(few.graph, given), strict=True):
        np.testing.assert_array_equal(one, other)


def test_layers_made_again_are_layers():
    graph = step_of(*[14] * 6).graph
    again = [node for node in graph.nodes[: backward_begins(graph)] if node.op.name == "Tanh"]
    layers = RepeatedLayers.of(recompute(graph, again))
    assert layers is not None
    verify(layers.only(3))


def test_layers_that_are_not_equal_are_none():
    assert RepeatedLayers.of(step_of(14, 14, 18, 14, 14).graph) is None
    assert RepeatedLayers.of(step_of(14, 14, 14).graph) is None
    assert RepeatedLayers.of(step_of(10, 14, 14, 18, 12).graph) is not None


def test_what_is_summed_up_from_layer_to_layer_is_of_layers():
    def total(found):
        return sum(found[1:], found[0])

    whole, few = (step_of(*[14] * count, of_each=total) for count in (7, 5))
    layers = RepeatedLayers.of(whole.graph)
    assert layers is not None and layers.fewest == 5
    given = few.traced.inputs(X)
    for one, other in zip(evaluate(layers.only(5), given), evaluate(few.graph, given), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_layers_that_others_read_stay():
    layers = RepeatedLayers.of(trace(Deep(*[14] * 6, of_each=ops.concat), X).graph)
    assert layers is not None
    with pytest.raises(GraphError, match=r"cannot do without layer \d"):
        layers.only(3)
    with pytest.raises(GraphError, match="3 to 6 can be kept"):
        layers.only(2)


class Weight(Cell):
    def __init__(self) -> None:
        super().__init__()
        self.w = Parameter(np.random.default_rng(4).normal(size=(10, 10)), name="w")


class Functional(Cell):
    """Layers whose operators bear no number: parameters alone tell them apart."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = CellList(Weight() for _ in range(count))

    def construct(self, x):
        for layer in self.layers:
            x = x + ops.tanh(ops.matmul(ops.scalar_mul(x, 0.5), layer.w))
        return ops.reduce_mean(ops.square(x))


def test_parameters_tell_layers_of_operators_without_a_number():
    whole, few = (train_step(net := Functional(n), nn.SGD(net.trainable_params(), 0.1), X) for n in (9, 4))
    layers = RepeatedLayers.of(whole.graph)
    assert layers is not None and (layers.stem, layers.count, layers.fewest) == ("layers.", 9, 4)
    short, given = layers.only(4), few.traced.inputs(X)
    verify(short)
    for one, other in zip(evaluate(short, given), evaluate(few.graph, given), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    own = dict(layers.forward)
    assert {own[node] for node in own if node.op.name == "MatMul"} == set(range(9))
    # What no parameter of the last layer is used behind follows it.
    assert {own[node] for node in own if node.op.name in ("Tanh", "ReduceMean")} == set(range(8))
    sevenths = [name for name in layers.labelled if layers.layer_of(name) == 7]
    assert layers.moved("layers.7.w", 3) == "layers.3.w"
    assert {layers.layer_of(layers.moved(name, 3)) for name in sevenths} == {3}
