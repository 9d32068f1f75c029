"""Primitives: attributes by position and name, calls in MindSpore's order, shard, current one, classes."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest

from autoshard import ops
from autoshard.layout import Layout, Mesh
from autoshard.mindspore import ops as mindspore_ops
from autoshard.mindspore.ops.primitive import PRIMITIVES
from autoshard.ops.attributes import Literal
from autoshard.ops.registry import operator, operators, remove
from autoshard.util.errors import ShapeError, StrategyError

X = np.arange(24, dtype=np.float32).reshape(4, 6)
W = np.arange(60, dtype=np.float32).reshape(10, 6)


def test_constructor_takes_attributes_by_name_or_position() -> None:
    np.testing.assert_array_equal(ops.MatMul(transpose_b=True)(X, W), X @ W.T)
    np.testing.assert_array_equal(ops.MatMul(False, True)(X, W), X @ W.T)
    assert repr(ops.Concat(1)) == "Concat(axis=1)"
    assert repr(ops.MatMul()) == "MatMul()"


def test_call_takes_operands_then_call_attributes() -> None:
    np.testing.assert_array_equal(ops.Transpose()(X, (1, 0)), X.T)
    np.testing.assert_array_equal(ops.Reshape()(X, (8, 3)), X.reshape(8, 3))
    np.testing.assert_array_equal(ops.ReduceSum(keep_dims=True)(X, 1), X.sum(1, keepdims=True))
    np.testing.assert_array_equal(ops.Gather()(W, np.array([3, 1]), 0), W[[3, 1]])
    reshape = ops.primitive_class(ops.reshape)
    np.testing.assert_array_equal(reshape(shape=(2, 12))(X), X.reshape(2, 12))
    np.testing.assert_array_equal(reshape(shape=(2, 12))(X, (3, 8)), X.reshape(3, 8))


def test_one_hot_takes_tensors_without_dims_for_its_values() -> None:
    hot = ops.OneHot()(np.array([2, 0]), 3, np.array(1.0), np.float32(0.5))
    np.testing.assert_array_equal(hot, np.array([[0.5, 0.5, 1.0], [1.0, 0.5, 0.5]], np.float32))


def test_gather_d_keeps_mindspore_order() -> None:
    index = np.array([[0, 5], [1, 1], [2, 0], [3, 3]])
    want = np.take_along_axis(X, index, 1)
    np.testing.assert_array_equal(ops.GatherD()(X, 1, index), want)
    gather_d = ops.primitive_class(ops.gather_d)
    np.testing.assert_array_equal(gather_d()(X, index, dim=1), want)
    with pytest.raises(ShapeError, match="attributes given by position"):
        gather_d()(X, 1, index, 7)


def test_variadic_primitives_take_a_sequence_or_operands() -> None:
    want = np.concatenate([X, X], 1)
    np.testing.assert_array_equal(ops.Concat(1)((X, X)), want)
    np.testing.assert_array_equal(ops.Concat(1)([X, X]), want)
    np.testing.assert_array_equal(ops.primitive_class(ops.concat)(1)(X, X), want)
    with pytest.raises(ShapeError, match=r"Concat at \S+ is called with Concat\(tensors\): too many"):
        ops.Concat(1)(X, X)


def test_wrong_attributes_are_named() -> None:
    matmul, reshape, transpose = map(ops.primitive_class, (ops.matmul, ops.reshape, ops.transpose))
    with pytest.raises(ShapeError, match=r"MatMul at \S+ has no attribute 'transpose_c'; it has: transpose_a, tr"):
        matmul(transpose_c=True)
    with pytest.raises(ShapeError, match="3 attributes given by position; there are 2: transpose_a, transpose_b"):
        matmul(True, False, True)
    with pytest.raises(ShapeError, match="'transpose_a' is given by position and by name"):
        matmul(True, transpose_a=True)
    with pytest.raises(ShapeError, match="Reshape needs the attribute 'shape'"):
        reshape()(X)
    with pytest.raises(ShapeError, match=r"MatMul at \S+: 1 attribute given by position; there are 0: none"):
        matmul()(X, W, True)
    with pytest.raises(ShapeError, match=r"Transpose at \S+ has no attribute 'order'"):
        transpose()(X, order=(1, 0))
    with pytest.raises(ShapeError, match="takes 2 operands"):
        matmul()(X)


def test_functions_take_attributes_behind_the_operands() -> None:
    index = np.array([[0, 5], [1, 1], [2, 0], [3, 3]])
    np.testing.assert_array_equal(ops.reshape(X, (8, -1)), X.reshape(8, 3))
    np.testing.assert_array_equal(ops.reduce_sum(X, 1, True), X.sum(1, keepdims=True))
    np.testing.assert_array_equal(ops.stack([X, X + 1], 1), np.stack([X, X + 1], 1))
    np.testing.assert_array_equal(ops.concat((X, X), axis=1), np.concatenate([X, X], 1))
    np.testing.assert_allclose(ops.einsum("ab,cb->ca", X, W), W @ X.T)
    np.testing.assert_allclose(ops.einsum("ab,cb->ca", [X, W]), W @ X.T)
    np.testing.assert_array_equal(ops.gather_d(X, 1, index), np.take_along_axis(X, index, 1))
    np.testing.assert_array_equal(ops.one_hot(np.array([1, 0]), 2, 5.0), [[0, 5], [5, 0]])


def test_functions_take_operands_by_name() -> None:
    np.testing.assert_array_equal(ops.gather(W, indices=np.array([3, 1]), axis=0), W[[3, 1]])
    np.testing.assert_array_equal(ops.matmul(w=W, x=X, transpose_b=True), X @ W.T)
    with pytest.raises(ShapeError, match=r"MatMul at \S+ takes 2 operands \(x, w\); w is missing"):
        ops.matmul(x=X)
    with pytest.raises(ShapeError, match=r"MatMul at \S+: operand 'x' is given by position and by name"):
        ops.matmul(X, x=W)


def test_wrong_calls_of_functions_say_where() -> None:
    with pytest.raises(ShapeError, match=r"Add at \S+ takes 2 operands \(x, y\), not 3"):
        ops.add(X, X, X)
    with pytest.raises(ShapeError, match=r"Softmax at \S+: 2 attributes given by position; there are 1: axis"):
        ops.softmax(X, 0, 1)
    with pytest.raises(ShapeError, match=r"Reshape needs the attribute 'shape' at .*test_primitive\.py:\d+"):
        ops.reshape(X)
    with pytest.raises(ShapeError, match=r"Concat at \S+: attribute 'axis' is given by position and by name"):
        ops.concat([X, X], 1, axis=0)


def test_shard_stores_what_was_given_and_where() -> None:
    primitive = ops.MatMul()
    assert primitive.in_strategy is primitive.out_strategy is primitive.source is None
    assert primitive.shard(((2, 1), (1, 4)), ((2, 4),)) is primitive
    assert (primitive.in_strategy, primitive.out_strategy) == (((2, 1), (1, 4)), ((2, 4),))
    assert primitive.source is not None
    assert Path(primitive.source.file).resolve() == Path(__file__).resolve()
    assert primitive.source.text == "assert primitive.shard(((2, 1), (1, 4)), ((2, 4),)) is primitive"


def test_shard_takes_layouts() -> None:
    layout = Layout.parse("dp, -", Mesh.parse("dp=2 tp=4"))
    assert ops.ReLU().shard((layout,)).in_strategy == (layout,)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([(2, 1)], r"in_strategy is \[\(2, 1\)\], but must be a tuple"),
        ((2, 1), r"entry 0 is a number; write a tuple per tensor, for one tensor \(\(2, 1\),\)"),
        (((2, 1), [1, 4]), r"entry 1 of in_strategy is \[1, 4\], but must be a tuple or a Layout"),
        (((2, 0), (1, 4)), r"entry 0 of in_strategy is \(2, 0\); dim 1 has 0 parts"),
        (((2, -1), (1, 4)), r"dim 1 has -1 parts"),
        (((2, 1), (1, 4.0)), r"dim 1 has 4.0 parts"),
        (((2, True), (1, 4)), r"dim 1 has True parts"),
    ],
)
def test_shard_checks_the_form(given: object, message: str) -> None:
    primitive = ops.MatMul()
    primitive.name = "dense1.matmul"
    with pytest.raises(StrategyError, match=r"dense1\.matmul\.shard at .*test_primitive\.py:\d+: .*" + message):
        primitive.shard(given)  # type: ignore[arg-type]
    assert primitive.in_strategy is None
    with pytest.raises(StrategyError, match="out_strategy"):
        primitive.shard(((2, 1), (1, 4)), given)  # type: ignore[arg-type]


class Recorder:
    """An operand that notes which primitive builds its node."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def __autoshard_apply__(self, op: object, operands: object, attrs: object) -> Recorder:
        self.seen.append((op, ops.current_primitive(), attrs))
        return self


