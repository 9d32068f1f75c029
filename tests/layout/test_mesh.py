"""Meshes: coordinates, groups and intervals against an enumeration of all ranks; text; errors."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.layout import AxisRef, Mesh
from autoshard.util.errors import MeshError
from tests.redistribute import virtual_ranks as ranks

SHAPES = [(1,), (6,), (3, 2), (2, 1, 3), (1, 6), (4, 3, 2), (2, 2, 2), (3, 1, 1, 4)]


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    sizes = draw(st.sampled_from(SHAPES))
    order = draw(st.none() | st.permutations(range(math.prod(sizes))))
    return Mesh(zip("abcd", sizes, strict=False), order)


@given(meshes())
def test_axes_number_the_grid(mesh):
    grid = np.array(mesh.order or range(mesh.devices)).reshape([size for _, size in mesh.axes])
    for place, rank in np.ndenumerate(grid):
        found = [mesh.coordinate(int(rank), mesh.axis(name)) for name in mesh.names]
        assert tuple(found) == place
        assert mesh.index(int(rank), mesh.all_axes) == mesh.position(int(rank))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_pieces_of_axes_are_digits(data):
    mesh = data.draw(meshes())
    refs = tuple(data.draw(ranks.pieces(mesh)))
    for rank in range(mesh.devices):
        assert [mesh.coordinate(rank, ref) for ref in refs] == [ranks.along(mesh, rank, ref) for ref in refs]
        assert mesh.index(rank, refs) == ranks.position(mesh, rank, refs)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_groups_are_the_ranks_that_agree_elsewhere(data):
    mesh = data.draw(meshes())
    refs = tuple(data.draw(ranks.pieces(mesh)))
    refs = refs[: data.draw(st.integers(0, len(refs)))]
    groups = mesh.groups(refs)
    assert groups.size == math.prod(ref.size for ref in refs) and groups.world == mesh.devices
    for rank in range(mesh.devices):
        members = list(groups.members(rank))
        assert members == ranks.group(mesh, rank, refs)
        assert members[groups.position(rank)] == rank
        places = sorted(mesh.position(int(member)) for member in members)
        assert groups.span == places[-1] - places[0] + 1


def test_group_text_and_span():
    mesh = Mesh(dp=2, tp=4)
    assert str(mesh.groups([mesh.axis("tp")])) == "tp" and mesh.groups([mesh.axis("tp")]).span == 4
    assert str(mesh.groups([mesh.axis("dp"), mesh.ref("tp:(1)2")])) == "dp.tp:(1)2"
    assert str(mesh.groups([])) == "-" and mesh.groups([]).size == 1
    assert mesh.groups([mesh.axis("dp")]).span == 5


@given(meshes(), st.integers(1, 6), st.integers(1, 24))
def test_interval_is_a_slice_of_the_flattened_mesh(mesh, start, size):
    done, cuts = 1, {1}
    for _, whole in mesh.axes:
        cuts |= {done * d for d in range(1, whole + 1) if whole % d == 0}
        done *= whole
    if not {start, start * size} <= cuts:
        if size > 1:
            with pytest.raises(MeshError):
                mesh.interval(start, size)
        return
    refs = mesh.interval(start, size)
    assert math.prod(ref.size for ref in refs) == size
    step = mesh.devices // (start * size)
    for rank in range(mesh.devices):
        assert mesh.index(rank, refs) == mesh.position(rank) // step % size


def test_intervals_across_axes():
    mesh = Mesh(a=2, b=3, c=4)
    assert mesh.interval(1, 6) == (AxisRef("a", 1, 2), AxisRef("b", 1, 3))
    assert mesh.interval(2, 6) == (AxisRef("b", 1, 3), AxisRef("c", 1, 2))
    assert mesh.interval(12, 2) == (AxisRef("c", 2, 2),)
    with pytest.raises(MeshError, match="3 parts behind the first 1 of mesh 'a=2 b=3 c=4' would cut axis b=3 unevenly"):
        mesh.interval(1, 3)
    with pytest.raises(MeshError, match="has no 4 parts behind the first 12"):
        mesh.interval(12, 4)


@given(meshes())
def test_text_and_pickles_give_the_same_object(mesh):
    assert pickle.loads(pickle.dumps(mesh)) is mesh
    assert Mesh.parse(str(mesh)) is mesh
    assert Mesh(mesh.axes, mesh.order) is mesh


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("dp=2 tp=4", (("dp", 2), ("tp", 4))),
        ("dp=2,tp=4", (("dp", 2), ("tp", 4))),
        ("2x3", (("x0", 2), ("x1", 3))),
        ("6", (("d", 6),)),
        (" d=1 ", (("d", 1),)),
    ],
)
def test_parse(text, axes):
    assert Mesh.parse(text).axes == axes and Mesh.parse(text).order is None


def test_order_in_text():
    mesh = Mesh.parse("a=2,b=2 order=0.2.1.3")
    assert mesh.order == (0, 2, 1, 3) and str(mesh) == "a=2 b=2 order=0.2.1.3"
    assert Mesh.parse("a=2 b=2 order=0.1.2.3") is Mesh(a=2, b=2)
    assert Mesh(a=2, b=2, order=np.array([3, 2, 1, 0])).order == (3, 2, 1, 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Mesh(), "a mesh needs at least one axis"),
        (lambda: Mesh([("a b", 2)]), "axis name 'a b' must be letters, digits and _"),
        (lambda: Mesh([("order", 2)]), "axis name 'order' must be"),
        (lambda: Mesh([("a", 2), ("a", 3)]), "axis 'a' occurs twice in mesh axes a, a"),
        (lambda: Mesh(a=0), "axis 'a' has size 0; sizes are at least 1"),
        (lambda: Mesh(a=2.5), "axis 'a' has size 2.5; sizes are whole numbers"),
        (
            lambda: Mesh(a=2, b=2, order=[0, 1, 2]),
            r"device order \[0, 1, 2\] must list each of the 4 ranks 0..3 once",
        ),
        (lambda: Mesh(a=2, b=2, order=[0, 1, 1, 3]), "must list each of the 4 ranks"),
        (lambda: Mesh(a=2, b=2, order=[1, 2, 3, 4]), "must list each of the 4 ranks"),
        (lambda: Mesh(a=2, b=2, order=[0]), r"device order \[0\] must list each"),
        (lambda: Mesh("dp=2"), "pairs of a name and a size, not 'dp=2'; write Mesh"),
        (lambda: Mesh.parse(8), "cannot read 8 as a mesh; write text"),
        (lambda: Mesh.parse("dp=2 tp"), "cannot read 'tp' in mesh 'dp=2 tp'"),
        (lambda: Mesh(a=2).axis("b"), "unknown axis 'b'; the mesh has a=2"),
        (lambda: Mesh(a=4).ref("a:(3)2"), r"sub-axis a:\(3\)2 does not exist.*size 4 of axis 'a'"),
        (lambda: Mesh(a=4).ref("a:(0)2"), "does not exist"),
        (lambda: Mesh(a=4).ref("a:2"), "cannot read axis 'a:2'; write a name like 'tp' or a sub-axis"),
    ],
)
def test_errors(make, message):
    Mesh(a=2, b=2)
    with pytest.raises(MeshError, match=message):
        make()


def test_refs_of_text():
    mesh = Mesh(dp=2, tp=12)
    for text in ("dp", "tp", "tp:(1)4", "tp:(2)3", "tp:(6)2"):
        assert mesh.show_ref(mesh.ref(text)) == text
    assert mesh.show_ref(mesh.ref("tp:(1)12")) == "tp"
    assert sorted(map(mesh.ref, ["tp:(6)2", "tp:(1)2", "dp"]), key=mesh.sort_key) == [
        mesh.ref("dp"), mesh.ref("tp:(1)2"), mesh.ref("tp:(6)2"),
    ]  # fmt: skip
