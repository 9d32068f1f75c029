"""Shardings of dims as shardings of factors, and back: the tables of Shardy's documents, and properties."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.core.rule import Rule
from autoshard.layout.layout import Refs
from autoshard.layout.mesh import Mesh, merge_refs, size_of
from autoshard.layout.sharding import CLOSED, OPEN, DimSharding, Sharding
from autoshard.propagate.basic import is_strict_prefix
from autoshard.propagate.projection import TensorFactors, TensorFactorShardings, factor_map, from_factors, to_factors

MESH = Mesh(x=4, y=2, z=3, w=6)


def refs(text: str) -> Refs:
    return tuple(MESH.ref(word) for word in text.split())


def spec(text: str) -> DimSharding:
    """Read `x y ?`: the axes of a dim, `?` for an open one."""
    return DimSharding(refs(text.replace("?", "")), "?" not in text)


def row_of(sizes: tuple[int, ...], text: str) -> TensorFactorShardings:
    """The row of a tensor whose one dim holds factors of the given sizes, major first."""
    return to_factors(TensorFactors((tuple(range(len(sizes))),), sizes), Sharding(MESH, [spec(text)]))


# Sizes of the factors of a dim, its axes, those of each factor.
DEALT = [
    ((2, 4), "x y", ("x:(1)2", "x:(2)2 y")),
    ((2, 4), "y x", ("y", "x")),
    ((8, 4), "x y z", ("x y", "z")),
    ((8, 4), "x", ("x", "")),
    ((2, 3), "x", ("x:(1)2", "x:(2)2")),
    ((6, 4), "w x", ("w", "x")),
    ((2, 2, 5), "x z", ("x:(1)2", "x:(2)2", "z")),
    ((7,), "x z", ("x z",)),
    ((4, 1), "x", ("x", "")),
]


@pytest.mark.parametrize(("sizes", "text", "factors"), DEALT)
def test_axes_are_dealt_major_to_minor(sizes: tuple[int, ...], text: str, factors: tuple[str, ...]) -> None:
    for mark in ("", " ?"):
        row = row_of(sizes, text + mark)
        assert row.axes == tuple(map(refs, factors))
        assert row.closed == (not mark,) * len(sizes)
        assert not row.overflow


# Sizes, axes, factor that overflows, its axes, its overflow, the axes of all.
OVERFLOWS = [
    ((3, 4, 5), "y z", 0, "y z", ("", "", None)),
    ((2, 5, 3), "w y", 1, "w:(2)3 y", ("w:(1)2", "", "")),
    ((12, 5, 3), "x w y", 1, "w:(3)2 y", ("x w:(1)3", "", "")),
    ((6, 5), "x", 0, "x:(2)2", ("x:(1)2", "")),
]


@pytest.mark.parametrize(("sizes", "text", "factor", "overflow", "factors"), OVERFLOWS)
def test_what_does_not_divide_overflows(
    sizes: tuple[int, ...], text: str, factor: int, overflow: str, factors: tuple[str | None, ...]
) -> None:
    row = row_of(sizes, text + " ?")
    assert row.overflow == {factor: refs(overflow)}
    assert row.axes == tuple(None if of is None else refs(of) for of in factors)
    assert row.closed[factor + 1] and not row.closed[factor]


def test_kept_axes_are_replicated_and_unreduced_ones() -> None:
    sharding = Sharding(MESH, [spec("x")], refs("y"), refs("z"))
    assert to_factors(TensorFactors(((0,),), (8,)), sharding).reserved == refs("y z")


def test_no_sharding_is_an_open_one() -> None:
    tensor = TensorFactors(((0, 1), (2,)), (2, 3, 4, 5))
    assert to_factors(tensor, None) == TensorFactorShardings(((), (), (), None), {}, (False,) * 4, ())


def joined(sizes: tuple[int, ...], factors: tuple[str, ...], before: str = "?") -> DimSharding:
    """The dim whose factors are split by the given axes."""
    tensor = TensorFactors((tuple(range(len(sizes))),), sizes)
    old = Sharding(MESH, [spec(before)])
    return from_factors(tensor, tuple(map(refs, factors)), to_factors(tensor, old), old, MESH, "m").dims[0]


def test_pieces_join_where_factors_meet() -> None:
    assert joined((2, 8), ("x:(1)2", "x:(2)2 y")) == spec("x y ?")
    assert joined((4, 6), ("x", "w")) == spec("x w ?")


def test_axes_behind_a_factor_that_is_not_split_fully_are_dropped() -> None:
    assert joined((4, 6), ("y", "z")) == spec("y ?")
    assert joined((4, 6), ("", "z")) == spec("?")
    assert joined((2, 2, 6), ("y", "x:(1)2", "z")) == spec("y x:(1)2 z ?")
    # An axis in more parts than the factor has elements splits it fully.
    assert joined((2, 6), ("x", "z")) == spec("x z ?")


def test_an_overflow_ends_its_dim() -> None:
    assert joined((6, 5), ("x:(1)2", "z"), before="x ?") == spec("x ?")


def test_a_dim_is_closed_as_before() -> None:
    assert joined((4, 6), ("x", "z"), before="") == spec("x z")


def test_priorities_are_dropped_and_the_rest_is_kept() -> None:
    tensor = TensorFactors(((0,), (1,)), (8, 6))
    old = Sharding(MESH, [DimSharding(refs("x"), False, 2), CLOSED], refs("y"), refs("z"), "max", "m")
    new = from_factors(tensor, (refs("x"), ()), to_factors(tensor, old), old, MESH, "n")
    assert new is Sharding(MESH, [spec("x ?"), CLOSED], refs("y"), refs("z"), "max", "n")
    bare = from_factors(tensor, (refs("x"), ()), to_factors(tensor, None), None, MESH, "n")
    assert bare is Sharding(MESH, [spec("x ?"), OPEN], mesh_name="n")


def test_wiring_knows_columns_and_what_can_move() -> None:
    of_rule = factor_map(Rule.parse("b m k!, b k! [n] -> b m [n] {b=2, m=4, k=6, n=8}"))
    assert of_rule.columns == (((0, 1), (2,)), ((0,), (2,)), ((0, 1), ()), ((1,), (2,)))
    assert of_rule.spreadable == (0, 1, 3)
    assert of_rule.spreadable_pass == (0, 1)
    assert of_rule.tensors[1].minor == {0, 2, 3}


@st.composite
def dims(draw: st.DrawFn) -> tuple[tuple[int, ...], Refs]:
    """Sizes of the factors of a dim, and axes in pieces, some of them used."""
    sizes = tuple(draw(st.lists(st.sampled_from((2, 3, 4, 5, 6, 8, 12)), min_size=1, max_size=4)))
    pieces = [*refs("x y z"), *MESH.axis("w").split(draw(st.sampled_from((2, 3))))]
    return sizes, merge_refs(draw(st.permutations(pieces))[: draw(st.integers(0, len(pieces)))])


@given(dims(), st.booleans())
def test_there_and_back(dim: tuple[tuple[int, ...], Refs], closed: bool) -> None:
    sizes, axes = dim
    tensor = TensorFactors((tuple(range(len(sizes))),), sizes)
    sharding = Sharding(MESH, [DimSharding(axes, closed)])
    row = to_factors(tensor, sharding)
    assert from_factors(tensor, row.axes, row, sharding, MESH, "mesh") is sharding
    for factor in range(len(sizes) - 1):
        assert sizes[factor] % size_of(row.axes[factor] or ()) == 0


@given(dims(), st.data())
def test_only_what_would_be_strided_is_dropped(dim: tuple[tuple[int, ...], Refs], data: st.DataObject) -> None:
    """Cut anywhere, the axes of the factors up to the first one that is not full remain, and no others."""
    sizes, axes = dim
    tensor = TensorFactors((tuple(range(len(sizes))),), sizes)
    row = to_factors(tensor, Sharding(MESH, [DimSharding(axes, False)]))
    cut = [of[: data.draw(st.integers(0, len(of)))] if of else of for of in row.axes]
    new = from_factors(tensor, cut, row._replace(overflow={}), None, MESH, "mesh").dims[0].axes
    full = 0
    while full < len(sizes) - 1 and size_of(cut[full] or ()) >= sizes[full]:
        full += 1
    assert new == merge_refs(axis for of in cut[: full + 1] for axis in of or ())
    assert size_of(new) == math.prod(size_of(of or ()) for of in cut[: full + 1])
    assert new == axes or is_strict_prefix(new, axes)
