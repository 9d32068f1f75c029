"""Peaks of live ranges against counting step by step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel import live_bytes, peak

STEPS = 24


@st.composite
def rows(draw):
    first = draw(st.integers(0, STEPS - 1))
    return first, draw(st.integers(first, STEPS - 1)), draw(st.integers(0, 1000))


def counted(intervals):
    return [sum(n for first, last, n in intervals if first <= step <= last) for step in range(STEPS)]


@given(st.lists(rows(), min_size=1, max_size=12))
def test_peak_and_live_bytes_equal_brute_force(intervals):
    alive = counted(intervals)
    assert live_bytes(intervals, STEPS).tolist() == alive
    most, step = peak(intervals)
    assert most == max(alive)
    # Steps before the first row hold nothing; the step is the first from there on that reaches the peak.
    assert step == alive.index(most, min(first for first, _, _ in intervals))


@given(st.lists(rows(), min_size=1, max_size=12), st.integers(1, 10**12))
def test_peak_ignores_row_order_and_moves_with_the_steps(intervals, shift):
    most, step = peak(intervals)
    assert peak(intervals[::-1]) == (most, step)
    moved = [(first + shift, last + shift, n) for first, last, n in intervals]
    assert peak(np.array(moved)) == (most, step + shift)


def test_a_value_freed_after_a_step_does_not_meet_the_next_one():
    assert peak([(0, 3, 10), (4, 6, 12)]) == (12, 4)
    assert peak([(0, 4, 10), (4, 6, 12)]) == (22, 4)


def test_large_sizes_stay_exact():
    assert peak([(0, 4, 2**60 + 1), (2, 6, 2**60 + 2)]) == (2**61 + 3, 2)


def test_no_rows():
    assert peak([]) == (0, 0)
    assert live_bytes(np.zeros((0, 3), int), 4).tolist() == [0, 0, 0, 0]


def test_whole_floats_are_taken():
    assert peak(np.array([[0.0, 2.0, 40.0], [1.0, 1.0, 6.0]])) == (46, 1)


@pytest.mark.parametrize(
    "bad, part",
    [
        ([(0, 4)], r"shape \(1, 2\)"),
        ([0, 4, 6], r"shape \(3,\)"),
        ([("a", "b", "c")], "rows of three numbers"),
        (
            [(0, 4, 6), (4, 2, 10)],
            r"live range 1 \(first_step=4, last_step=2, nbytes=10\) ends before it begins",
        ),
        ([(0, 4, 6), (1, 2, -10)], "live range 1 .* has negative bytes"),
        ([(0, 4, 6.5)], "live range 0 .* fraction"),
        ([(0, 4, float("nan"))], "live range 0 .* no finite integer"),
        ([(0, 2**62, 4)], "live range 0 .* no finite integer"),
        ([(0, 4, 2**61), (0, 4, 2**61)], r"sum to over 2\*\*62"),
    ],
)
def test_bad_rows(bad, part):
    for function in (peak, lambda rows: live_bytes(rows, 6)):
        with pytest.raises(ValueError, match=part):
            function(bad)


@pytest.mark.parametrize("row", [(-1, 2, 4), (2, 6, 4)])
def test_live_bytes_refuses_rows_outside(row):
    with pytest.raises(ValueError, match="outside of the 6 steps from 0 to 5"):
        live_bytes([(0, 4, 6), row], 6)
