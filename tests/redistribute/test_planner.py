"""plan_steps: run on virtual ranks the steps bring every block where it should be, with few bytes."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autoshard.layout import AxisRef, Layout, Mesh
from autoshard.layout.tensor_map import TensorMap
from autoshard.redistribute.bound import fewest_elements
from autoshard.redistribute.normal_form import direct_steps
from autoshard.redistribute.planner import is_cut, plan_steps
from autoshard.redistribute.positions import cutter, digits_of
from autoshard.redistribute.step import Step
from autoshard.util.errors import LayoutError, RedistributeError
from tests.redistribute import virtual_ranks as ranks

MESH = Mesh(dp=2, tp=4)


def parse(text: str, mesh: Mesh = MESH) -> Layout:
    return Layout.parse(text, mesh)


def run(before: Layout, after: Layout, shape: tuple[int, ...], seed: int = 0) -> tuple[Step, ...]:
    """Plan, check that the steps are a chain, execute them, check every rank's block and the cost."""
    steps = plan_steps(before, after, shape)
    ends = [before, *(step.after for step in steps)]
    assert all(step.before is end for step, end in zip(steps, ends, strict=False)) and ends[-1] is after
    random = np.random.default_rng(seed)
    array = random.integers(1, 1 << 20, shape)
    held = ranks.scatter(before, array, random)
    ranks.check(before, held, array)
    for step in steps:
        held = ranks.run(step, held)
        ranks.check(step.after, held, array)
        assert step.elements_moved(shape) == pytest.approx(ranks.sent(step, shape))
    return steps


def moved(steps: tuple[Step, ...], shape: tuple[int, ...]) -> float:
    return sum(step.elements_moved(shape) for step in steps)


@st.composite
def changes(draw: st.DrawFn, partial: bool = True) -> tuple[Layout, Layout, tuple[int, ...]]:
    mesh = draw(ranks.meshes())
    rank = draw(st.integers(1, 3))
    before = draw(ranks.layouts(mesh, rank, partial=partial))
    after = draw(ranks.layouts(mesh, rank, partial=partial))
    return before, after, ranks.shape_for(before, after, extra=draw(st.integers(1, 2)))


@settings(max_examples=120, deadline=None)
@given(changes(), st.integers(0, 1 << 16))
def test_steps_bring_every_block_home(change, seed):
    before, after, shape = change
    steps = run(before, after, shape, seed)
    assert moved(steps, shape) <= ranks.gather_all(before, after, shape) * (1 + 1e-9)
    assert len(steps) <= 4 * len(shape) + 3
    assert (steps == ()) == (before is after)


@settings(max_examples=80, deadline=None)
@example((*(Layout.parse(text, Mesh(a=12)) for text in ("a:(1)4", "a:(1)3")), (12,)))
@given(changes(partial=False))
def test_only_gathers_make_blocks_larger(change):
    before, after, shape = change
    for step in plan_steps(before, after, shape):
        # Boxes are fetched into blocks of whatever size is wanted: quarters make thirds.
        equal = step.kind == "permute" and step.rounds == 1 and step.fetched is None
        if step.kind in ("slice", "all_to_all") or equal:
            assert math.prod(step.after.local_shape(shape)) <= math.prod(step.before.local_shape(shape))


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_other_reductions(data):
    mesh = data.draw(ranks.meshes())
    reduction = data.draw(st.sampled_from(["max", "min", "prod"]))
    before = data.draw(ranks.layouts(mesh, 2, reduction))
    after = data.draw(ranks.layouts(mesh, 2, partial=False))
    shape = ranks.shape_for(before, after)
    steps = run(before, after, shape)
    assert moved(steps, shape) <= ranks.gather_all(before, after, shape) * (1 + 1e-9)


@settings(max_examples=80, deadline=None)
@given(changes())
def test_direct_plans_of_final_values_are_as_good_as_the_bound(change):
    before, after, shape = change
    direct = direct_steps(before.final(), after.final())
    if direct is not None:
        assert moved(direct, shape) == pytest.approx(fewest_elements(before.final(), after.final(), shape))


