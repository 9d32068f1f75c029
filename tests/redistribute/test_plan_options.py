"""What may be asked of a plan: padding left behind, the quickest of equals, more memory, more collectives."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.core.tensortype import TensorType
from autoshard.cost.prices import Prices
from autoshard.layout import Layout, Mesh
from autoshard.redistribute.bound import fewest_elements
from autoshard.redistribute.planner import Steps, elements_moved, evened, plan_steps, reorderings, step_shape
from autoshard.redistribute.step import Step
from benchmarks.redistribution import right
from costmodel import preset
from tests.redistribute import virtual_ranks as ranks

MESH = Mesh(a=2, b=4)


@st.composite
def changes(draw: st.DrawFn) -> tuple[Layout, Layout, tuple[int, ...]]:
    """Layouts of sizes that may not divide; terms before of any reduction."""
    mesh, rank = draw(ranks.meshes()), draw(st.integers(1, 3))
    reduction = draw(st.sampled_from(["sum", "sum", "max", "min", "prod"]))
    before, after = draw(ranks.layouts(mesh, rank, reduction)), draw(ranks.layouts(mesh, rank))
    even = ranks.shape_for(before, after, extra=draw(st.integers(1, 2)))
    if draw(st.booleans()):
        return before, after, even
    return before, after, tuple(draw(st.integers(max(1, size // 2), size)) for size in even)


def ends(steps: Steps, before: Layout, after: Layout) -> bool:
    """Whether the steps are a chain from one layout to the other."""
    chain = [before, *(step.after for step in steps)]
    return chain[-1] is after and all(step.before is one for step, one in zip(steps, chain, strict=False))


@settings(max_examples=60, deadline=None)
@given(changes(), st.booleans(), st.integers(0, 1 << 16))
def test_plans_that_know_what_is_padding(change, thrifty, seed):
    """Right, never below the bound of true elements, and never above plans that carry padding along."""
    before, after, shape = change
    even = evened(before, after, shape)
    steps = plan_steps(before, after, even, size=shape, thrifty=thrifty)
    assert ends(steps, before, after)
    assert right(change, steps, seed)
    least, elements = fewest_elements(before, after, even, size=shape), elements_moved(steps, even, shape)
    assert least * (1 - 1e-9) <= elements <= elements_moved(plan_steps(before, after, shape), even, shape) * (1 + 1e-8)
    room = max(math.prod(end.local_shape(even)) for end in (before, after))
    assert all(math.prod(step.after.local_shape(even)) <= room for step in steps)
    if not before.partial:
        assert elements == pytest.approx(least)


@settings(max_examples=25, deadline=None)
@given(changes(), st.sampled_from(["a100", "cpu"]))
def test_the_quickest_of_those_that_receive_equally_much(change, hardware):
    before, after, shape = change
    even = evened(before, after, shape)
    prices, of = Prices(preset(hardware).for_ranks(before.mesh.devices)), TensorType.of(even, "f32")

    def total(steps: Steps) -> float:
        return sum(prices.step(step, of.with_shape(step_shape(step, even, shape))) for step in steps)

    known = plan_steps(before, after, even, size=shape)
    quick = plan_steps(before, after, even, size=shape, seconds=lambda step: total((step,)))
    assert ends(quick, before, after) and right(change, quick, 1)
    assert elements_moved(quick, even, shape) <= elements_moved(known, even, shape) * (1 + 1e-8)
    assert total(quick) <= total(known)


def test_the_last_gather_goes_over_the_fastest_links():
    """Equal bytes either way; what moves most should move where that costs least."""
    before, after = Layout.parse("a, b", MESH), Layout.parse("-, -", MESH)
    for slow in "ab":

        def seconds(step: Step, slow: str = slow) -> float:
            return step.elements_moved((8, 8)) * (9 if slow in {ref.name for ref in step.axes} else 1)

        steps = plan_steps(before, after, (8, 8), seconds=seconds)
        assert [step.axes[0].name for step in steps] == [slow, "b" if slow == "a" else "a"]
        assert elements_moved(steps, (8, 8)) == 56


def test_orders_of_scatters_and_gathers():
    steps = plan_steps(Layout.parse("-, - +a.b", Mesh(a=2, b=4)), Layout.parse("b, a", Mesh(a=2, b=4)), (8, 8))
    assert [step.kind for step in steps] == ["reduce_scatter"] * 2
    found = list(reorderings(steps))
    assert len(found) == 2 and all(ends(one, steps[0].before, steps[-1].after) for one in found)
    random = np.random.default_rng(0)
    array = random.integers(1, 1 << 20, (8, 8))
    for one in found:
        held = ranks.scatter(steps[0].before, array, random)
        for step in one:
            held = ranks.run(step, held)
        ranks.check(steps[-1].after, held, array)


@settings(max_examples=30, deadline=None)
@given(changes())
def test_more_memory_never_means_more_bytes(change):
    before, after, shape = change
    even = evened(before, after, shape)
    roomy = plan_steps(before, after, shape, allow_memory=True)
    assert ends(roomy, before, after) and right(change, roomy, 2)
    assert elements_moved(roomy, even) <= elements_moved(plan_steps(before, after, shape), even) * (1 + 1e-8)


def test_thrifty_plans_let_all_ranks_take_part():
    before, after = Layout.parse("-, - +b", MESH), Layout.parse("-, -", MESH)
    assert [step.kind for step in plan_steps(before, after, (8, 6))] == ["all_reduce"]
    thrifty = plan_steps(before, after, (8, 6), thrifty=True)
    assert [step.kind for step in thrifty] == ["slice", "all_reduce", "all_gather"]
    assert elements_moved(thrifty, (8, 6)) == fewest_elements(before, after, (8, 6)) == 60 < 72


def test_what_nobody_sends_is_cut_whether_it_divides_or_not():
    steps = plan_steps(Layout.parse("-, -", MESH), Layout.parse("a, b", MESH), (4, 8), size=(3, 5))
    assert [step.kind for step in steps] == ["slice", "slice"]
    steps = plan_steps(Layout.parse("a, -", MESH), Layout.parse("-, -", MESH), (4, 8), size=(4, 5))
    assert [step.kind for step in steps] == ["all_gather"]


def test_boxes_of_three_parts_against_four():
    mesh = Mesh(a=3, b=4)
    before, after = Layout.parse("a, b", mesh), Layout.parse("b, a", mesh)
    steps = plan_steps(before, after, (24, 36))
    assert [step.kind for step in steps] == ["permute"] and steps[0].fetched is not None
    assert elements_moved(steps, (24, 36)) == fewest_elements(before, after, (24, 36)) == 24 * 36 / 12
