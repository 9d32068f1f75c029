"""Values from group to group: random pairs of layouts and meshes, each rank gets what it lacks and no more."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh
from autoshard.pipeline.transfers import GroupLayout, deal
from autoshard.pipeline.transfers.deal import passed_on
from autoshard.pipeline.transfers.group import RankGroup, stacked
from autoshard.pipeline.transfers.price import ValueMessages, one_of_equal_parts
from autoshard.util.errors import MeshError, RedistributeError
from benchmarks.random_pairs import check_pair, check_way, random_layout, random_pair, slow_bound
from costmodel import preset


def test_random_pairs():
    draw = random.Random(7)
    for _ in range(200):
        check_pair(*random_pair(draw))


def test_cheapest_ways_lead_to_the_same_blocks():
    draw, hardware = random.Random(8), preset("cpu")
    for _ in range(60):
        before, after = random_pair(draw)
        left = random_layout(draw, before.group.mesh, len(before.shape), partial=True)
        check_way(GroupLayout.of(before.group, left, before.shape), after, hardware)


def test_replicas_share_the_sending():
    one, other = stacked([Mesh(tp=4), Mesh(tp=4)])
    whole = [GroupLayout.of(group, Layout.replicated(group.mesh, 1), (12,)) for group in (one, other)]
    assert sorted(parcel.source for parcel in deal(*whole)) == [0, 1, 2, 3]


def test_equal_layouts_send_each_block_once():
    one, other = stacked([Mesh(dp=2, tp=2), Mesh(dp=2, tp=2)])
    before, after = (GroupLayout.of(group, Layout.parse("dp, tp", group.mesh), (8, 12)) for group in (one, other))
    assert [(parcel.source, parcel.target) for parcel in deal(before, after)] == [(i, i) for i in range(4)]
    assert ValueMessages(before, after, 4).slow_bytes(4) == slow_bound(before, after, 4, 4) == 8 * 12 * 4


def test_terms_do_not_go_from_group_to_group():
    one, other = stacked([Mesh(tp=2), Mesh(tp=2)])
    before = GroupLayout.of(one, Layout.parse("- +tp", one.mesh), (4,))
    with pytest.raises(RedistributeError, match="not in terms"):
        deal(before, GroupLayout.of(other, Layout.replicated(other.mesh, 1), (4,)))


def test_a_group_has_a_rank_for_each_device():
    with pytest.raises(MeshError, match="has 2 devices, and is given ranks"):
        RankGroup(Mesh(tp=2), (0, 1, 2))


def test_blocks_that_do_not_divide():
    one, other = stacked([Mesh(tp=3), Mesh(tp=2)])
    before, after = (GroupLayout.of(group, Layout.parse("tp", group.mesh), (7,)) for group in (one, other))
    assert [before.box(rank) for rank in range(3)] == [((0, 3),), ((3, 6),), ((6, 7),)]
    assert np.sum([parcel.size for parcel in deal(before, after)]) == 7


@pytest.mark.parametrize("span", [2, 3, 4, 6])
@pytest.mark.parametrize("layouts", list(itertools.product(["dp, -", "dp.tp, -", "dp, tp"], repeat=2)))
@pytest.mark.parametrize("tensors", [(2, 2), (2, 4), (3, 2)])
def test_parts_that_are_alike_tell_what_all_take(span, layouts, tensors):
    """The messages of all parts, counted one by one, on nodes that fit the parts and on such that do not."""
    groups = stacked([Mesh(dp=4, tp=size) for size in tensors])
    before, after = (
        GroupLayout.of(group, Layout.parse(text, group.mesh), (24, 12))
        for group, text in zip(groups, layouts, strict=True)
    )
    first, _, parts = one_of_equal_parts(before, after, (span,))
    assert parts * first.group.mesh.devices == before.group.mesh.devices
    assert parts % 4 == 0 or tensors[0] != tensors[1] or tensors[0] % span and span % tensors[0]
    for relayed in (0, span):
        hops = ((before, deal(before, after, (span,), relayed)), (after, passed_on(after, relayed)))
        messages = [
            (source.group.ranks[one.source], after.group.ranks[one.target], one.size * 8)
            for source, parcels in hops
            for one in parcels
        ]
        slow = sum(size for source, target, size in messages if source // span != target // span)
        assert ValueMessages(before, after, 8, (span,), relayed).slow_bytes(span) == slow