@settings(max_examples=80, deadline=None)
@given(changes(partial=False), st.integers(1, 3))
def test_the_bound_is_what_some_rank_lacks(change, factor):
    """Counted by the elements themselves; sizes that do not divide included."""
    before, after, shape = change
    even = math.prod(shape) < 1 << 12
    for sizes in (shape, tuple(size * factor + 1 for size in shape)) if even else (shape,):
        array = np.arange(math.prod(sizes)).reshape(sizes)
        lacking = max(
            len(np.setdiff1d(array[after.block(rank, sizes)], array[before.block(rank, sizes)]))
            for rank in range(before.mesh.devices)
        )
        assert fewest_elements(before, after, sizes) == lacking
    assert moved(plan_steps(before, after, shape), shape) >= fewest_elements(before, after, shape) - 1e-9


@settings(max_examples=60, deadline=None)
@given(changes(partial=False))
def test_exchanges_of_common_digits_move_as_little_as_the_bound(change):
    before, after, shape = change
    if digits_of(before, after) is not None and cutter(before, after) is not None:
        steps = plan_steps(before, after, shape)
        assert moved(steps, shape) == pytest.approx(fewest_elements(before, after, shape))


CUT_UNLIKE = [Layout.parse(text, Mesh(a=2, b=6)) for text in ("a.b:(1)3 +b:(3)2", "a.b:(1)2 +b:(2)3")]
CUT_UNLIKE_APART = [Layout.parse(text, Mesh(a=12)) for text in ("- +a:(4)3", "a:(3)4 +a:(1)3")]


@settings(max_examples=60, deadline=None)
@example((*CUT_UNLIKE, (12,)))
@example((*CUT_UNLIKE_APART, (4,)))
@given(changes())
def test_no_plan_moves_less_than_the_bound(change):
    before, after, shape = change
    least = fewest_elements(before, after, shape)
    assert fewest_elements(before, after, shape, counted=False) <= least + 1e-9
    assert moved(plan_steps(before, after, shape), shape) >= least - 1e-9


@settings(max_examples=80, deadline=None)
@given(changes())
def test_no_block_is_larger_than_the_larger_end(change):
    before, after, shape = change
    room = max(math.prod(end.local_shape(shape)) for end in (before, after))
    assert all(math.prod(step.after.local_shape(shape)) <= room for step in plan_steps(before, after, shape))


@pytest.mark.parametrize(
    ("sizes", "before", "after", "shape", "blocks"),
    [
        ((4, 2), "a, b", "b, a", (12, 20), 1),
        ((2, 4), "a, b", "b, a", (12, 20), 1),
        ((2, 2), "a, b, -", "-, a, b", (4, 6, 10), 1),
        ((2, 4), "a, b, -, -", "-, -, a, b", (2, 4, 6, 12), 7 / 8),
        ((2, 4), "a.b, -", "b, a", (8, 6), 1),
        ((3, 2), "a.b, -", "-, a", (6, 12), 2 - 1 / 3),
    ],
)
def test_one_exchange_does_what_several_steps_would(sizes, before, after, shape, blocks):
    """What some rank receives, in blocks before: of all moved elements none comes twice."""
    mesh = Mesh(zip("ab", sizes, strict=True))
    start, end = Layout.parse(before, mesh), Layout.parse(after, mesh)
    local = math.prod(start.local_shape(shape))
    assert moved(run(start, end, shape), shape) == pytest.approx(blocks * local)


@pytest.mark.parametrize(
    ("before", "after"),
    [("tp, -", "-, - +tp"), ("tp, -", "dp, - +tp"), ("dp.tp, -", "dp, - +tp")],
)
def test_a_split_value_becomes_terms_where_it_is(before, after):
    assert [step.kind for step in run(parse(before), parse(after), (24, 40))] == ["keep"]


