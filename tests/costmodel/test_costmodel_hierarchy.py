"""Laws of collectives over several levels of links."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel import KINDS, Link, Topology, group_levels, grouped_seconds, preset, seconds

FAST, SLOW = Link("fast", 1e-6, 100e9), Link("slow", 5e-6, 10e9)
TWO_LEVELS = Topology(((8, FAST), (None, SLOW)))


@pytest.mark.parametrize(
    "steps, levels",
    [
        ([(8, 1)], [(8, FAST)]),
        ([(64, 1)], [(8, FAST), (8, SLOW)]),
        ([(4, 2)], [(4, FAST)]),
        ([(16, 4)], [(2, FAST), (8, SLOW)]),
        ([(6, 8)], [(6, SLOW)]),
        ([(2, 1), (4, 16)], [(2, FAST), (4, SLOW)]),
        ([], []),
    ],
)
def test_levels_of_a_group(steps, levels):
    assert list(group_levels(TWO_LEVELS, steps)) == levels


def test_a_group_beyond_the_topology_is_refused():
    with pytest.raises(ValueError, match="topology ends at 8"):
        group_levels(Topology(((8, FAST),)), [(16, 1)])


@given(kind=st.sampled_from(KINDS), nbytes=st.integers(0, 1 << 32), inner=st.integers(2, 8), outer=st.integers(2, 8))
def test_levels_never_cost_more_than_the_slow_link_alone(kind, nbytes, inner, outer):
    levels = ((inner, FAST), (outer, SLOW))
    assert grouped_seconds(kind, nbytes, levels) <= seconds(kind, nbytes, inner * outer, SLOW)


@given(kind=st.sampled_from(KINDS), nbytes=st.integers(0, 1 << 32), ranks=st.integers(2, 16))
def test_one_level_is_the_plain_collective(kind, nbytes, ranks):
    assert grouped_seconds(kind, nbytes, ((ranks, FAST),)) == seconds(kind, nbytes, ranks, FAST)


def test_a_large_all_reduce_sends_only_a_share_over_the_network():
    hardware = preset("h100")
    levels = group_levels(hardware.topology, [(64, 1)])
    assert grouped_seconds("all_reduce", 1 << 30, levels) < seconds("all_reduce", 1 << 30, 64, levels[-1][1]) / 3


def test_gather_and_scatter_cost_the_same():
    levels = ((4, FAST), (6, SLOW))
    assert grouped_seconds("all_gather", 123456, levels) == grouped_seconds("reduce_scatter", 123456, levels)
