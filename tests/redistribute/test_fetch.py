"""Boxes: any layout from any other in one step, on independent virtual ranks and over the runtime's own."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from autoshard.layout import Layout, Mesh
from autoshard.redistribute.bound import fewest_elements
from autoshard.redistribute.fetch import fetch
from autoshard.redistribute.planner import evened, plan_steps
from autoshard.redistribute.step import Step
from autoshard.runtime.local import LocalComm
from autoshard.runtime.steps import run_step
from tests.redistribute import virtual_ranks as ranks

JUNK = -(1 << 40)


@st.composite
def fetches(draw: st.DrawFn) -> tuple[Step, tuple[int, ...]]:
    mesh, rank = draw(ranks.meshes()), draw(st.integers(1, 3))
    reduction = draw(st.sampled_from(["sum", "sum", "max", "min", "prod"]))
    before = draw(ranks.layouts(mesh, rank, reduction))
    after = draw(ranks.layouts(mesh, rank, partial=reduction == "sum"))
    found = None if before is after else fetch(before, after)
    assume(found is not None)
    assert found is not None
    return Step.fetch(found), ranks.shape_for(before, after, extra=draw(st.integers(1, 2)))


@settings(max_examples=80, deadline=None)
@given(fetches(), st.integers(0, 1 << 16))
def test_boxes_bring_every_block_home(change, seed):
    step, shape = change
    random = np.random.default_rng(seed)
    array = random.integers(1, 1 << 20, shape)
    held = ranks.scatter(step.before, array, random)
    made = ranks.run(step, held)
    ranks.check(step.after, made, array)
    for part, same in zip(run_step(step, held, LocalComm(step.before.mesh.devices)), made, strict=True):
        np.testing.assert_array_equal(part, same)
        assert part.dtype == array.dtype and part.flags.c_contiguous
    assert step.elements_moved(shape) == pytest.approx(ranks.sent(step, shape))
    assert step.elements_moved(shape) >= fewest_elements(step.before, step.after, shape) - 1e-9


@settings(max_examples=30, deadline=None)
@given(fetches())
def test_who_sends_what_is_agreed(change):
    """What a rank awaits of another is what that one sends, box by box; nothing outside of the step's groups."""
    step, shape = change
    one = step.fetched
    assert one is not None
    devices = step.before.mesh.devices
    heard = [{piece.source for piece in one.pieces(rank, one._shape)} - {rank} for rank in range(devices)]
    assert one.messages == max(map(len, heard))
    for rank in range(devices):
        awaited = {source: [] for source in range(devices)}
        for piece in one.pieces(rank, shape):
            awaited[piece.source].append(piece)
            assert [s.stop - s.start for s in piece.source_box] == [s.stop - s.start for s in piece.target_box]
        for source in set(range(devices)) - {rank}:
            assert tuple(awaited[source]) == one.wanted(source, shape).get(rank, ())
            assert not awaited[source] or source in ranks.group(step.before.mesh, rank, step.axes)
    told = [{piece.source for piece in one.pieces(rank, one._shape)} - {rank} for rank in range(devices)]
    assert one.messages == max(map(len, told))
    for number in range(step.rounds):
        assert sorted(step.round(number).sources) == list(range(devices))


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(0, 1 << 16))
def test_padding_stays_where_it_is(data, seed):
    """Final values: what moves is just what the bound counts, true elements that a rank lacks; junk is left behind."""
    mesh, rank = data.draw(ranks.meshes()), data.draw(st.integers(1, 3))
    before, after = (data.draw(ranks.layouts(mesh, rank, partial=False)) for _ in range(2))
    even = ranks.shape_for(before, after, extra=data.draw(st.integers(1, 2)))
    size = tuple(data.draw(st.integers(max(1, whole // 2), whole)) for whole in even)
    even, found = evened(before, after, size), fetch(before, after, size)
    assert found is not None
    step, array = Step.fetch(found), np.random.default_rng(seed).integers(1, 1 << 20, size)
    padded = np.full(even, JUNK)
    padded[tuple(map(slice, size))] = array
    held = ranks.run(step, [ranks.block(before, one, padded) for one in range(mesh.devices)])
    clean = np.zeros_like(padded)
    clean[tuple(map(slice, size))] = array
    ranks.check(after, held, clean)
    assert step.elements_moved(even) == fewest_elements(before, after, even, size=size) == ranks.sent(step, even)


def test_ranks_that_share_what_they_lack_receive_alike():
    mesh = Mesh(a=4, b=3)
    found = fetch(Layout.parse("b, -", mesh), Layout.parse("-, b +a", mesh))
    assert found is not None
    shape = (36, 12)
    counts = [
        sum(
            math.prod(s.stop - s.start for s in piece.source_box)
            for piece in found.pieces(rank, shape)
            if piece.source != rank
        )
        for rank in range(12)
    ]
    assert set(counts) == {36 * 4 * 2 // 3 // 4} == {found.elements_moved(shape)}


def test_narrow_terms_are_added_up_in_a_wider_type_and_in_the_same_order_everywhere():
    mesh = Mesh(a=2, b=4)
    found = fetch(Layout.parse("- +b", mesh), Layout.parse("b", mesh))
    assert found is not None
    parts = [np.full(8, value, np.float16) for value in (1000.0, 1.0, 0.25, 0.25) * 2]
    made = run_step(Step.fetch(found), parts, LocalComm(8))
    assert all(part.dtype == np.float16 for part in made)
    assert all(np.array_equal(part, np.full(2, 1001.5, np.float16)) for part in made)


def test_what_cannot_be_fetched():
    mesh = Mesh(a=2, b=4)
    assert fetch(Layout.parse("-", mesh), Layout.parse("- max a", mesh)) is None
    assert fetch(Layout.parse("- max a", mesh), Layout.parse("- +b", mesh)) is None
    large = Mesh(a=64, b=64)
    assert fetch(Layout.parse("a, -", large), Layout.parse("-, a", large)) is None


def test_terms_that_stay_are_not_mixed_where_axes_are_cut_unlike():
    """12 ranks as 6 times 2, then as 2 times 2 times 3: half of the terms stays, the rest is made anew."""
    mesh = Mesh(a=12)
    texts = ("a, -", "a:(6)2, - +a:(1)6", "a:(2)2, - +a:(1)2.a:(4)3")
    chain = [Layout.parse(text, mesh) for text in texts]
    shape, random = ranks.shape_for(*chain), np.random.default_rng(0)
    array = random.integers(1, 1 << 20, shape)
    held = ranks.scatter(chain[0], array, random)
    for before, after in itertools.pairwise(chain):
        for step in plan_steps(before, after, shape):
            held = ranks.run(step, held)
        ranks.check(after, held, array)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(0, 1 << 16))
def test_terms_that_were_made_on_the_way_can_be_moved_again(data, seed):
    """Ranks that hold a block of the same sum may make it of other terms, which must not be mixed."""
    mesh, rank = data.draw(ranks.meshes()), data.draw(st.integers(1, 2))
    chain = [data.draw(ranks.layouts(mesh, rank)) for _ in range(4)]
    shape, random = ranks.shape_for(*chain), np.random.default_rng(seed)
    array = random.integers(1, 1 << 20, shape)
    held = ranks.scatter(chain[0], array, random)
    for before, after in itertools.pairwise(chain):
        for step in plan_steps(before, after, shape, thrifty=data.draw(st.booleans())):
            held = ranks.run(step, held)
        ranks.check(after, held, array)
