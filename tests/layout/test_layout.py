"""Layouts: blocks cover the tensor, text round trips, free axes and holders, interning, errors."""

from __future__ import annotations

import itertools
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.layout import AxisRef, Layout, Mesh
from autoshard.layout.tensor_map import TensorMap, onto
from autoshard.util.errors import LayoutError, MeshError
from tests.redistribute import virtual_ranks as ranks

MESH = Mesh(dp=2, tp=4)


@st.composite
def placed(draw: st.DrawFn, partial: bool = True, most: int = 3) -> Layout:
    reduction = draw(st.sampled_from(["sum", "max", "min", "prod"]))
    return draw(ranks.layouts(draw(ranks.meshes()), draw(st.integers(0, most)), reduction, partial))


@settings(deadline=None)
@given(placed())
def test_text_gives_the_same_object(layout):
    assert Layout.parse(str(layout), layout.mesh) is layout
    assert pickle.loads(pickle.dumps(layout)) is layout
    assert Layout(layout.mesh, layout.dims, layout.partial, layout.reduction) is layout
    assert layout.final().partial == () and layout.final().dims == layout.dims


@settings(max_examples=60, deadline=None)
@given(placed(), st.data())
def test_blocks_cover_the_tensor(layout, data):
    """Also uneven ones: every element is held, by just one of the ranks that differ in what splits dims."""
    shape = tuple(data.draw(st.integers(1, 13)) for _ in range(layout.rank))
    held = np.zeros(shape, dtype=int)
    for rank in range(layout.mesh.devices):
        block = layout.block(rank, shape)
        held[block] += 1
        sizes = [piece.stop - piece.start for piece in block]
        assert all(0 <= size <= most for size, most in zip(sizes, layout.local_shape(shape), strict=True))
        if layout.divides(shape):
            assert tuple(sizes) == layout.local_shape(shape)
            array = np.arange(math.prod(shape)).reshape(shape)
            np.testing.assert_array_equal(array[block], ranks.block(layout, rank, array))
    assert np.all(held == layout.mesh.devices // layout.split)


@settings(max_examples=60, deadline=None)
@given(placed(), st.data())
def test_holders_hold_the_same_block(layout, data):
    shape = tuple(parts * data.draw(st.integers(1, 2)) for parts in layout.parts)
    blocks = [layout.block(rank, shape) for rank in range(layout.mesh.devices)]
    holders = layout.holders()
    for rank, block in enumerate(blocks):
        assert sorted(map(int, holders.members(rank))) == [one for one, other in enumerate(blocks) if other == block]


@settings(max_examples=80, deadline=None)
@given(placed())
def test_free_is_what_is_not_used(layout):
    free, mesh = layout.free(), layout.mesh
    assert math.prod(ref.size for ref in (*free, *layout.used)) == mesh.devices
    assert list(free) == sorted(free, key=mesh.sort_key)
    everything = [mesh.index(rank, (*layout.used, *free)) for rank in range(mesh.devices)]
    assert sorted(everything) == list(range(mesh.devices))
    assert Layout(mesh, [*layout.dims, free], layout.partial, layout.reduction).free() == ()


def test_free_between_pieces():
    layout = Layout.parse("d:(2)2, -", Mesh.flat(24))
    assert layout.free() == (AxisRef("d", 1, 2), AxisRef("d", 4, 6))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("dp, -", "dp, -"),
        ("dp.tp,-", "dp.tp, -"),
        ("- , tp:(1)2.dp", "-, tp:(1)2.dp"),
        ("dp, - +tp", "dp, - +tp"),
        ("dp, - max tp", "dp, - max tp"),
        ("- +tp.dp", "- +dp.tp"),
        ("()", "()"),
        ("", "()"),
        ("() +tp", "() +tp"),
        ("tp:(1)2.tp:(2)2", "tp"),
        ("tp:(2)2.tp:(1)2", "tp:(2)2.tp:(1)2"),
        ("tp:(1)4", "tp"),
    ],
)
def test_text(text, shown):
    assert str(Layout.parse(text, MESH)) == shown
    assert repr(Layout.parse(text, MESH)) == f"Layout({shown})"


