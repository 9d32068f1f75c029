"""Random numbers by counting: independence of the split, and whether they look random."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from autoshard import ops
from autoshard.ops.random import random_bits
from autoshard.util.errors import ShapeError

MANY = (400, 250)


def splitmix64(state: int, count: int) -> list[int]:
    """The published generator, step by step in Python's integers."""
    mask, numbers = (1 << 64) - 1, []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        numbers.append(z ^ (z >> 31))
    return numbers


def test_reference_generator_gives_the_published_numbers() -> None:
    assert splitmix64(1234567, 3) == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_bits_are_one_sequence_in_row_major_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoshard.ops.random._key", lambda seed, step: 1234567)
    bits = random_bits((4, 6), (), (), 0, 0)
    assert bits.reshape(-1).tolist() == splitmix64(1234567, 24)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_block_has_the_bits_of_the_whole(data: st.DataObject) -> None:
    whole = data.draw(st.lists(st.integers(1, 7), max_size=4).map(tuple))
    start = tuple(data.draw(st.integers(0, size - 1)) for size in whole)
    shape = tuple(data.draw(st.integers(1, size - at)) for size, at in zip(whole, start, strict=True))
    block = tuple(slice(at, at + size) for at, size in zip(start, shape, strict=True))
    seed, step = data.draw(st.integers(0, 2**63)), data.draw(st.integers(0, 2**31 - 1))
    np.testing.assert_array_equal(
        random_bits(shape, start, whole, seed, step), random_bits(whole, (), (), seed, step)[block]
    )


def test_uniform_and_normal_numbers_pass_a_goodness_of_fit_test() -> None:
    even = ops.random_uniform(shape=MANY, seed=1, low=-1.0, high=3.0, dtype="f64")
    assert stats.kstest(even.reshape(-1), stats.uniform(-1, 4).cdf).pvalue > 1e-3
    bell = ops.random_normal(shape=MANY, seed=2, mean=1.0, std=0.5, dtype="f64")
    assert stats.kstest(bell.reshape(-1), stats.norm(1, 0.5).cdf).pvalue > 1e-3
    assert np.isfinite(bell).all()


def test_neighbours_seeds_and_steps_are_not_correlated() -> None:
    def draw(seed: int, step: int) -> np.ndarray:
        return ops.random_normal(shape=MANY, seed=seed, step=step, dtype="f64").reshape(-1)

    first = draw(0, 0)
    limit = 5 / np.sqrt(first.size)
    for other in (draw(1, 0), draw(0, 1), draw(1, 1), np.roll(first, 1), np.roll(first, MANY[1])):
        assert abs(np.corrcoef(first, other)[0, 1]) < limit


def test_dropout_keeps_the_wanted_share_and_the_mean() -> None:
    x = np.ones(MANY, np.float32)
    y = ops.dropout(x, np.int32(3), rate=0.3, seed=9)
    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.7)}
    assert abs(np.mean(y == 0) - 0.3) < 5 * np.sqrt(0.3 * 0.7 / x.size)


def test_dropout_changes_with_step_and_seed_alone() -> None:
    x = np.ones((24, 10), np.float32)
    first = ops.dropout(x, np.int32(1), seed=4)
    np.testing.assert_array_equal(first, ops.dropout(x, np.int64(1), seed=4))
    assert (first != ops.dropout(x, np.int32(2), seed=4)).any()
    assert (first != ops.dropout(x, np.int32(1), seed=5)).any()


def test_dropout_of_rows_is_that_of_the_whole_tensor() -> None:
    x, rows = np.random.default_rng(0).normal(size=(6, 10, 4)), np.array([7, 1, 4], np.int32)
    whole = ops.dropout(x, np.int32(3), rate=0.4, seed=9)
    given = {"dim": 1, "whole": x.shape, "rate": 0.4, "seed": 9}
    np.testing.assert_array_equal(ops.dropout_rows(x[:, rows], np.int32(3), rows, **given), whole[:, rows])


def test_dropout_gradient_has_the_mask_of_the_forward_run() -> None:
    x, attrs = np.ones((24, 10)), ops.dropout.check_attributes({"rate": 0.25, "seed": 4})
    y = ops.dropout(x, np.int32(7), **attrs)
    dx, none = ops.dropout.cotangents(2 * x, y, (x, np.int32(7)), attrs)
    np.testing.assert_array_equal(dx, 2 * y)
    assert none is None


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: ops.dropout(np.ones(4), np.int32(0), rate=1.0), "Dropout: rate is 1.0"),
        (lambda: ops.dropout(np.ones(4, int), np.int32(0)), "Dropout takes floats, not i64"),
        (lambda: ops.dropout(np.ones(4), np.zeros(2, int)), "Dropout"),
        (lambda: ops.dropout_rows(np.ones(4), np.int32(0), np.arange(4), dim=1, whole=(8,)), "rows are dim 1"),
        (lambda: ops.dropout_rows(np.ones(4), np.int32(0), np.ones(4), dim=0, whole=(8,)), "is f64"),
        (lambda: ops.random_normal(shape=(4, -1)), r"shape \(4, -1\) has a negative size"),
        (lambda: ops.random_uniform(shape=(4,), dtype="i32"), "of a float type, not i32"),
    ],
)
def test_bad_operands_are_named(call, text: str) -> None:
    with pytest.raises(ShapeError, match=text):
        call()
