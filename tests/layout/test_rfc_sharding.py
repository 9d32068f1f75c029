"""The worked examples of the Shardy RFC's sharding representation, and what they mean for the data."""

from __future__ import annotations

import re

import numpy as np
import pytest

from autoshard.layout import Mesh
from autoshard.layout.sdy_text import parse_mesh, parse_sharding, show_sharding
from autoshard.layout.sharding import Sharding, common_mesh, divisible
from autoshard.layout.verify_sharding import verify_sharding
from autoshard.util.errors import ShardingError


def read(mesh: Mesh, text: str) -> Sharding:
    return parse_sharding(f"<@mesh, {text}>", {"mesh": mesh})


def held(sharding: Sharding, value: np.ndarray) -> list[list]:
    """The elements that each rank holds."""
    layout = sharding.layout()
    return [value[layout.block(rank, value.shape)].ravel().tolist() for rank in range(sharding.mesh.devices)]


def refused(sharding: Sharding, shape: tuple[int, ...], why: str, strict: bool = False) -> None:
    with pytest.raises(ShardingError, match=re.escape(why)):
        verify_sharding(sharding, shape, strict=strict)


def valid(sharding: Sharding, shape: tuple[int, ...]) -> Sharding:
    verify_sharding(sharding, shape, strict=True)
    assert read(sharding.mesh, show_sharding(sharding)[8:-1]) is sharding
    return sharding


BASIC = Mesh(x=2, y=4, z=2)
WIDE = Mesh(x=2, y=8, z=2)


def test_four_devices_hold_the_elements_of_a_square():
    letters = np.array([["a", "b"], ["c", "d"]])
    mesh = Mesh(x=2, y=2)
    assert held(valid(read(mesh, '[{"x"}, {"y"}]'), (2, 2)), letters) == [["a"], ["b"], ["c"], ["d"]]
    assert held(valid(read(mesh, '[{"x"}, {}]'), (2, 2)), letters) == [list("ab")] * 2 + [list("cd")] * 2
    assert held(valid(read(mesh, '[{"y"}, {}]'), (2, 2)), letters) == [list("ab"), list("cd")] * 2
    assert held(valid(read(mesh, '[{"y", "x"}, {}]'), (4, 1)), letters.reshape(4, 1)) == [["a"], ["c"], ["b"], ["d"]]


def test_basic_structure_and_its_invariants():
    assert valid(read(BASIC, '[{"x"}, {"z", "y"}]'), (4, 8)).local_shape((4, 8)) == (2, 1)
    refused(read(BASIC, '[{"x"}, {"z", "y"}]'), (4, 8, 3), "it is for 2 dims, but the tensor (4, 8, 3) has 3")
    refused(read(BASIC, '[{"x"}, {"z", "x"}]'), (4, 8), "x is used twice")
    refused(read(BASIC, '[{"x"}, {"z"}], replicated={"x"}'), (4, 8), "x is used twice")


def test_open_dims_take_more_axes_and_closed_ones_do_not():
    sharding = valid(read(BASIC, '[{"x", ?}, {"y"}, {?}, {}]'), (4, 8, 3, 5))
    assert [dim.closed for dim in sharding.dims] == [False, True, False, True]
    assert [len(dim.axes) for dim in sharding.dims] == [1, 1, 0, 0]


def test_replicated_axes_are_in_mesh_order():
    mesh = parse_mesh('<["a"=2, "b"=4, "c"=2]>')
    valid(read(mesh, '[{"b"}], replicated={"a", "c"}'), (8,))
    refused(read(mesh, '[{"b"}], replicated={"c", "a"}'), (8,), "replicated axes must be in the order of mesh")


def test_a_reshape_without_communication_needs_pieces_of_an_axis():
    """The RFC writes `"x":(2)4` for the second piece; of an axis of size 4 only `"x":(2)2` is left."""
    mesh = Mesh(x=4)
    before = valid(read(mesh, '[{"x"}]'), (8,))
    after = valid(read(mesh, '[{"x":(1)2}, {"x":(2)2}]'), (2, 4))
    assert held(before, np.arange(8)) == held(after, np.arange(8).reshape(2, 4)) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    refused(read(mesh, '[{"x":(1)2}, {"x":(2)4}]'), (2, 4), "sub-axis x:(2)4 does not exist: 2 x 4 must divide x=4")