def test_numbers_of_a_layout():
    layout = Layout.parse("dp, tp:(1)2, - +tp:(2)2", MESH)
    assert (layout.rank, layout.parts, layout.split) == (3, (2, 2, 1), 4)
    assert layout.local_shape((6, 5, 7)) == (3, 3, 7)
    assert layout.show_type((6, 10, 7), "f32") == "f32[6@dp, 10@tp:(1)2, 7] +tp:(2)2"
    assert not layout.is_replicated and Layout.replicated(MESH, 2).is_replicated
    assert not Layout.parse("- +tp", MESH).is_replicated


def test_axes_of_size_one_do_not_count():
    mesh = Mesh(a=1, b=3)
    assert Layout.parse("a, b", mesh) is Layout.parse("-, b", mesh)
    assert Layout.parse("- +a", mesh) is Layout.parse("- max a", mesh) is Layout.replicated(mesh, 1)


def test_mindspore_layouts():
    """mindspore's Layout: device matrix, alias names, then names per dim."""
    layout = Layout((2, 2, 2), ("dp", "sp", "mp"))
    assert TensorMap.of(layout("dp", "mp")) == TensorMap((2, 2, 2), (2, 0))
    assert TensorMap.of(layout(("dp", "mp"), "sp")) == TensorMap((2, 2, 2), ((2, 0), 1))
    assert TensorMap.of(layout("None", "sp")) == TensorMap((2, 2, 2), (-1, 1))
    assert layout("dp", None) is layout("dp", "-") is Layout.parse("dp, -", Mesh(dp=2, sp=2, mp=2))
    assert layout(("mp", "dp"), "None").block(1, (8, 4)) == (slice(4, 6), slice(0, 4))


def test_mindspore_rank_list():
    order = [3, 1, 2, 0]
    layout = Layout((2, 2), ("a", "b"), order)
    assert layout.mesh is Mesh(a=2, b=2, order=order) is Layout((2, 2), ("a", "b"), rank_list=order).mesh
    assert layout("a").block(3, (4,)) == (slice(0, 2),) and layout("a").block(2, (4,)) == (slice(2, 4),)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Layout.parse("tp, tp", MESH),
            r"layout uses mesh axis 'tp' for dim 1, but 'tp' already serves dim 0; an axis can be used once\. "
            r"Free axes of the mesh: dp",
        ),
        (
            lambda: Layout.parse("tp:(1)2, dp +tp", MESH),
            r"mesh axis 'tp' for partial, but 'tp:\(1\)2' already serves dim 0; .*mesh: tp:\(2\)2$",
        ),
        (
            lambda: Layout.parse("d:(1)2, d:(1)3", Mesh.flat(6)),
            r"'d:\(1\)3' for dim 1, but 'd:\(1\)2' already",
        ),
        (
            lambda: Layout.parse("d:(1)4, d:(6)2", Mesh.flat(12)),
            r"'d:\(6\)2' for dim 1, but 'd:\(1\)4' already",
        ),
        (lambda: Layout.parse("dp.dp", MESH), "'dp' for dim 0, but 'dp' already serves dim 0"),
        (
            lambda: Layout.parse("xp, -", MESH),
            "cannot read layout 'xp, -': unknown axis 'xp'; the mesh has dp=2 tp=4",
        ),
        (lambda: Layout.parse("tp:(3)2", MESH), r"cannot read layout.*sub-axis tp:\(3\)2 does not exist"),
        (lambda: Layout.parse("dp, - tp", MESH), "cannot read axis '- tp'"),
        (
            lambda: Layout(MESH, [[AxisRef("tp", 1, 3)]]),
            r"what the mesh 'dp=2 tp=4' does not have: sub-axis tp:\(1\)3",
        ),
        (lambda: Layout(MESH, [[AxisRef("x", 1, 2)]]), "does not have: unknown axis 'x'"),
        (
            lambda: Layout(MESH, [[]], [AxisRef("x", 1, 2)]),
            "partial along 'x', which mesh 'dp=2 tp=4' does not have",
        ),
        (
            lambda: Layout(MESH, [[]], [MESH.axis("tp")], "mean"),
            "unknown reduction 'mean'; one of sum, max, min, prod",
        ),
        (lambda: Layout((2, 2), ("a",)), r"device matrix \(2, 2\) has 2 axes but 1 names \('a',\)"),
        (lambda: Layout((2, 2), ("a", "b"))("c"), "cannot make a layout: unknown axis 'c'"),
        (
            lambda: Layout((2, 2), ("a", "interleaved_parallel")),
            "interleaved_parallel cuts a tensor further on one",
        ),
        (lambda: Layout(MESH, [], rank_list=[0, 1]), "rank_list goes with a device matrix"),
        (
            lambda: Layout.replicated(MESH, 2).check_fits((4,), "weight"),
            r"layout \[-, -\] of weight has 2 dims, but the ",
        ),
    ],
)
def test_errors(make, message):
    with pytest.raises(LayoutError, match=message):
        make()


