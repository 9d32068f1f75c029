"""Device matrix and tensor map: MindSpore's examples, round trips, errors."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.core.place import parse_strategy
from autoshard.core.rule import bind
from autoshard.layout import Layout, Mesh, TensorMap
from autoshard.layout.tensor_map import matrix_axes
from autoshard.util.errors import LayoutError
from tests.redistribute import virtual_ranks as ranks


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_the_view_is_exact(data):
    mesh = data.draw(ranks.meshes().filter(lambda mesh: mesh.order is None))
    layout = data.draw(ranks.layouts(mesh, data.draw(st.integers(0, 3)), partial=False))
    view = TensorMap.of(layout)
    assert 1 not in view.device_matrix
    assert TensorMap.parse(str(view)) == view
    assert view.layout(mesh) is layout
    flat = view.layout(Mesh.flat(mesh.devices))
    for rank in range(mesh.devices):
        assert flat.block(rank, layout.parts) == layout.block(rank, layout.parts)
        assert _block(view, rank, layout.parts) == layout.block(rank, layout.parts)


def _block(view: TensorMap, rank: int, parts: tuple[int, ...]) -> tuple[slice, ...]:
    """Which block a rank holds, from MindSpore's definition: mixed radix, the last matrix axis fastest."""
    coordinate = []
    for size in reversed(view.device_matrix):
        rank, digit = divmod(rank, size)
        coordinate.append((digit, size))  # coordinate[k]: axis k from the right
    block = []
    for entry in view.tensor_map:
        index = 0
        for k in (entry if isinstance(entry, tuple) else (entry,)) if entry != -1 else ():
            digit, size = coordinate[k]
            index = index * size + digit
        block.append(slice(index, index + 1))
    return tuple(block)


def test_matmul_on_eight_devices():
    """((2,1),(1,4)): matrix [2,1,4], maps A [2,1], B [1,0], C [2,0]; the standard form drops the 1."""
    mesh = Mesh.flat(8)
    rule = bind("m k, k n -> m n", [(6, 10), (10, 12)])
    strategy = parse_strategy(rule, ((2, 1), (1, 4)), mesh, [(6, 10), (10, 12)], "MatMul")
    assert strategy.device_matrix == (2, 1, 4)
    views = [TensorMap.of(layout) for layout in (*strategy.operand_layouts, *strategy.result_layouts)]
    assert views == [TensorMap((2, 4), (1, -1)), TensorMap((2, 4), (-1, 0)), TensorMap((2, 4), (1, 0))]
    full = [TensorMap((2, 1, 4), entries) for entries in ((2, 1), (1, 0), (2, 0))]
    layouts = (*strategy.operand_layouts, *strategy.result_layouts)
    assert [view.layout(mesh) for view in full] == list(layouts)


def test_matmul_with_k_split_sums_over_its_axis():
    """((2,4),(4,1)): groups {0,1,2,3} and {4,5,6,7}."""
    rule = bind("m k, k n -> m n", [(6, 12), (12, 10)])
    strategy = parse_strategy(rule, ((2, 4), (4, 1)), Mesh.flat(8), [(6, 12), (12, 10)], "MatMul")
    groups = strategy.mesh.groups(strategy.reduced)
    assert list(groups.members(2)) == [0, 1, 2, 3] and list(groups.members(7)) == [4, 5, 6, 7]
    assert str(strategy.result_layouts[0]) == "d:(1)2, - +d:(2)4"


def test_repeated_calculation_is_the_last_axis():
    """ReLU ((2,1)) on 8 devices: matrix [2,1,4], in standard form [2,4] and [1,-1]."""
    rule = bind("... -> ...", [(6, 10)])
    strategy = parse_strategy(rule, ((2, 1),), Mesh.flat(8), [(6, 10)], "ReLU")
    assert strategy.device_matrix == (2, 1, 4)
    assert TensorMap.of(strategy.operand_layouts[0]) == TensorMap((2, 4), (1, -1))
    assert list(strategy.operand_layouts[0].holders().members(5)) == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("matrix", "entries", "text"),
    [
        ((2, 4), (1, 0), "d:(1)2, d:(2)4"),
        ((2, 4), ((1, 0), -1), "d, -"),
        ((2, 4), ((0, 1), -1), "d:(2)4.d:(1)2, -"),
        ((8, 1), (0, 1), "-, d"),
        ((2, 2, 2), (0, 2), "d:(4)2, d:(1)2"),
        ((8,), (-1, -1), "-, -"),
    ],
)
def test_maps_on_a_flat_mesh(matrix, entries, text):
    assert str(TensorMap(matrix, entries).layout(Mesh.flat(8))) == text


def test_text():
    view = TensorMap((2, 4), ((1, 0), -1))
    assert str(view) == "device_matrix [2, 4] tensor_map [(1, 0), -1]"
    assert TensorMap.parse(str(view)) == view
    assert TensorMap.of(Layout.replicated(Mesh(a=1), 2)) == TensorMap((), (-1, -1))
    assert TensorMap.parse("device_matrix [] tensor_map []") == TensorMap((), ())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: TensorMap.of(Layout.parse("- +d", Mesh.flat(8))),
            r"layout \[- \+d\] is partial; device matrix",
        ),
        (
            lambda: TensorMap.of(Layout.replicated(Mesh(a=2, order=[1, 0]), 1)),
            "'a=2 order=1.0' has a device order",
        ),
        (lambda: TensorMap((2, 2), (1, 0)).layout(Mesh.flat(8)), "arranges 4 devices, mesh 'd=8' has 8"),
        (lambda: TensorMap((2, 4), (2, 0)).layout(Mesh.flat(8)), r"entry 2 is not -1 nor one of 0..1"),
        (lambda: TensorMap((2, 4), (-2, 0)).layout(Mesh.flat(8)), r"entry -2 is not -1 nor one of 0..1"),
        (lambda: TensorMap((2, 4), (0, 0)).layout(Mesh.flat(8)), r"'d:\(2\)4' already serves dim 0"),
        (
            lambda: TensorMap((4, 2), (1, 0)).layout(Mesh(a=3, b=2)),
            "arranges 8 devices, mesh 'a=3 b=2' has 6",
        ),
        (
            lambda: TensorMap((2, 3), (1, 0)).layout(Mesh(a=3, b=2)),
            r"device matrix \[2, 3\] does not fit mesh 'a=3 b",
        ),
        (
            lambda: TensorMap.parse("device_matrix 2,4"),
            "cannot read 'device_matrix 2,4'; write e.g. 'device_matrix",
        ),
        (
            lambda: TensorMap.parse("device_matrix [2,,4] tensor_map [1]"),
            "cannot read .device_matrix .2,,4. tensor_map",
        ),
        (
            lambda: matrix_axes(Mesh.flat(8), [3, 2]),
            r"device matrix \[3, 2\] needs 6 devices, which does not divide 8",
        ),
    ],
)
def test_errors(make, message):
    with pytest.raises(LayoutError, match=message):
        make()


@pytest.mark.parametrize("mesh", [Mesh.flat(12), Mesh(a=2, b=6), Mesh(a=4, b=3)])
def test_matrix_axes_are_digits_of_the_rank(mesh):
    for matrix in itertools.product((1, 2, 3, 4, 6), repeat=2):
        try:
            axes = matrix_axes(mesh, matrix)
        except LayoutError:
            continue
        for rank in range(12):
            rest = 12 // (matrix[0] * matrix[1])
            digits = rank // (rest * matrix[1]), rank // rest % matrix[1]
            assert tuple(mesh.index(rank, refs) for refs in axes) == digits
