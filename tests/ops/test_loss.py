"""Losses: values against scipy and plain formulas, labels that are no probabilities, large logits, errors."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from autoshard import ops
from autoshard.util.errors import ShapeError

RNG = np.random.default_rng(15)
LOGITS = RNG.normal(size=(6, 10)) * 2
LABELS = RNG.dirichlet(np.ones(10), 6)
X, Y = RNG.normal(size=(2, 4, 6))


def test_cross_entropy_with_probabilities() -> None:
    loss, slope = ops.softmax_cross_entropy_with_logits(LOGITS, LABELS)
    np.testing.assert_allclose(loss, -(LABELS * special.log_softmax(LOGITS, axis=1)).sum(1))
    np.testing.assert_allclose(slope, special.softmax(LOGITS, axis=1) - LABELS)


def test_slope_is_softmax_minus_labels_also_where_these_do_not_sum_to_one() -> None:
    labels, op = RNG.uniform(0, 3, (6, 10)), ops.softmax_cross_entropy_with_logits
    loss, slope = op(LOGITS, labels)
    np.testing.assert_allclose(slope, special.softmax(LOGITS, axis=1) - labels)
    rates = np.arange(6.0)
    for_logits, for_labels = op.cotangents((rates, None), (loss, slope), (LOGITS, labels), {})
    np.testing.assert_allclose(for_logits, slope * rates[:, None])
    assert for_labels is None


@pytest.mark.parametrize("only", [0, 1])
def test_a_result_without_gradient_adds_nothing(only: int) -> None:
    op = ops.softmax_cross_entropy_with_logits
    y = op(LOGITS, LABELS)
    gs = [np.ones_like(one) for one in y]
    alone = op.cotangents(tuple(g if i == only else None for i, g in enumerate(gs)), y, (LOGITS, LABELS), {})
    zeroed = op.cotangents(tuple(g * (i == only) for i, g in enumerate(gs)), y, (LOGITS, LABELS), {})
    np.testing.assert_allclose(alone[0], zeroed[0], atol=1e-12)
    assert alone[1] is zeroed[1] is None


def test_class_numbers_agree_with_one_hot_labels() -> None:
    numbers = RNG.integers(0, 10, 6).astype(np.int32)
    hot = np.eye(10)[numbers]
    loss = ops.sparse_softmax_cross_entropy_with_logits(LOGITS, numbers)
    np.testing.assert_allclose(loss, ops.softmax_cross_entropy_with_logits(LOGITS, hot)[0])
    slope = ops.sparse_softmax_cross_entropy_grad(np.arange(6.0), LOGITS, numbers)
    np.testing.assert_allclose(slope, (special.softmax(LOGITS, axis=1) - hot) * np.arange(6.0)[:, None])


def test_large_logits_give_finite_losses() -> None:
    logits = np.array([[1e4, 0.0], [0.0, 1e4]], np.float32)
    loss = ops.sparse_softmax_cross_entropy_with_logits(logits, np.array([0, 0], np.int32))
    np.testing.assert_array_equal(loss, [0, 1e4])
    assert loss.dtype == np.float32


@pytest.mark.parametrize("name", ["mse_loss", "l1_loss"])
def test_elementwise_losses_and_their_reductions(name: str) -> None:
    each = (X - Y) ** 2 if name == "mse_loss" else np.maximum(X - Y, Y - X)
    op = getattr(ops, name)
    np.testing.assert_allclose(op(X, Y, reduction="none"), each)
    np.testing.assert_allclose(op(X, Y, reduction="sum"), each.sum())
    np.testing.assert_allclose(op(X, Y), each.sum() / 24)
    parts = [op(X[half], Y[half], count=24) for half in (slice(0, 1), slice(1, 4))]
    np.testing.assert_allclose(sum(parts), op(X, Y))


def test_losses_do_not_change_their_operands() -> None:
    kept = LOGITS.copy(), X.copy()
    ops.softmax_cross_entropy_with_logits(LOGITS, LABELS)
    ops.sparse_softmax_cross_entropy_with_logits(LOGITS, np.zeros(6, np.int32))
    ops.mse_loss(X, Y)
    np.testing.assert_array_equal(LOGITS, kept[0])
    np.testing.assert_array_equal(X, kept[1])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: ops.softmax_cross_entropy_with_logits(LOGITS, LABELS[:, :4]), "c is 4 in operand 1"),
        (
            lambda: ops.softmax_cross_entropy_with_logits(np.ones((2, 3), np.int32), np.ones((2, 3))),
            "logits of a float type, not i32",
        ),
        (
            lambda: ops.sparse_softmax_cross_entropy_with_logits(LOGITS, np.array([0, 1, 2, 10, 0, 0])),
            r"labels from 0 to 10, but classes are 0\.\.9",
        ),
        (
            lambda: ops.sparse_softmax_cross_entropy_with_logits(LOGITS, np.zeros((6, 1), int)),
            r"labels \(6, 1\) must have the shape of logits \(6, 10\) without classes",
        ),
        (lambda: ops.mse_loss(X, Y, reduction="max"), "reduction is 'max'; it is 'mean', 'sum' or 'none'"),
        (lambda: ops.mse_loss(X, Y[:2]), r"MSELoss takes operands of one shape, not \(4, 6\) and \(2, 6\)"),
    ],
)
def test_bad_operands_are_named(call, text: str) -> None:
    with pytest.raises(ShapeError, match=text):
        call()