@settings(max_examples=80, deadline=None)
@given(placed(), st.data())
def test_onto_keeps_every_block(layout, data):
    sizes = data.draw(st.sampled_from(list(itertools.product((1, 2, 3, 4, 6), repeat=3))))
    divisor = math.prod(sizes)
    if layout.mesh.devices % divisor:
        return
    mesh = Mesh([*zip("xyz", sizes, strict=True), ("w", layout.mesh.devices // divisor)], layout.mesh.order)
    try:
        moved = onto(layout, mesh)
    except LayoutError as error:
        assert "does not fit mesh" in str(error)
        return
    assert moved.mesh is mesh and moved.reduction == layout.reduction and moved.parts == layout.parts
    for rank in range(mesh.devices):
        assert moved.block(rank, layout.parts) == layout.block(rank, layout.parts)
        assert mesh.index(rank, moved.partial) == layout.mesh.index(rank, layout.partial)
    assert onto(moved, layout.mesh) is layout


def test_onto_a_flat_mesh_always_works_for_whole_axes():
    mesh = Mesh(a=3, b=2, c=4)
    for text in ("a, b", "c.b, a", "b, - +c", "-, c.a"):
        layout = Layout.parse(text, mesh)
        assert onto(onto(layout, Mesh.flat(24)), mesh) is layout


def test_onto_errors():
    with pytest.raises(LayoutError, match=r"layout \[dp, -\] is on mesh 'dp=2 tp=4' \(8 devices\), .*'d=6' \(6 dev"):
        onto(Layout.parse("dp, -", MESH), Mesh.flat(6))
    with pytest.raises(LayoutError, match="is on mesh"):
        onto(Layout.parse("dp, -", MESH), Mesh(dp=2, tp=4, order=range(7, -1, -1)))
    with pytest.raises(LayoutError, match=r"device matrix \[2, 3\] does not fit mesh 'a=3 b=2'"):
        onto(Layout.parse("x", Mesh(x=2, y=3)), Mesh(a=3, b=2))


def test_a_mesh_error_says_the_ranks():
    with pytest.raises(MeshError, match="must list each of the 4 ranks"):
        Layout((2, 2), ("a", "b"), [0, 1])


def test_former_names_of_a_replicated_layout_still_work():
    with pytest.warns(DeprecationWarning, match=r"Layout\.replicated"):
        layout = Layout.whole(MESH, 2)
    assert layout is Layout.replicated(MESH, 2) and layout.is_replicated
    split = Layout.parse("dp, -", MESH)
    with pytest.warns(DeprecationWarning, match="is_replicated"):
        assert layout.is_whole and not split.is_whole