def test_values_become_terms_on_the_way():
    """Each rank fetches the boxes that its group lacks, not a block of its own first: half as much."""
    steps = run(parse("tp, dp"), parse("dp, - +tp"), (24, 40))
    assert [str(step) for step in steps] == ["permute over=dp.tp boxes=1"]
    assert moved(steps, (24, 40)) == 24 * 40 / 16


def test_pieces_that_clash_change_hands_without_a_gather():
    mesh = Mesh.flat(6)
    steps = run(Layout.parse("d:(1)2, d:(2)3", mesh), Layout.parse("d:(3)2, d:(1)3", mesh), (6, 12))
    assert [step.kind for step in steps] == ["permute"]


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [
        ("-, -", "dp, tp", ["slice", "slice"]),
        ("dp, -", "dp.tp, -", ["slice"]),
        ("dp.tp, -", "dp, -", ["all_gather"]),
        ("dp, tp", "-, -", ["all_gather", "all_gather"]),
        ("tp, -", "-, tp", ["all_to_all"]),
        ("dp.tp, -", "dp, tp", ["all_to_all"]),
        ("-, - +tp", "-, -", ["all_reduce"]),
        ("-, - +dp.tp", "-, -", ["all_reduce"]),
        ("-, - +tp", "tp, -", ["reduce_scatter"]),
        ("dp, - +tp", "dp.tp, -", ["reduce_scatter"]),
        ("-, - +tp", "dp, -", ["slice", "all_reduce"]),
        ("dp, - +tp", "-, -", ["all_reduce", "all_gather"]),
        ("-, - +tp", "dp.tp, -", ["slice", "reduce_scatter"]),
        ("dp, - +tp", "-, tp", ["reduce_scatter", "all_gather"]),
        ("-, -", "-, - +tp", ["keep"]),
        ("-, - +dp", "-, - +dp.tp", ["keep"]),
        ("-, - +dp.tp", "-, - +dp", ["all_reduce"]),
        ("dp.tp, -", "tp.dp, -", ["permute"]),
        ("-, - max tp", "-, -", ["all_reduce"]),
        ("-, - max tp", "-, tp", ["reduce_scatter"]),
        ("dp:(1)2, -", "-, dp", ["all_to_all"]),
        ("tp:(1)2, -", "tp, -", ["slice"]),
        ("tp, -", "tp:(1)2, -", ["all_gather"]),
        ("tp, -", "tp:(1)2, tp:(2)2", ["all_to_all"]),
    ],
)
def test_kinds(before, after, kinds):
    steps = run(parse(before), parse(after), (24, 40))
    assert [step.kind for step in steps] == kinds


def test_equal_layouts_need_nothing():
    assert plan_steps(parse("dp, tp"), parse("dp, tp"), (10, 24)) == ()
    assert plan_steps(parse("dp, - +tp"), parse("dp, - +tp"), (10, 24)) == ()


def test_a_partial_value_that_should_be_split_is_scattered_however_it_is_split():
    mesh = Mesh(a=2, b=3, c=4)
    for refs in itertools.permutations("abc", 2):
        after = Layout.parse(f"{refs[0]}.{refs[1]}, -", mesh)
        steps = run(Layout.parse("-, - +a.b.c", mesh), after, (24, 5))
        assert "reduce_scatter" in [step.kind for step in steps]
        assert not any(step.kind == "all_gather" for step in steps)


def test_swap_of_two_axes_is_one_exchange():
    mesh = Mesh(a=4, b=4)
    steps = run(Layout.parse("a, b", mesh), Layout.parse("b, a", mesh), (12, 20))
    assert [step.kind for step in steps] == ["permute"]


def test_reorder_of_axes_whose_sizes_share_no_factor():
    mesh = Mesh(a=2, b=3)
    steps = run(Layout.parse("a.b, -", mesh), Layout.parse("b.a, -", mesh), (12, 5))
    assert [step.kind for step in steps] == ["permute"]


