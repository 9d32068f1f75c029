"""Pictures: blocks of layouts, meshes, links, and the timeline and memory of a step."""

from __future__ import annotations

from xml.etree import ElementTree as etree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import autoshard as ash
from autoshard import Layout, Mesh
from autoshard.layout.pictures import layout_svg, mesh_svg
from autoshard.report.cluster_picture import cluster_svg
from autoshard.util.errors import LayoutError, MeshError, PlanError
from autoshard.util.svg import Svg
from autoshard.view.plots import plot
from costmodel import preset

SPACE = "{http://www.w3.org/2000/svg}"


def parts(picture: str, tag: str) -> list[etree.Element]:
    return list(etree.fromstring(picture).iter(SPACE + tag))


def words(picture: str) -> list[str]:
    return [one.text or "" for one in parts(picture, "text")]


MESHES = st.sampled_from([Mesh.parse(text) for text in ("dp=2 tp=4", "a=3 b=2 c=2", "d=6", "x=1 y=5")])


@given(mesh=MESHES, data=st.data())
def test_every_rank_is_in_the_block_that_it_holds(mesh, data):
    axes = data.draw(st.permutations(mesh.names))
    dims = [[] for _ in range(data.draw(st.integers(0, 3)))]
    for name in axes:
        place = data.draw(st.integers(-1, len(dims) - 1))
        if place >= 0:
            dims[place].append(mesh.axis(name))
    layout = Layout(mesh, [tuple(dim) for dim in dims])
    shape = [12 * 5 + 1] * len(dims)
    boxes = [one[0].text or "" for one in parts(layout_svg(shape, layout), "rect")]
    held = [ranks for title in boxes for ranks in ranges(title)]
    assert len(boxes) == layout.split
    assert sorted(held) == list(range(mesh.devices))


def ranges(title: str) -> list[int]:
    """The ranks of "ranks 0-3,6"."""
    pairs = [part.split("-") for part in title.removeprefix("ranks ").split(",")]
    return [rank for pair in pairs for rank in range(int(pair[0]), int(pair[-1]) + 1)]


def test_blocks_are_labelled_by_their_elements():
    found = words(layout_svg((7, 10), Layout.parse("dp, tp", Mesh.parse("dp=2 tp=4"))))
    assert found[0] == "[7, 10] as [dp, tp] on mesh dp=2 tp=4"
    assert {"0:4", "4:7", "0:3", "9:10"} <= set(found)
    partial = words(layout_svg((6,), Layout.parse("- +tp", Mesh.parse("dp=2 tp=4"))))
    assert partial[-1] == "each rank holds a term of a sum over tp"


def test_equal_blocks_have_one_colour_and_others_others():
    boxes = parts(layout_svg((8, 8), Layout.parse("dp, tp", Mesh.parse("dp=2 tp=4"))), "rect")
    assert len({one.get("fill") for one in boxes}) == 8


def test_a_mesh_shows_where_each_rank_stands():
    picture = mesh_svg(Mesh.parse("pp=2 dp=3 tp=2"))
    assert len(parts(picture, "rect")) == 12
    assert {"pp 0", "pp 1", "dp 2", "tp 1", "11"} <= set(words(picture))


def test_a_cluster_is_boxes_in_boxes():
    found = words(cluster_svg(preset("h100"), 64))
    assert found[0].startswith("h100") and "5 more" in found and "63" in found and "30" not in found
    assert sum("nvlink" in one for one in found) == 3


def test_what_no_picture_can_show():
    with pytest.raises(MeshError, match="1024 devices at most"):
        mesh_svg(Mesh.parse("a=10000"))
    with pytest.raises(LayoutError, match="a picture shows at most 4096"):
        layout_svg((10**5,), Layout.parse("a", Mesh.parse("a=10000")))
    with pytest.raises(LayoutError, match="dims"):
        layout_svg((4, 4), Layout.parse("a", Mesh.parse("a=4")))


def test_names_are_no_markup():
    picture = Svg()
    picture.words(0, 12, "</text><script>alert(1)</script>")
    picture.box(0, 0, 1, 1, title="<img src=x onerror=alert(1)>")
    assert "<script" not in picture.text() and "<img" not in picture.text()


# -- of a step


@pytest.fixture(scope="module")
def planned():
    x, w, v = (np.ones(shape, np.float32) for shape in ((24, 16), (16, 32), (32, 8)))

    def model(x, w, v):
        return ash.ops.matmul(ash.ops.relu(ash.ops.matmul(x, w)), v)

    return ash.plan(model, (x, w, v), "dp=2 tp=4")


@pytest.mark.parametrize("what", ["timeline", "memory"])
def test_a_step_is_drawn(planned, tmp_path, what):
    path = planned.plot(what, tmp_path / f"{what}.svg")
    text = path.read_text()
    assert etree.fromstring(text).tag == SPACE + "svg"
    assert "on mesh dp=2 tp=4, by sharding_propagation" in text
    assert planned.plot(what, tmp_path / "again.svg").read_text() == text
    assert planned.plot(what, tmp_path / "same.png").read_bytes().startswith(b"\x89PNG")


def test_the_memory_picture_tells_the_peak(planned, tmp_path):
    text = planned.plot("memory", tmp_path / "memory.svg").read_text()
    peak = planned.cost.memory
    assert f"{peak.peak / 1024:.3g} KiB at" in text
    assert all(kind in text for kind in ("data", "activation"))


def test_pictures_that_there_are_not(planned, tmp_path):
    with pytest.raises(PlanError, match="no picture 'graph' of a plan; there are timeline, memory"):
        planned.plot("graph", tmp_path / "x.svg")
    with pytest.raises(PlanError, match=r"its name must end in \.svg, \.png, \.pdf"):
        planned.plot("memory", tmp_path / "x.html")
    with pytest.raises(PlanError, match="the plan has no timeline to draw"):
        plot({"graph": "f", "mesh": "d=2", "search": "bfs", "cost": {}}, "timeline", tmp_path / "x.svg")
    assert list(tmp_path.iterdir()) == []
