"""A mesh is symbolic: 10**12 devices take the memory of eight, in meshes, layouts, texts and plans."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import autoshard as ash
from autoshard import nn, ops
from autoshard.core.enumerate import divisors
from autoshard.exporters.plan_file import plan_data
from autoshard.layout import Layout, Mesh
from autoshard.layout.mesh import LISTED
from autoshard.layout.sdy_show import show_mesh
from autoshard.layout.sdy_text import parse_mesh, parse_sharding, show_sharding
from autoshard.layout.tensor_map import TensorMap
from autoshard.util.errors import AutoshardError, MeshError

LARGE = 10**12
MESHES = [[("d", LARGE)], [("a", 10**4), ("b", 10**4), ("c", 10**4)], [("one", 1), ("d", LARGE)]]


@contextmanager
def within_a_mebibyte() -> Iterator[None]:
    """Lists of ranks, were there any, would take terabytes."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("axes", MESHES)
def test_meshes_layouts_and_their_texts(axes):
    with within_a_mebibyte():
        mesh = Mesh(axes)
        name = mesh.names[-1]
        assert mesh.devices == LARGE and Mesh.parse(str(mesh)) is mesh and parse_mesh(show_mesh(mesh)) is mesh
        layout = Layout.parse(f"{name}:(2)500, -", mesh)
        assert Layout.parse(str(layout), mesh) is layout
        assert TensorMap.of(layout).layout(mesh) is layout
        sharding = parse_sharding(f'<@m, [{{"{name}":(1)2}}, {{?}}]>', {"m": mesh})
        assert parse_sharding(show_sharding(sharding), {"m": mesh}) == sharding
        assert layout.local_shape((10**6, 3)) == (2000, 3)
        last = LARGE - 1
        assert layout.block(last, (10**6, 3)) == (slice(998000, 10**6), slice(0, 3))
        assert layout.holders().size == LARGE // 500 and layout.holders().position(last) == LARGE // 500 - 1
        few = mesh.groups([mesh.ref(f"{name}:(1)4")]).members(last)
        assert len(few) == 4 and few[-1] == last


def test_the_order_of_the_grid_needs_no_list():
    with within_a_mebibyte():
        assert Mesh([("d", LARGE)], range(LARGE)) is Mesh([("d", LARGE)])
    assert Mesh([("d", 4)], range(3, -1, -1)).order == (3, 2, 1, 0)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weight = ash.Parameter(ash.Tensor(np.zeros((64, 96)), ash.float32), name="weight")
        self.matmul, self.relu = ops.MatMul(), ops.ReLU()

    def construct(self, x):
        return self.relu(self.matmul(x, self.weight))


def test_a_plan_is_made_and_told_and_not_run(tmp_path):
    x = np.zeros((128, 64), np.float32)
    planned = ash.plan(Net(), (x,), devices=LARGE)
    with within_a_mebibyte():
        data = plan_data(planned.plan)
    assert data["mesh"] == f"d={LARGE}"
    assert f"({LARGE} devices" in str(planned)
    again = ash.plan(Net(), (x,), devices=LARGE, search=str(planned.save(tmp_path / "plan.json")))
    assert plan_data(again.plan)["layouts"] == data["layouts"]
    with pytest.raises(AutoshardError, match="one process hosts at most"):
        planned.run(x)
    with pytest.raises(MeshError, match="write dumps for each of the"):
        planned.dump(tmp_path)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Mesh([("d", 10**20)]), "67 bits"),
        (lambda: Mesh([("d", 10**5000)]), "fewer than 2[*][*]63"),
        (lambda: Mesh([("a", 2**40), ("b", 2**40)]), "a=1099511627776 b=1099511627776 make 1208925819614629174706176"),
        (lambda: Mesh.parse("9" * 5000), "too large for 64 bits"),
        (lambda: Mesh.parse("d=" + "9" * 5000), "too large for 64 bits"),
        (lambda: Mesh([("d", LARGE)], range(1, LARGE + 1)), "cannot list 1000000000000 ranks"),
        (lambda: Mesh([("d", LARGE)], [0, 1]), "device order \\[0, 1\\] must list each of the 1000000000000"),
        (lambda: Mesh([("d", LARGE)]).ref("d:(1)" + "9" * 5000), "too large for 64 bits"),
        (lambda: Mesh([("d", LARGE)]).listed("count"), "cannot count for each of the 1000000000000 ranks"),
        (lambda: Mesh([("d", LARGE)]).groups([Mesh([("d", LARGE)]).axis("d")]).members(0), "cannot list"),
    ],
)
def test_what_is_too_large_is_refused(make, message):
    with within_a_mebibyte(), pytest.raises(MeshError, match=message) as caught:
        make()
    assert len(str(caught.value)) < 2000
    assert LISTED < LARGE


def test_divisors_of_large_numbers():
    assert len(divisors(LARGE)) == 13 * 13
    assert all(divisors(n) == tuple(d for d in range(n, 0, -1) if n % d == 0) for n in range(300))
