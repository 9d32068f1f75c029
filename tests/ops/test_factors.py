"""Rules made factor by factor: order, factors of size 1, marks, and what conservative propagation gets instead."""

from __future__ import annotations

import pytest

from autoshard.core.rule import PERMUTATION, REDUCTION, REPLICATE, Rule
from autoshard.core.rule_sdy import show_sdy
from autoshard.core.tensortype import TensorType
from autoshard.ops.factors import FactorBuilder
from autoshard.ops.registry import lookup, operator, remove
from autoshard.util.errors import RuleError


def test_factors_stand_in_the_order_of_creation_and_are_minor_to_those_before():
    made = FactorBuilder([2, 1], [2]).factor({0: 1, 2: 0}, 6).factor({0: 0, 2: 0}, 4, REDUCTION).factor({1: 0}, 5)
    rule = made.build()
    assert show_sdy(rule) == "([j, i], [k])->([ij, l]) {i=6, j=4, k=5, l=1} reduction={j}"
    assert rule.results == (((0, 1), ()),)


def test_a_factor_of_size_one_is_left_out_where_the_dim_has_one():
    made = FactorBuilder([1], [1]).factor({0: 0}, 8).factor({0: 0, 1: 0}, 1).factor({0: 0}, 1)
    assert show_sdy(made.build()) == "([i])->([j]) {i=8, j=1}"


def test_scalars_have_no_factors():
    made = FactorBuilder([0, 2, 0], [2]).pointwise((4, 6), lambda dim: REPLICATE if dim else "pass")
    assert show_sdy(made.build()) == "([], [i, j], [])->([i, j]) {i=4, j=6} need_replication={j}"


def test_dims_that_differ_are_marked():
    made = FactorBuilder([3], [3]).matched((4, 6, 8), (4, 5, 8), PERMUTATION, blocked=True)
    assert show_sdy(made.build()) == "([i, j, k])->([i, j, k]) {i=4, j=6, k=8} permutation={j} blocked_propagation={j}"
    (free, cut, _) = FactorBuilder([3], [3]).matched((4, 6, 8), (4, 5, 8), "pass", whole=True).build().factors
    assert free.splittable and not cut.splittable


@pytest.mark.parametrize("places", [{3: 0}, {0: 2}, {-1: 0}])
def test_a_place_that_does_not_exist(places):
    with pytest.raises(RuleError, match=r"a factor cannot lie on dim .* the ranks are \(2, 1, 1\)"):
        FactorBuilder([2, 1], [1]).factor(places, 4)


def test_conservative_rules():
    types = (TensorType.parse("f32[4, 6]"), TensorType.parse("f32[4, 8]"))
    concatenate = lookup("Concatenate")
    attrs = concatenate.check_attributes({"dim": 1})
    assert show_sdy(concatenate.rule(types, attrs)).endswith("need_replication={j}")
    assert show_sdy(concatenate.conservative_rule(types, attrs)) == "([i, j], [i, k])->([i, l]) {i=4, j=1, k=1, l=1}"
    add = lookup("Add")
    assert add.conservative_rule(types[:1] * 2, {}) is add.rule(types[:1] * 2, {})


def test_a_conservative_rule_of_ones_own():
    @operator("TestCareful", rule="a b -> a b")
    def careful(x):
        return x

    @careful.conservative
    def _(x: tuple[int, ...]) -> Rule:
        return FactorBuilder([2], [2]).along(0, x[0]).build()

    try:
        of = (TensorType.parse("f32[4, 6]"),)
        assert show_sdy(careful.rule(of, {})) == "([i, j])->([i, j]) {i=4, j=6}"
        assert show_sdy(careful.conservative_rule(of, {})) == "([i, j])->([i, k]) {i=4, j=1, k=1}"
    finally:
        remove("TestCareful")
