"""Sizes that layouts do not divide: steps for the evened shape bring what lies inside of blocks to where it belongs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.core.tensortype import TensorType
from autoshard.layout import Layout, Mesh
from autoshard.partition.forms import Form, padded_steps
from autoshard.partition.program import Collective
from autoshard.redistribute import planner
from autoshard.redistribute.bound import fewest_elements
from autoshard.redistribute.planner import elements_moved, evened, plan_steps
from autoshard.runtime.array import cut, join
from autoshard.runtime.local import LocalComm
from autoshard.runtime.moving import step_runner
from autoshard.runtime.padded import fit
from tests.redistribute import virtual_ranks as ranks

JUNK = -(1 << 40)


@st.composite
def uneven_changes(draw: st.DrawFn) -> tuple[Layout, Layout, tuple[int, ...]]:
    mesh, rank = draw(ranks.meshes()), draw(st.integers(1, 3))
    before, after = draw(ranks.layouts(mesh, rank)), draw(ranks.layouts(mesh, rank))
    even = ranks.shape_for(before, after, extra=draw(st.integers(1, 2)))
    return before, after, tuple(draw(st.integers(max(1, size // 2), size)) for size in even)


def padded(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The array in a corner of a larger one full of junk."""
    made = np.full(shape, JUNK)
    made[tuple(map(slice, array.shape))] = array
    return made


@settings(max_examples=80, deadline=None)
@given(uneven_changes(), st.integers(0, 1 << 16))
def test_steps_for_the_evened_shape_bring_every_block_home(change, seed):
    """On independent virtual ranks; what padding holds moves along and reaches no true element."""
    before, after, shape = change
    even, random = evened(before, after, shape), np.random.default_rng(seed)
    assert before.divides(even) and after.divides(even)
    parts = map(math.lcm, before.parts, after.parts)
    assert all(0 <= large - size < both for large, size, both in zip(even, shape, parts, strict=True))
    array = random.integers(1, 1 << 20, shape)
    steps = plan_steps(before, after, shape)
    assert steps == plan_steps(before, after, even)
    held = ranks.scatter(before, padded(array, even), random)
    for step in steps:
        assert step.before.divides(even) and step.after.divides(even)
        held = ranks.run(step, held)
    ranks.check(after, held, padded(array, even))
    assert elements_moved(steps, even) >= fewest_elements(before, after, even) - 1e-9


@st.composite
def formed(draw: st.DrawFn) -> tuple[Form, Form, tuple[int, ...]]:
    """Two final forms of a value; their padded sizes may differ, so that blocks do not meet blocks."""
    mesh, rank = draw(ranks.meshes()), draw(st.integers(1, 3))
    layouts = [draw(ranks.layouts(mesh, rank, partial=False)) for _ in range(2)]
    shape = tuple(draw(st.integers(1, 9)) for _ in range(rank))

    def form(layout: Layout) -> Form:
        units = [-(-size // parts) + draw(st.integers(0, 1)) for size, parts in zip(shape, layout.parts, strict=True)]
        sizes = zip(units, layout.parts, shape, strict=True)
        return Form(layout, tuple(unit * parts if parts > 1 else size for unit, parts, size in sizes))

    even = evened(layouts[0], layouts[1], shape)
    if draw(st.booleans()):
        return form(layouts[0]), form(layouts[1]), shape
    first, second = (
        Form(
            one, tuple(large if parts > 1 else size for large, parts, size in zip(even, one.parts, shape, strict=True))
        )
        for one in layouts
    )
    return first, second, shape


@settings(max_examples=80, deadline=None)
@given(formed(), st.integers(0, 1 << 16), st.booleans())
def test_forms_follow_from_forms(change, seed, boxes):
    """Over the runtime's own ranks: from any padded form to any other; with boxes wherever they spare something."""
    start, end, shape = change
    array = np.random.default_rng(seed).integers(1, 1 << 20, shape)
    comm, of = LocalComm(start.layout.mesh.devices), TensorType.of(shape, "i64")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "MESSAGE", 0 if boxes else planner.MESSAGE)
        way = padded_steps(start, end, shape)
    parts, now = cut(array, start.layout, comm.ranks, start.shape), start.register("start", of)
    for i, (step, form) in enumerate(way.steps):
        result = form.register(f"step{i}", of)
        one = Collective(step, now, result, None)
        parts, now = step_runner(one, comm)(parts), result
        assert all(part.shape == now.local.shape for part in parts)
    assert now.layout is end.layout and now.whole.shape == end.shape
    whole = fit(array, end.shape)
    for rank, part in enumerate(parts):
        block = end.layout.block(rank, end.shape)
        inside = tuple(slice(max(0, min(one.stop, size) - one.start)) for one, size in zip(block, shape, strict=True))
        np.testing.assert_array_equal(part[inside], whole[block][inside])
    np.testing.assert_array_equal(join(parts, end.layout, shape, comm, end.shape), array)


def test_a_finer_layout_follows_from_a_coarser_one_by_cuts():
    mesh = Mesh(dp=2, tp=4)
    steps = plan_steps(Layout.parse("dp, -", mesh), Layout.parse("dp.tp, -", mesh), (10, 3))
    assert [step.kind for step in steps] == ["slice"]
    assert evened(Layout.parse("dp, -", mesh), Layout.parse("dp.tp, -", mesh), (10, 3)) == (16, 3)


@pytest.mark.parametrize(
    ("size", "other", "boxes"), [(9, 40_000, True), (9, 3, False), (8190, 40, False)], ids=["much", "small", "little"]
)
def test_padding_stays_where_boxes_spare_enough(size: int, other: int, boxes: bool) -> None:
    """9 elements in blocks of 2: ranks lack 7 or more of them, and would be sent 14; of 8190 padding is nothing."""
    split, whole = (Layout.parse(text, Mesh(a=2, b=4)) for text in ("-, a.b", "-, -"))
    shape, even = (other, size), evened(split, whole, (other, size))
    way = padded_steps(Form(split, even), Form(whole, shape), shape)
    assert [step.fetched is not None for step, _ in way.steps] == [boxes]
    least, padded_too = (
        fewest_elements(split, whole, even, size=shape),
        elements_moved(plan_steps(split, whole, even), even),
    )
    assert least <= way.moved <= padded_too and (way.moved < padded_too) == boxes
