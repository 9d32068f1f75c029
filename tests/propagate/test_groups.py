"""Sharding groups: members agree from the start, stay alike, and part where people ask for different things."""

from __future__ import annotations

import pytest
from against_shardy import check, propagated, work_of

from autoshard.propagate.groups import ShardingGroups
from autoshard.util.errors import GraphError

pytestmark = pytest.mark.jax
A, OPEN_B = '[{"a", ?}, {?}]', '[{?}, {?}], replicated={"b"}'


def module(x: str, y: str, output: str = "", extra: str = "") -> str:
    def asked(text: str) -> str:
        return f"{{sdy.sharding = #sdy.sharding<@mesh, {text}>}}" if text else ""

    return f"""module {{ sdy.mesh @mesh = <["a"=2, "b"=2, "c"=4]>
  func.func @main(%x: tensor<8x6xf32> {asked(x)}, %y: tensor<8x6xf32> {asked(y)}, %z: tensor<8x6xf32>)
      -> (tensor<8x6xf32> {asked(output)}, tensor<8x6xf32>, tensor<8x6xf32>) {{
    %0 = stablehlo.sine %x : tensor<8x6xf32>
    %1 = stablehlo.cosine %y : tensor<8x6xf32>
    sdy.sharding_group %x group_id=3 : tensor<8x6xf32>
    sdy.sharding_group %y group_id=3 : tensor<8x6xf32>
    sdy.sharding_group %1 group_id=0 : tensor<8x6xf32>
    sdy.sharding_group %z group_id=0 : tensor<8x6xf32>
    {extra}
    return %0, %1, %z : tensor<8x6xf32>, tensor<8x6xf32>, tensor<8x6xf32> }} }}"""


@pytest.mark.parametrize(
    ("x", "y", "output"),
    [
        (A, "", ""),
        ("", A, '[{?}, {"c"}]'),
        ("", "", '[{"b"}, {"c":(1)2}]'),
        (OPEN_B, A, ""),
        (OPEN_B, "", '[{"a"}, {"b"}]'),
        (A, A, '[{"a"}, {"b"}]'),
    ],
)
def test_agreement(x: str, y: str, output: str):
    check(module(x, y, output))
    assert not propagated(module(x, y, output), "sdy-basic-propagate")[1].warnings


def test_conflict():
    text = module(A, '[{?}, {"a", ?}]', '[{"c", ?}, {?}]')
    check(text)
    _, log = propagated(text, "sdy-basic-propagate")
    assert log.warnings == (
        'the values of sharding group 3 are asked to lie in different ways: <@mesh, [{"a", ?}, {?}]> and '
        '<@mesh, [{?}, {"a", ?}]>; they keep these, and the group starts with an open sharding',
    )


def test_results_do_not_bring_what_outputs_have_into_a_group():
    text = """module { sdy.mesh @mesh = <["a"=2, "b"=2, "c"=4]>
      func.func @main(%x: tensor<6xf32>) -> tensor<6xf32> {
        %0 = sdy.sharding_constraint %x <@mesh, [{"a", "b", ?}], replicated={"c"}> : tensor<6xf32>
        %1 = sdy.sharding_constraint %x <@mesh, [{"a", ?}], replicated={"b"}> : tensor<6xf32>
        sdy.sharding_group %1 group_id=0 : tensor<6xf32>
        sdy.sharding_group %x group_id=0 : tensor<6xf32>
        return %1 : tensor<6xf32> } }"""
    check(text)


def test_a_value_in_two_groups():
    with pytest.raises(GraphError, match="is in the sharding groups 3 and 4; a value can be in one only"):
        ShardingGroups(work_of(module("", "", extra="sdy.sharding_group %x group_id=4 : tensor<8x6xf32>")))
