"""Sets that are joined equal scipy's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster import hierarchy

from autoshard.util.disjoint import DisjointSet

ELEMENT = st.integers(0, 9)


@given(st.lists(ELEMENT), st.lists(st.tuples(ELEMENT, ELEMENT)))
def test_sets_equal_those_of_scipy(first: list[int], pairs: list[tuple[int, int]]) -> None:
    ours, theirs = DisjointSet(first), hierarchy.DisjointSet(first)
    for one, other in pairs:
        for new in (one, other):
            ours.add(new)
            theirs.add(new)
        assert ours.merge(one, other) == theirs.merge(one, other)
        assert [(one, ours[one]) for one in ours] == [(one, theirs[one]) for one in theirs]
    assert ours.subsets() == theirs.subsets()
