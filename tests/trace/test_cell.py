"""Cells and parameters outside of a trace: ownership, names, lists, training mode, copies, values."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from autoshard import nn, ops
from autoshard.trace import Cell, CellList, Parameter, SequentialCell, initializer, set_seed
from autoshard.trace.initializer import Normal
from autoshard.util.errors import GraphError, ShapeError, UnknownNameError
from tests.trace.models import FFN, Linear


def test_names_come_from_attributes() -> None:
    net = FFN()
    assert list(net.parameters_dict()) == ["dense1.weight", "dense1.bias", "dense2.weight", "dense2.bias"]
    assert [name for name, _ in net.cells_and_names()] == ["", "dense1", "dense2"]
    assert [one.name for one in net.trainable_params()] == list(net.parameters_dict())
    assert list(net.get_parameters(expand=False)) == []
    assert net.dense1.matmul.name == "matmul" and net.dense2.path == "dense2"


def test_a_parameters_own_name_goes_before_the_attributes() -> None:
    class One(Cell):
        def __init__(self) -> None:
            super().__init__()
            self.w = Parameter(np.ones(3), name="weight")
            self.inner = Linear(2, 4, np.random.default_rng(0))
            self.frozen = Parameter(np.ones(4), requires_grad=False)

    one = One()
    assert list(one.parameters_dict()) == ["weight", "frozen", "inner.weight", "inner.bias"]
    assert one.w.name == "weight" and one.inner.weight.name == "inner.weight"
    assert [p.name for p in one.untrainable_params()] == ["frozen"]
    one.frozen.name = "weight"
    with pytest.raises(GraphError, match="two parameters are named 'weight'"):
        one.parameters_dict()


def test_auto_prefix_and_wrappers() -> None:
    net = FFN()
    wrapped = nn.WithLossCell(net, nn.MSELoss())
    assert list(wrapped.parameters_dict()) == list(FFN().parameters_dict())
    assert wrapped.loss_fn.path == "loss_fn" and net.path == ""

    class Outer(Cell):
        def __init__(self, inner: Cell, auto_prefix: bool) -> None:
            super().__init__(auto_prefix)
            self.inner = inner

    assert list(Outer(Linear(2, 4, np.random.default_rng(0)), True).parameters_dict()) == [
        "inner.weight",
        "inner.bias",
    ]
    assert list(Outer(Linear(2, 4, np.random.default_rng(0)), False).parameters_dict()) == ["weight", "bias"]


def test_replacing_an_attribute_frees_its_name() -> None:
    net = FFN()
    old, net.dense2 = net.dense2, Linear(10, 4, np.random.default_rng(9))
    assert old.weight.name == "weight" and net.dense2.weight.name == "dense2.weight"
    other = FFN()
    other.dense1 = net.dense1
    assert other.dense1.weight.name == "dense1.weight"
    holder = Cell()
    holder.mine = old
    assert old.weight.name == "mine.weight"


def test_lists_and_sequences() -> None:
    rng = np.random.default_rng(0)
    cells = CellList([Linear(6, 10, rng)])
    cells.append(Linear(10, 4, rng)).extend([Linear(4, 12, rng)])
    assert len(cells) == 3 and cells[-1] is list(cells)[2] and len(cells[:2]) == 2
    assert list(cells.parameters_dict())[::2] == ["0.weight", "1.weight", "2.weight"]
    x = rng.normal(size=(24, 6))
    for row in (SequentialCell(*cells), SequentialCell(list(cells))):
        np.testing.assert_array_equal(row(x), cells[2](cells[1](cells[0](x))))


def test_mistakes_in_assignments() -> None:
    class Early(Cell):
        def __init__(self) -> None:
            self.relu = ops.ReLU()
            super().__init__()

    with pytest.raises(GraphError, match=r"Early.__init__ must call super\(\).__init__\(\) before it sets 'relu'"):
        Early()
    with pytest.raises(GraphError, match="Cell.layers is a list with cells .* use CellList"):
        Cell().layers = [FFN(), FFN()]


def test_set_train_reaches_everything() -> None:
    net = SequentialCell(SequentialCell(nn.Dropout(0.25)))
    assert not net[0][0].training and net.set_train()[0][0].training and not net.set_train(False)[0][0].training


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_are_whole_and_apart(copied) -> None:
    net = FFN()
    clone = copied(net)
    assert list(clone.parameters_dict()) == list(net.parameters_dict())
    clone.dense1.weight.set_data(np.zeros((6, 10)))
    assert net.dense1.weight.asnumpy().any()
    part = copied(net.dense2)
    assert part.weight.name == "weight"
    np.testing.assert_array_equal(part.weight.asnumpy(), net.dense2.weight.asnumpy())


def test_parameter_values() -> None:
    one = Parameter([[1, 2, 3]], "one")
    assert one.shape == (1, 3) and str(one.dtype) == "i64" and repr(one) == "Parameter(one: i64[1, 3])"
    with pytest.raises(ShapeError, match=r"one is i64\[1, 3\]; it cannot take the values of i64\[3\]"):
        one.set_data(np.arange(3))
    with pytest.raises(ShapeError, match="cannot take the values of f64"):
        one.set_data(np.ones((1, 3)))
    two = Parameter(np.zeros((2, 3), np.float32))
    two.set_data(np.ones((2, 3)))
    assert two.asnumpy().dtype == np.float32 and two.asnumpy().all()
    np.testing.assert_array_equal(two * 2 + one - np.ones(3), two.data * 2 + one.data - 1)
    assert (ops.maximum(two, 0.5)).dtype == np.float32
    assert str(Parameter(2.0).type) == "f32[]" and float(Parameter(2.0)) == 2.0
    assert Parameter(two).data is not two.data


def test_repr_shows_the_tree() -> None:
    assert "dense1: Linear(\n    weight: Parameter(dense1.weight: f64[6, 10])" in repr(FFN())


def test_initializers() -> None:
    set_seed(7)
    first = initializer("normal", (40, 60))
    set_seed(7)
    np.testing.assert_array_equal(initializer(Normal(), (40, 60)), first)
    assert first.dtype == np.float32 and abs(first.std() - 0.01) < 1e-3
    assert not np.array_equal(initializer("normal", (40, 60)), first)
    uniform = initializer("xavier_uniform", [60, 30], "f64")
    assert uniform.dtype == np.float64 and abs(uniform).max() <= np.sqrt(6 / 90) < abs(uniform).max() * 1.02
    assert abs(initializer("he_uniform", (60, 30))).max() <= np.sqrt(6 / 30)
    assert abs(initializer("he_normal", (80, 60)).std() / np.sqrt(2 / 60) - 1) < 0.05
    assert abs(initializer("xavier_normal", (80, 40)).std() / np.sqrt(2 / 120) - 1) < 0.05
    np.testing.assert_array_equal(initializer("ones", 3), np.ones(3))
    np.testing.assert_array_equal(initializer(2.5, (2,)), [2.5, 2.5])
    with pytest.raises(UnknownNameError, match="'nromal'; known are"):
        initializer("nromal", (3,))
    with pytest.raises(ShapeError, match=r"not shape \(3,\)"):
        initializer("xavier_uniform", 3)
    with pytest.raises(ShapeError, match=r"shape \(2,\) were given for a parameter of shape \(3,\)"):
        initializer(np.zeros(2), (3,))
