"""What ranks compare of the rows they read: checksums that see every change, and NaNs found without a second array."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.layout import Mesh
from autoshard.mindspore.dataset import DataError
from autoshard.mindspore.feed import Feed, checksum
from autoshard.runtime.local import LocalComm

DTYPES = ["float64", "float32", "float16", "int32", "uint8", "bool"]


@cache
def _once(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)


def drawn(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return _once(dtype, shape, seed).copy()


@pytest.mark.parametrize("dtype", DTYPES)
@given(st.integers(0, 10**6), st.sampled_from([(1,), (7, 3), (300, 41), (700, 9)]))
def test_a_changed_element_changes_the_checksum(dtype, place, shape):
    array = drawn(dtype, shape)
    changed = array.copy()
    flat = changed.reshape(-1)
    flat[place % flat.size] = not flat[place % flat.size] if dtype == "bool" else flat[place % flat.size] + 1
    assert checksum(array) == checksum(array.copy())
    assert checksum(array) != checksum(changed)


@given(st.integers(0, 10**6), st.sampled_from([(64, 512), (300, 41), (2100, 3)]))
def test_another_order_of_rows_or_columns_changes_it(seed, shape):
    array = drawn("float32", shape)
    rows, columns = (np.random.default_rng([seed, size]).permutation(size) for size in shape)
    for other in (array[rows], array[:, columns], array[::-1], array[:, ::-1], -array):
        assert np.array_equal(other, array) or checksum(other) != checksum(array)


def test_checksums_go_on_from_one_column_to_the_next():
    one, other = drawn("float32", (40, 30)), drawn("int32", (40,), 1)
    assert checksum(other, checksum(one)) != checksum(one, checksum(other))
    assert checksum(np.zeros((0, 4), np.float32), 7) == checksum(np.zeros((4, 0), np.float32), 7)
    assert checksum(one.T) == checksum(np.ascontiguousarray(one.T)) != checksum(one)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("make", [lambda x: x, lambda x: x.T, lambda x: x[::2]], ids=["whole", "turned", "in part"])
def test_nans_are_found_and_what_overflows_is_none(dtype, make):
    feed = Feed(LocalComm(2), Mesh.flat(2), "full_batch")
    row = make(drawn(dtype, (30, 20)))
    row[3, 2], row[4, 4], row[5, 5] = np.inf, -np.inf, np.finfo(dtype).max
    assert len(list(feed.rows([(row,)]))) == 1
    row[2, 1] = np.nan
    with pytest.raises(DataError, match=r"has a NaN at \(2, 1\)"):
        list(feed.rows([(row,)]))