def test_one_piece_of_a_split_axis():
    sharding = valid(read(WIDE, '[{"x"}, {"y":(2)2}]'), (4, 8))
    assert sharding.local_shape((4, 8)) == (2, 4)
    ref = sharding.dims[1].axes[0]
    assert (ref.pre, ref.size, WIDE.sizes["y"] // ref.next) == (2, 2, 2)
    digits = [WIDE.coordinate(rank, ref) for rank in range(32)]
    assert digits == [rank // 2 % 8 // 2 % 2 for rank in range(32)]


def test_a_mesh_is_a_splitting_of_a_flat_one():
    """The RFC writes `"devices":(1)2` for the second piece, which overlaps the first; behind four parts it is (4)2."""
    value = np.arange(16).reshape(4, 4)
    flat, square = Mesh(devices=8), Mesh(x=4, y=2)
    pieces = valid(read(flat, '[{"devices":(1)4}, {"devices":(4)2}]'), (4, 4))
    assert held(pieces, value) == held(valid(read(square, '[{"x"}, {"y"}]'), (4, 4)), value)
    refused(read(flat, '[{"devices":(1)4}, {"devices":(1)2}]'), (4, 4), "devices:(1)4 and devices:(1)2 overlap")


def test_pieces_can_be_replicated_on_purpose():
    sharding = valid(read(WIDE, '[{"x"}, {"y":(2)2}], replicated={"y":(1)2}'), (4, 8))
    assert sharding.local_shape((4, 8)) == (2, 4)
    valid(read(WIDE, '[{"z"}], replicated={"x", "y":(1)2, "y":(4)2}'), (4,))
    unordered = read(WIDE, '[{"z"}], replicated={"y":(4)2, "x", "y":(1)2}')
    refused(unordered, (4,), "in the order of mesh 'x=2 y=8 z=2': x, y:(1)2, y:(4)2")


def test_pieces_do_not_overlap_and_are_as_big_as_possible():
    mesh = Mesh(x=16)
    refused(read(mesh, '[{"x":(1)4}, {"x":(2)4}]'), (16, 16), "x:(1)4 and x:(2)4 overlap")
    refused(read(mesh, '[{"x":(1)2, "x":(2)4}]'), (16,), "x:(1)2 and x:(2)4 follow each other; write x:(1)8")
    refused(read(mesh, '[{}], replicated={"x":(1)2, "x":(2)4}'), (16,), "follow each other; write x:(1)8")
    valid(read(mesh, '[{"x":(2)4, "x":(1)2}]'), (16,))
    valid(read(mesh, '[{"x":(1)2}, {"x":(2)4}]'), (16, 16))


def test_meshes_that_view_the_devices_differently():
    same = {"mesh_0": Mesh(a=2, b=3), "mesh_1": Mesh(y=2, z=3)}
    first, second = (parse_sharding(f'<@{name}, [{{"{axis}"}}]>', same) for name, axis in zip(same, "bz", strict=True))
    assert held(first, np.arange(6)) == held(second, np.arange(6)) == [[0, 1], [2, 3], [4, 5]] * 2
    assert common_mesh([first, second]) is None
    orders = {"up": Mesh(a=2, b=3), "across": parse_mesh('<["a"=2, "b"=3], device_ids=[0, 2, 4, 1, 3, 5]>')}
    up, across = (parse_sharding(f'<@{name}, [{{"a"}}]>', orders) for name in orders)
    low, high = [0, 1, 2], [3, 4, 5]
    assert held(up, np.arange(6)) == [low, low, low, high, high, high]
    assert held(across, np.arange(6)) == [low, high, low, high, low, high]
    assert common_mesh([up, across]) is None and common_mesh([across, up], ignore_order=True) == (orders["up"], "up")


def test_priorities():
    mesh = Mesh(w=6, x=2, y=4, z=2)
    sharding = valid(read(mesh, '[{"x"}p1, {"y"}, {"z", ?}p2]'), (4, 8, 4))
    assert [dim.priority for dim in sharding.dims] == [1, None, 2]
    valid(read(mesh, '[{"x"}p0, {"z", ?}p7, {?}p3]'), (4, 8, 4))
    refused(read(mesh, '[{"x"}p1, {}p1]'), (4, 8), "dim 1 has priority 1, but is closed and has no axes")


def test_sizes_need_not_be_divisible():
    sharding = valid(read(Mesh(x=8, y=2, z=3), '[{"x"}, {"y"}, {"z"}]'), (7, 3, 8))
    assert sharding.local_shape((7, 3, 8)) == (1, 2, 3)
    with pytest.raises(ShardingError, match="dim 0 of size 7 is not divisible by its 8 parts"):
        verify_sharding(sharding, (7, 3, 8), even=True)


def test_an_axis_that_has_nothing_left_to_split():
    sharding = read(BASIC, '[{"x"}, {"y", "z"}]')
    verify_sharding(sharding, (1, 4))
    refused(sharding, (1, 4), "dim 0 of size 1 has no more to split for x; leave it out", strict=True)
    refused(sharding, (2, 4), "dim 1 of size 4 has no more to split for z; leave it out", strict=True)
    valid(sharding, (2, 5))


def test_uneven_pieces_of_a_reshape():
    """Six rows on four parts, then 2x3: each factor takes the part of the axis it can, the minor one with padding."""
    mesh = Mesh(a=2, b=2, c=4)
    assert valid(read(mesh, '[{"c"}]'), (6,)).local_shape((6,)) == (2,)
    assert valid(read(mesh, '[{"c":(1)2, ?}, {"c":(2)2, ?}]'), (2, 3)).local_shape((2, 3)) == (1, 2)
    assert str(divisible(read(mesh, '[{"c"}]'), (7,))) == "<@mesh, [{}]>"
    assert str(divisible(read(mesh, '[{"c"}]'), (6,))) == '<@mesh, [{"c":(1)2}]>'
    assert str(divisible(read(mesh, '[{"a", "c", ?}p2]'), (12,))) == '<@mesh, [{"a", "c":(1)2, ?}]>'