def test_an_axis_replaced_by_a_free_one_is_cut_before_it_is_gathered():
    mesh = Mesh(a=4, b=2)
    shape = (16, 6)
    steps = run(Layout.parse("a, -", mesh), Layout.parse("b, -", mesh), shape)
    assert moved(steps, shape) == 48  # half the tensor, where gathering it whole would move 72
    assert steps[-1].kind == "all_gather" and "all_gather" not in [step.kind for step in steps[:-1]]


@pytest.mark.parametrize(
    ("mesh", "before", "after", "elements"),
    [
        (6, "d:(1)2, -", "d:(1)3, -", 12),
        (6, "d:(1)2, -", "-, d:(1)3", 12),
        (12, "d:(1)4, -", "d:(1)6, -", 6),
        (12, "d:(1)6, -", "d:(1)4, -", 12),
        (6, "d:(1)2, d:(2)3", "d:(1)3, d:(3)2", None),
        (6, "d:(1)2, - +d:(2)3", "d:(1)3, -", None),
        (6, "-, - +d:(1)2", "-, - +d:(1)3", None),
        (24, "d:(2)6, d:(1)2", "d:(1)3, d:(6)4", None),
    ],
)
def test_pieces_that_do_not_fit_each_other_meet_in_between(mesh, before, after, elements):
    flat = Mesh.flat(mesh)
    start, end = Layout.parse(before, flat), Layout.parse(after, flat)
    assert cutter(start, end) is None
    shape = ranks.shape_for(start, end) if elements is None else (12, 6)
    steps = run(start, end, shape)
    assert elements is None or moved(steps, shape) == elements
    assert moved(steps, shape) <= ranks.gather_all(start, end, shape)


def test_terms_of_one_reduction_end_before_those_of_another_begin():
    assert [step.kind for step in plan_steps(parse("-, - max tp"), parse("-, - +tp"), (4, 6))] == [
        "reduce_scatter",
        "keep",
    ]


def test_terms_of_a_max_along_part_of_an_axis():
    steps = run(parse("-, - max tp"), parse("-, - max tp:(1)2"), (4, 6))
    assert [str(step) for step in steps] == ["all_reduce over=tp:(2)2 op=max"]


def test_a_device_order_is_followed():
    mesh = Mesh([("a", 2), ("b", 3)], order=[5, 3, 1, 0, 4, 2])
    for before, after in ranks.pairs_of(["a, b", "b, a", "a.b, -", "-, b.a", "b, - +a", "-, -"]):
        run(Layout.parse(before, mesh), Layout.parse(after, mesh), (12, 18))


def test_mindspore_redistributions_of_eight_devices():
    """Pairs of strategies that MindSpore redistributes between, with what at least has to move."""
    mesh, shape = Mesh.flat(8), (64, 64)
    for before, after in ranks.pairs_of([(8, 1), (1, 8), (4, 2), (2, 4), (2, 1), (1, 2)]):
        start, end = (_split(mesh, parts) for parts in (before, after))
        steps = run(start, end, shape)
        assert moved(steps, shape) <= ranks.gather_all(start, end, shape)
    assert [s.kind for s in plan_steps(_split(mesh, (2, 1)), _split(mesh, (2, 4)), shape)] == ["slice"]
    assert [s.kind for s in plan_steps(_split(mesh, (8, 1)), _split(mesh, (1, 8)), shape)] == ["all_to_all"]


def _split(mesh: Mesh, parts: tuple[int, int]) -> Layout:
    rest = mesh.devices // math.prod(parts)
    return TensorMap((*parts, rest), (2, 1)).layout(mesh)


def test_is_cut():
    assert is_cut(parse("dp, -"), parse("dp.tp, -"))
    assert is_cut(parse("tp:(1)2, -"), parse("tp, dp"))
    assert is_cut(parse("-, - +dp"), parse("tp, - +dp"))
    assert not is_cut(parse("dp, -"), parse("tp.dp, -"))
    assert not is_cut(parse("-, - +dp"), parse("-, -"))
    assert not is_cut(parse("-, - +dp"), parse("-, - max dp"))
    assert not is_cut(parse("tp:(2)2, -"), parse("tp, -"))


