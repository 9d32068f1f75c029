"""Shape, joint and slice operators: numpy meaning, rules, gradients, the split law, texts of errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard import ops
from autoshard.core.rule import PASS
from autoshard.core.tensortype import type_of
from autoshard.layout import Mesh
from autoshard.ops.shape import full_shape, reshape_rule
from autoshard.util.errors import ShapeError
from tests.ops.checks import check_split

X = np.arange(24 * 6, dtype=np.float32).reshape(24, 6)
CUBE = np.arange(4 * 6 * 10, dtype=np.float32).reshape(4, 6, 10)


def rule_of(op: ops.Operator, *arrays: np.ndarray, **attrs: object) -> str:
    return str(op.rule(tuple(map(type_of, arrays)), op.check_attributes(attrs)))


def test_pad_is_not_linear_for_it_may_add_a_constant() -> None:
    assert ops.pad.linear == ()


# -- reshape


@pytest.mark.parametrize(
    ("source", "target", "text"),
    [
        ((8, 16, 6), (128, 6), "a b c -> (a b) c {a=8, b=16, c=6}"),
        ((8, 4), (2, 16), "(a b) c -> a (b c) {a=2, b=4, c=4}"),
        ((6,), (2, 3), "(a b) -> a b {a=2, b=3}"),
        ((2, 3), (3, 2), "a~ c~ -> b~ d~ {a=2, b=3, c=3, d=2}"),
        ((4, 3, 8), (6, 2, 8), "(a b~) d~ f -> (a c~) e~ f {a=2, b=2, c=3, d=3, e=2, f=8}"),
        ((1, 12, 1), (12,), "a~ b c~ -> b {a=1, b=12, c=1}"),
        ((1,), (), "a~ -> () {a=1}"),
        ((0, 3), (2, 0), "a~ b~ -> c~ d~ {a=0, b=3, c=2, d=0}"),
    ],
)
def test_reshape_rule_is_the_common_refinement(source: tuple, target: tuple, text: str) -> None:
    assert str(reshape_rule(source, target)) == text


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    primes = draw(st.lists(st.sampled_from([1, 2, 3, 5]), min_size=1, max_size=6))

    def grouped(order: list[int]) -> tuple[int, ...]:
        ends = sorted(draw(st.lists(st.integers(0, len(order)), max_size=3)))
        cuts = [0, *ends, len(order)]
        return tuple(math.prod(order[a:b]) for a, b in zip(cuts, cuts[1:], strict=False))

    return grouped(primes), grouped(draw(st.permutations(primes)))


@given(reshapes())
@settings(max_examples=60, deadline=None)
def test_reshape_splits_right_for_any_two_shapes(shapes: tuple) -> None:
    source, target = shapes
    x = np.arange(math.prod(source), dtype=np.float32).reshape(source)
    rule = reshape_rule(source, target)
    assert rule.result_shape(0) == target
    assert {factor.kind for factor in rule.factors} <= {PASS}
    for mesh in ("x=2 y=2", "x=6"):
        check_split(ops.reshape, [x], {"shape": target}, Mesh.parse(mesh))


def test_reshape_fills_in_the_open_dim() -> None:
    assert full_shape((24, 6), (4, -1)) == (4, 36)
    assert full_shape((), (-1, 1)) == (1, 1)
    np.testing.assert_array_equal(ops.reshape(X, shape=(-1, 8)), X.reshape(18, 8))


@pytest.mark.parametrize("shape", [(5, -1), (7, 20), (-1, -1), (0, -1), (-2, 72), (24, 6.0)])
def test_reshape_that_does_not_fit(shape: tuple) -> None:
    with pytest.raises(ShapeError, match="Reshape"):
        ops.reshape(X, shape=shape)


def test_reshape_error_tells_elements() -> None:
    with pytest.raises(ShapeError, match=r"Reshape of \(24, 6\) to \(7, 20\): the operand has 144 elements"):
        ops.reshape(X, shape=(7, 20))


# -- other shapes


def test_dims_are_moved_inserted_and_removed() -> None:
    np.testing.assert_array_equal(ops.transpose(CUBE, perm=(2, 0, -2)), CUBE.transpose(2, 0, 1))
    np.testing.assert_array_equal(ops.transpose(CUBE), CUBE.T)
    assert ops.expand_dims(X, axis=-1).shape == (24, 6, 1)
    assert ops.expand_dims(X, axis=(0, 2)).shape == (1, 24, 1, 6)
    assert ops.squeeze(X[None, :, None]).shape == (24, 6)
    assert ops.squeeze(X[None, :, None], axis=0).shape == (24, 1, 6)
    assert ops.squeeze(X).shape == (24, 6)


def test_squeeze_keeps_a_dim_that_is_one_by_splitting() -> None:
    x = np.arange(48, dtype=np.float32).reshape(8, 1, 6)
    assert check_split(ops.squeeze, [x], {}, Mesh.parse("x=8")) > 4


def test_repetition() -> None:
    np.testing.assert_array_equal(ops.broadcast_to(X[:, None], shape=(4, -1, 3, 6))[2, :, 1], X)
    np.testing.assert_array_equal(ops.tile(X, multiples=(3, 1, 2)), np.tile(X, (3, 1, 2)))
    assert rule_of(ops.tile, X, multiples=(3, 1, 2)) == "b c -> d b (f c) {b=24, c=6, d=3, f=2}"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.transpose(X, perm=(0, 0)), r"Transpose: axes \(0, 0\) name one dim twice"),
        (lambda: ops.transpose(X, perm=(0,)), r"Transpose: perm \(0,\) does not name each of the 2 dims"),
        (
            lambda: ops.expand_dims(X, axis=3),
            r"ExpandDims: axis 3 of a tensor with 3 dims; it must be -3\.\.2",
        ),
        (lambda: ops.squeeze(X, axis=1), r"Squeeze of \(24, 6\): dim 1 has size 6"),
        (
            lambda: ops.broadcast_to(X, shape=(24, 12)),
            r"BroadcastTo: \(24, 6\) cannot be broadcast to \(24, 12\)",
        ),
        (lambda: ops.broadcast_to(X, shape=(6,)), "BroadcastTo"),
        (lambda: ops.broadcast_to(X, shape=(-1, 24, 6)), "BroadcastTo"),
        (lambda: ops.tile(X, multiples=(2,)), r"Tile of \(24, 6\): multiples \(2,\)"),
        (lambda: ops.tile(X, multiples=(2, 0)), "must be positive"),
        (
            lambda: ops.concat(X, X[:, :4]),
            r"Concat along axis 0: operand 1 is \(24, 4\) but operand 0 \(24, 6\)",
        ),
        (lambda: ops.concat(X, CUBE), "Concat along axis 0: operand 1"),
        (lambda: ops.concat(X, axis=2), "Concat: axis 2"),
        (lambda: ops.concat(), "Concat takes at least one operand"),
        (lambda: ops.split(X, output_num=5), r"Split of \(24, 6\): 5 parts do not divide axis 0 of size 24"),
        (lambda: ops.split(X, sizes=(20, 5)), r"Split: sizes \(20, 5\) must be 0 or more and add to 24"),
        (lambda: ops.stack(X, CUBE), "Stack takes one or more operands of one shape"),
        (lambda: ops.unstack(CUBE, num=3), r"Unstack: axis 0 of \(4, 6, 10\) gives 4 tensors, not 3"),
        (lambda: ops.strided_slice(X, begin=(3,), end=(3,)), "takes nothing of dim 0"),
        (lambda: ops.strided_slice(X, begin=(3,), end=(5, 6)), "must be of one length"),
        (lambda: ops.strided_slice(X, begin=(3,), end=(5,), strides=(0,)), "strides not 0"),
        (lambda: ops.strided_slice_grad(X, shape=(24, 8), begin=(0, 1), end=(24, 6)), r"has shape \(24, 5\)"),
        (lambda: ops.pad(X, paddings=((1, 1),)), r"Pad of \(24, 6\): paddings"),
        (lambda: ops.pad(X, paddings=((1, 1), (0, -1))), "Pad of"),
        (lambda: ops.roll(X, shift=(1, 2), axis=0), "must be of one length"),
        (lambda: ops.flip(X, axis=2), "ReverseV2: axis 2"),
        (lambda: ops.tril(X[0]), "Tril"),
        (lambda: ops.arange(limit=0), "Range from 0 to 0 by 1 is empty"),
    ],
)
def test_what_does_not_fit_is_told(call, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        call()


# -- joint


def test_joining_and_cutting() -> None:
    parts = ops.split(X, axis=1, sizes=(1, 3, 2))
    assert [part.shape for part in parts] == [(24, 1), (24, 3), (24, 2)]
    np.testing.assert_array_equal(ops.concat(*parts, axis=-1), X)
    np.testing.assert_array_equal(ops.split(X, output_num=4)[3], X[18:])
    np.testing.assert_array_equal(ops.stack(*ops.unstack(CUBE, axis=1), axis=2), CUBE.transpose(0, 2, 1))


def test_results_that_nothing_uses_have_zero_gradients() -> None:
    x = np.random.default_rng(0).standard_normal((12, 6))
    attrs = ops.split.check_attributes({"axis": 0, "sizes": (2, 4, 6)})
    y = ops.split.evaluate([x], attrs)
    (grad,) = ops.split.cotangents((None, y[1], None), y, [x], attrs)
    np.testing.assert_array_equal(grad, np.concatenate([0 * x[:2], x[2:6], 0 * x[6:]]))
    attrs = ops.unstack.check_attributes({"axis": 1})
    y = ops.unstack.evaluate([x], attrs)
    (grad,) = ops.unstack.cotangents((*(None,) * 5, y[5]), y, [x], attrs)
    np.testing.assert_array_equal(grad, x * (np.arange(6) == 5))


# -- slices


def test_slices_follow_python() -> None:
    np.testing.assert_array_equal(
        ops.strided_slice(CUBE, begin=(1, -4), end=(4, None), strides=(2, 3)), CUBE[1:4:2, -4::3]
    )
    np.testing.assert_array_equal(ops.strided_slice(X, begin=(None,), end=(None,), strides=(-1,)), X[::-1])
    taken = ops.strided_slice(CUBE, begin=(0, 1), end=(4, 6))
    placed = ops.strided_slice_grad(taken, shape=CUBE.shape, begin=(0, 1), end=(4, 6))
    np.testing.assert_array_equal(placed, np.where(np.arange(6)[:, None] >= 1, CUBE, 0))


def test_a_dim_that_is_fully_taken_can_be_split() -> None:
    assert rule_of(ops.strided_slice, X, begin=(0, 1), end=(30, 4)) == "a <b>^3 -> a <b>^3 {a=24, b=6}"
    assert rule_of(ops.strided_slice, X, begin=(-24,), end=(None,)) == "a b -> a b {a=24, b=6}"


def test_padding_order_and_triangles() -> None:
    padded = np.pad(X, ((0, 1), (2, 0)), constant_values=-1)
    np.testing.assert_array_equal(ops.pad(X, paddings=((0, 1), (2, 0)), value=-1), padded)
    np.testing.assert_array_equal(ops.flip(CUBE, axis=(0, 2)), CUBE[::-1, :, ::-1])
    np.testing.assert_array_equal(ops.roll(CUBE, shift=3, axis=1), np.roll(CUBE, 3, 1))
    np.testing.assert_array_equal(ops.tril(CUBE, diagonal=1), CUBE * (np.arange(10) - np.arange(6)[:, None] <= 1))
    np.testing.assert_array_equal(ops.triu(CUBE, diagonal=1), CUBE * (np.arange(10) - np.arange(6)[:, None] >= 1))


def test_ranges() -> None:
    np.testing.assert_array_equal(ops.arange(start=5, limit=-6, delta=-3), np.array([5, 2, -1, -4], np.int32))
    halves = ops.arange(limit=2, delta=0.75, dtype="f32")
    assert halves.dtype == np.float32
    np.testing.assert_array_equal(halves, np.array([0, 0.75, 1.5], np.float32))