def test_current_primitive_is_set_during_a_call_alone() -> None:
    relu, recorder = ops.ReLU(), Recorder()
    relu(recorder)
    ops.relu(recorder)
    ops.Transpose()(recorder, (1, 0))
    assert [one[1] for one in recorder.seen[:2]] == [relu, None]
    assert recorder.seen[2][2] == {"perm": (1, 0)}  # type: ignore[index]
    assert ops.current_primitive() is None
    with pytest.raises(ShapeError):
        ops.MatMul()(X, X)
    assert ops.current_primitive() is None


def test_classes_are_one_per_operator_and_survive_copies() -> None:
    primitive = ops.MatMul(transpose_b=True).shard(((2, 1), (1, 4)))
    assert ops.MatMul is ops.MatMul
    assert isinstance(primitive, ops.MatMul) and isinstance(primitive, ops.Primitive)
    assert not isinstance(primitive, ops.ReLU)
    for again in (copy.deepcopy(primitive), pickle.loads(pickle.dumps(primitive))):
        assert isinstance(again, ops.MatMul)
        assert (again.attrs, again.in_strategy) == (primitive.attrs, primitive.in_strategy)


def test_ops_offers_every_operator_as_class_and_function() -> None:
    names = dir(ops)
    named = {value: name for name, value in ops._collect().items()}
    for known in operators():
        assert known.name in names
        if known.name in ops._ANOTHER_IN_MINDSPORE and known.name in mindspore_ops.__all__:
            assert getattr(ops, known.name) is getattr(mindspore_ops, known.name)
        elif known.name in ops._ANOTHER_IN_MINDSPORE:
            with pytest.raises(AttributeError, match="the operator is ops.lookup"):
                getattr(ops, known.name)
        elif known.name not in PRIMITIVES:
            assert getattr(ops, known.name).operator is known
        else:
            assert getattr(ops, known.name) is PRIMITIVES[known.name]
        assert known in named, f"{known.name} has no Python name in its module"
        # Some of these names are those of functions for model code, which apply the operator.
        assert getattr(ops, named[known]) is known or named[known] in ops._HIGHER
    assert "matmul" in names and "current_primitive" in names


def test_operators_defined_later_are_offered_too() -> None:
    @operator("TestTwice", rule="... -> ...")
    def twice(x):
        return 2 * x

    try:
        np.testing.assert_array_equal(ops.TestTwice()(X), 2 * X)
        assert "TestTwice" in dir(ops)
    finally:
        remove("TestTwice")
    with pytest.raises(AttributeError):
        _ = ops.TestTwice


def test_an_unknown_name_is_an_attribute_error_with_near_ones() -> None:
    with pytest.raises(AttributeError, match="has no operator 'MatMull'; did you mean .*MatMul"):
        _ = ops.MatMull
    assert not hasattr(ops, "NoSuchThingAtAll")


def test_large_constants_of_one_content_share_an_array():
    table = np.arange(6000, dtype=np.float32).reshape(60, 100)
    first, second, other = Literal(table), Literal(table.copy()), Literal(table + 1)
    assert first == second != other and first.array is second.array and hash(first) == hash(second)
    table[0, 0] = 7
    assert first.array[0, 0] == 0 and Literal(table) != first
    assert Literal(table.reshape(100, 60)) != Literal(table) != Literal(table.astype(np.int32))