@settings(max_examples=120, deadline=None)
@given(changes(partial=False))
def test_is_cut_means_that_nothing_moves(change):
    before, after, shape = change
    free = all(not step.communicates for step in plan_steps(before, after, shape))
    assert is_cut(before, after) == free


@pytest.mark.parametrize(
    ("before", "after", "shape", "message"),
    [
        ("-, -", "-, - max tp", (4, 4), "terms of a max cannot be made from other values"),
        ("-, - +tp", "-, - max tp", (4, 4), "terms of a max cannot be made from other values"),
        ("-, - max tp:(1)2", "-, - max tp", (4, 4), "terms of a max cannot be made from other values"),
    ],
)
def test_errors(before, after, shape, message):
    with pytest.raises(RedistributeError, match=message):
        plan_steps(parse(before), parse(after), shape)


def test_errors_of_mesh_and_rank():
    with pytest.raises(RedistributeError, match="their meshes 'dp=2 tp=4' and 'd=8' differ"):
        plan_steps(parse("dp, -"), Layout.parse("d, -", Mesh.flat(8)), (8, 8))
    with pytest.raises(LayoutError, match=r"layout \[dp\] of the tensor has 1 dims"):
        plan_steps(parse("dp"), parse("dp, -"), (8, 8))
    with pytest.raises(LayoutError, match=r"layout \[dp\] of the tensor has 1 dims"):
        plan_steps(parse("dp, -"), parse("dp"), (8, 8))


def test_a_large_mesh_costs_no_more_than_a_small_one():
    mesh = Mesh(dp=1024, tp=1024)
    steps = plan_steps(Layout.parse("dp, - +tp", mesh), Layout.parse("-, tp", mesh), (1024, 1 << 20))
    assert [step.kind for step in steps] == ["reduce_scatter", "all_gather"]
    assert len(steps[0].groups.members(5)) == 1024


def test_text_of_steps():
    mesh = Mesh(dp=2, tp=4)
    steps = plan_steps(Layout.parse("tp, -", mesh), Layout.parse("-, tp", mesh), (8, 8))
    assert [str(step) for step in steps] == ["all_to_all over=tp dim=1 to_dim=0"]
    assert str(Step("slice", parse("-"), parse("tp:(1)2"), (AxisRef("tp", 1, 2),), 0)) == "slice over=tp:(1)2 dim=0"


_PLANS = """
import itertools
from autoshard.layout import Layout, Mesh
from autoshard.redistribute.planner import plan_steps
mesh = Mesh(a=2, b=2, c=2)
texts = ["a, b", "b.c, a", "-, c.a +b", "c, - +a.b", "- , b.a.c", "-, - +a.b.c", "c.b, a"]
for before, after in itertools.permutations([Layout.parse(text, mesh) for text in texts], 2):
    print(before, "|", after, "|", *plan_steps(before, after, (8, 8)), sep="; ")
"""


def test_all_processes_find_the_same_steps():
    """Ranks plan each for itself; what they find must not depend on the seed of string hashes."""
    runs = [
        subprocess.run(
            [sys.executable, "-c", _PLANS],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    ]
    assert runs[0] == runs[1] == runs[2] and runs[0].count("\n") == 42


def test_priced_bytes():
    gather = plan_steps(parse("tp, -"), parse("-, -"), (8, 6))[0]
    scatter = plan_steps(parse("-, - +tp"), parse("tp, -"), (8, 6))[0]
    assert gather.nbytes_priced((8, 6), 4) == scatter.nbytes_priced((8, 6), 4) == 192
    assert gather.communicates and not plan_steps(parse("-, -"), parse("tp, -"), (8, 6))[0].communicates


def test_terms_along_pieces_of_unequal_sizes_are_combined():
    """6 is cut as 2 by 3 on its own and as 3 by 2 by what the other end wants: one form must not hide the other."""
    flat = Mesh.flat(12)
    run(Layout.parse("d:(6)2, - +d:(1)6", flat), Layout.parse("d:(1)3, -", flat), (12, 4))
