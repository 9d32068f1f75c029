"""The algebra of sub-axes against brute force over all ways to cut an axis."""

from __future__ import annotations

import functools
import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.layout import AxisRef, Mesh
from autoshard.layout.mesh import merge_refs, size_of

SIZES = [1, 2, 6, 12, 16, 24, 36]


@functools.cache
def chains(size: int) -> list[tuple[int, ...]]:
    """All ways to cut an axis: 1 = c0 | c1 | ... | size."""
    if size == 1:
        return [(1,)]
    shorter = [chain for d in range(1, size) if size % d == 0 for chain in chains(d)]
    return [(*chain, size) for chain in shorter]


def pieces(size: int) -> list[AxisRef]:
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    return [AxisRef("a", low, high // low) for low in divisors for high in divisors if low < high and high % low == 0]


def cuts(ref: AxisRef, chain: tuple[int, ...]) -> frozenset[tuple[int, int]] | None:
    """The steps of the chain that make up a piece, None if it does not begin and end in the chain."""
    if ref.pre not in chain or ref.next not in chain:
        return None
    return frozenset(step for step in itertools.pairwise(chain) if ref.pre <= step[0] and step[1] <= ref.next)


def common(x: AxisRef, y: AxisRef, size: int) -> tuple[frozenset, frozenset] | None:
    """Both pieces as steps of one chain that holds them, if there is one; the finest serves best."""
    for chain in sorted(chains(size), key=len, reverse=True):
        steps = cuts(x, chain), cuts(y, chain)
        if None not in steps:
            return steps
    return None


def joined(steps: frozenset[tuple[int, int]]) -> AxisRef | None:
    if not steps:
        return None
    low, high = min(step[0] for step in steps), max(step[1] for step in steps)
    return AxisRef("a", low, high // low)


ALL_PAIRS = [(size, x, y) for size in SIZES for x in pieces(size) for y in pieces(size)]


@pytest.mark.parametrize("size", SIZES)
def test_relations(size):
    for x, y in itertools.product(pieces(size), repeat=2):
        both = common(x, y, size)
        assert x.can_coexist(y) == (both is not None), (x, y)
        assert x.overlaps(y) == bool(set(range(x.pre, x.next)) & set(range(y.pre, y.next)))
        if both is None:
            assert not x.contains(y) and not x.prefix_of(y)
            assert x.overlap(y) is None
            continue
        a, b = both
        assert x.contains(y) == (b <= a)
        assert x.prefix_of(y) == (a <= b and x.pre == y.pre)
        assert x.overlap(y) == joined(a & b)
        assert x.overlaps(y) == bool(a & b)


@pytest.mark.parametrize("size", SIZES)
def test_differences(size):
    for x, y in itertools.product(pieces(size), repeat=2):
        both = common(x, y, size)
        if both is None:
            if x.overlaps(y):
                assert x.prefix_without_overlap(y) is None and x.suffix_without_overlap(y) is None
            continue
        a, b = both
        before = frozenset(step for step in a if all(step[1] <= other[0] for other in b))
        behind = frozenset(step for step in a if all(step[0] >= other[1] for other in b))
        if not a & b:
            assert x.prefix_without_overlap(y) == x.suffix_without_overlap(y) == x
        else:
            assert x.prefix_without_overlap(y) == joined(before)
            assert x.suffix_without_overlap(y) == joined(behind)


@pytest.mark.parametrize("size", SIZES)
def test_merge_and_split_are_inverse(size):
    for x in pieces(size):
        for major in [d for d in range(1, x.size + 1) if x.size % d == 0]:
            left, right = x.split(major)
            assert left.can_merge(right) and left.merge(right) == x
            assert left.size == major and not (left.overlaps(right) and 1 not in (left.size, right.size))
    for x, y in itertools.product(pieces(size), repeat=2):
        assert x.can_merge(y) == (x.next == y.pre)


def test_other_axes_have_nothing_in_common():
    a, b = AxisRef("a", 1, 4), AxisRef("b", 1, 4)
    assert a.can_coexist(b) and not a.overlaps(b) and not a.contains(b) and not a.can_merge(AxisRef("b", 4, 2))
    assert a.overlap(b) is None
    assert a.prefix_without_overlap(b) == a == a.suffix_without_overlap(b)
    assert not a.prefix_of(b)


def test_the_rfc_examples():
    """d:(1)2 and d:(2)4 make up d of 8; d:(1)4 and d:(2)4 share d:(2)2; 2 and 3 of 6 do not coexist."""
    assert AxisRef("d", 1, 2).merge(AxisRef("d", 2, 4)) == AxisRef("d", 1, 8)
    assert AxisRef("d", 1, 4).overlap(AxisRef("d", 2, 4)) == AxisRef("d", 2, 2)
    assert AxisRef("d", 1, 4).prefix_without_overlap(AxisRef("d", 2, 4)) == AxisRef("d", 1, 2)
    assert AxisRef("d", 2, 4).suffix_without_overlap(AxisRef("d", 1, 4)) == AxisRef("d", 4, 2)
    assert not AxisRef("d", 1, 2).can_coexist(AxisRef("d", 1, 3))


@given(
    st.lists(
        st.sampled_from([AxisRef(name, 1, 1) for name in "ab"] + pieces(12) + [AxisRef("b", 1, 4)]),
        max_size=6,
    )
)
def test_merged_refs_index_alike(refs):
    mesh = Mesh(a=12, b=4)
    merged = merge_refs(refs)
    assert size_of(merged) == size_of(refs) == math.prod(ref.size for ref in refs)
    assert all(ref.size > 1 for ref in merged)
    assert not any(x.can_merge(y) for x, y in itertools.pairwise(merged))
    assert [mesh.index(rank, merged) for rank in range(48)] == [mesh.index(rank, refs) for rank in range(48)]
