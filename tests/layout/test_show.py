"""Pictures of who holds what, letter for letter."""

from __future__ import annotations

import doctest
import importlib

import pytest

from autoshard.layout import Layout, Mesh, show_layout
from autoshard.util.errors import LayoutError


def picture(shape: tuple[int, ...], text: str, on: Mesh) -> list[str]:
    return show_layout(shape, Layout.parse(text, on)).split("\n")


def test_a_table_of_two_dims():
    assert picture((4, 12), "dp, tp", Mesh(dp=2, tp=4)) == [
        "          dim 1 0:3  3:6  6:9  9:12",
        "dim 0 0:2         0    1    2     3",
        "      2:4         4    5    6     7",
    ]


def test_whole_dims_and_runs_of_ranks():
    assert picture((6, 10), "dp, -", Mesh(dp=2, tp=4)) == [
        "          dim 1 0:10",
        "dim 0 0:3        0-3",
        "      3:6        4-7",
    ]
    assert picture((6, 10), "-, tp:(1)2", Mesh(dp=2, tp=4))[1].endswith(" 0,1,4,5  2,3,6,7")


def test_uneven_blocks_end_with_the_tensor():
    assert picture((5,), "d", Mesh.flat(4)) == [
        "      dim 0 0:2  2:4  4:5  5:5",
        "ranks         0    1    2    3",
    ]


def test_scalars():
    assert picture((), "()", Mesh.flat(6))[1].split() == ["ranks", "0-5"]


def test_partial_layouts_say_so():
    assert picture((4, 6), "dp, - +tp", Mesh(dp=2, tp=4))[-1] == "each rank holds a term of a sum over tp"
    assert picture((4,), "- max dp.tp", Mesh(dp=2, tp=4))[-1] == "each rank holds a term of a max over dp.tp"


def test_more_dims_make_more_tables():
    lines = picture((6, 4, 10), "a, b, -", Mesh(a=2, b=2))
    assert [line for line in lines if line.endswith(":")] == ["dim 0 0:3:", "dim 0 3:6:"]
    assert [line.split()[-1] for line in lines if not line.endswith(("10", ":"))] == ["0", "1", "2", "3"]


def test_device_order():
    lines = picture((4, 6), "a, b", Mesh(a=2, b=2, order=[3, 1, 0, 2]))
    assert lines[1].split()[-2:] == ["3", "1"] and lines[2].split()[-2:] == ["0", "2"]


def test_errors():
    with pytest.raises(LayoutError, match=r"layout \[d\] of the tensor to draw has 1 dims"):
        picture((4, 6), "d", Mesh.flat(4))
    with pytest.raises(LayoutError, match="has 8192 blocks on 8192 ranks; a picture shows at most 4096"):
        picture((8192,), "d", Mesh.flat(8192))


@pytest.mark.parametrize("module", ["mesh", "show", "tensor_map"])
def test_examples_in_docstrings(module):
    found = importlib.import_module(f"autoshard.layout.{module}")
    names = {"Mesh": Mesh, "Layout": Layout}
    assert doctest.testmod(found, extraglobs=names).failed == 0
