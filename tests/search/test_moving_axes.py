"""Axes that an operator cannot split a dim by go to a dim that it can split."""

from __future__ import annotations

import pytest

from autoshard.core.rule import Rule
from autoshard.layout import Mesh
from autoshard.layout.mesh import AxisRef
from autoshard.layout.sharding import Sharding
from autoshard.search.rules.strategy_from_shardings import moved_axes, strategy_from_shardings

MESH = Mesh(x=2, y=3)
X, Y = MESH.axis("x"), MESH.axis("y")


@pytest.mark.parametrize(
    ("text", "axes", "wanted", "after", "moves"),
    [
        ("a b~ -> a b~ {a=4, b=6}", ((), ()), ((), (X,)), ((X,), ()), [(1, 0, (X,))]),
        ("a b~ -> a b~ {a=4, b=6}", ((), ()), ((), (Y,)), ((), ()), []),
        ("a b~ -> a b~ {a=12, b=6}", ((Y,), ()), ((Y,), (X,)), ((Y, X), ()), [(1, 0, (X,))]),
        ("a b~ -> a b~ {a=12, b=6}", ((X,), ()), ((X,), (X,)), ((X,), ()), []),
        ("a b~ c -> a b~ c {a=4, b=6, c=10}", ((), (), ()), ((), (X,), ()), ((), (), (X,)), [(1, 2, (X,))]),
        ("a b~, b~ -> a {a=4, b=6}", ((), ()), ((), (X,)), ((), ()), []),
        ("<a>^4 b~ -> <a>^4 b~ {a=4, b=6}", ((), ()), ((), (X,)), ((), ()), []),
        ("(a c) b~ -> a c b~ {a=2, c=4, b=6}", ((), (), ()), ((), (), (X,)), ((X,), (), ()), [(2, 0, (X,))]),
    ],
    ids=["moves", "does not divide", "behind others", "in use", "the largest", "not in all", "exchanged", "major"],
)
def test_moved_axes(text, axes, wanted, after, moves):
    rule = Rule.parse(text)
    assert moved_axes(rule, axes, wanted) == (after, tuple(moves))


def asked(dim: int, axis: AxisRef) -> Sharding:
    whole = Sharding.closed(MESH, 2)
    return whole.with_dims(one._replace(axes=(axis,)) if i == dim else one for i, one in enumerate(whole.dims))


def test_what_operators_follow():
    """A dim that all ranks need is left for another; one along which they exchange elements stays split."""
    split = (asked(1, X), asked(1, X))
    strategy, lost = strategy_from_shardings(Rule.parse("a b~ -> a b~ {a=4, b=6}"), MESH, split, (24, 24))
    assert strategy.axes == ((X,), ()) and "x splits a in place of b" in lost
    strategy, lost = strategy_from_shardings(Rule.parse("a [b]^6 -> a [b]^6 {a=4, b=6}"), MESH, split, (24, 24))
    assert strategy.axes == ((), (X,)) and not lost


def test_a_factor_that_follows_another_is_not_lost():
    rule = Rule.parse("a <b>^6, a [c]=b -> a <b>^6 {a=4, b=6, c=2}")
    strategy, lost = strategy_from_shardings(rule, MESH, (asked(1, X), asked(1, X), asked(1, X)), (24, 8, 24))
    assert strategy.axes == ((), (X,), ()) and not lost
    assert [layout.parts for layout in strategy.operand_layouts] == [(1, 2), (1, 2)]
