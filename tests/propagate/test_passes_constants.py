"""Splitting constants and merging them again, against Shardy's passes: operations, their order, the order of uses."""

from __future__ import annotations

import pytest

from autoshard.propagate.mutable_ir import MutableModule
from autoshard.propagate.passes.cleanup import drop_dead
from autoshard.propagate.passes.constants import merge_constants, split_constants
from tests.propagate.compare import check, dump, load, module_text

pytestmark = pytest.mark.jax
SPLIT, MERGE = "sdy-constant-or-scalar-splitter", "func.func(sdy-constant-or-scalar-merger)"

USES = module_text("constant_uses")

REGIONS = module_text("constant_regions")

FUNCTIONS = module_text("constant_functions")


@pytest.mark.parametrize("text", [USES, REGIONS, FUNCTIONS], ids=["uses", "regions", "functions"])
def test_constants_are_split_as_in_shardy(text: str) -> None:
    check(text, split_constants, [SPLIT], uses=True)


@pytest.mark.parametrize("text", [USES, REGIONS, FUNCTIONS], ids=["uses", "regions", "functions"])
def test_constants_are_merged_as_in_shardy(text: str) -> None:
    def split_and_merge(module: MutableModule) -> None:
        split_constants(module)
        merge_constants(module)

    check(text, split_and_merge, [SPLIT, MERGE])


def test_constants_with_different_shardings_stay_apart() -> None:
    text = """
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%arg0: tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>) {
  %a = sdy.constant {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} dense<2.0> : tensor<8x4xf32>
  %b = sdy.constant {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"y"}, {}]>]>} dense<2.0> : tensor<8x4xf32>
  %c = sdy.constant {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} dense<2.0> : tensor<8x4xf32>
  %d = sdy.constant {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} dense<3.0> : tensor<8x4xf32>
  %0 = stablehlo.add %a, %b : tensor<8x4xf32>
  %1 = stablehlo.add %c, %d : tensor<8x4xf32>
  return %0, %1, %c : tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>
}"""
    check(text, merge_constants, [MERGE])


def test_a_constant_used_once_is_not_touched() -> None:
    text = """
func.func @main(%arg0: tensor<6xf32>) -> tensor<6xf32> {
  %c = stablehlo.constant dense<2.0> : tensor<6xf32>
  %0 = stablehlo.add %arg0, %c : tensor<6xf32>
  return %0 : tensor<6xf32>
}"""
    module = load(text)
    before = list(dump(module))
    split_constants(module)
    assert list(dump(module)) == before


def test_dead_operations_go_with_what_only_they_use() -> None:
    text = """
func.func @main(%arg0: tensor<6xf32>) -> tensor<6xf32> {
  %0 = stablehlo.add %arg0, %arg0 : tensor<6xf32>
  %1 = stablehlo.multiply %0, %arg0 : tensor<6xf32>
  %2 = stablehlo.while(%it = %1) : tensor<6xf32>
   cond {
    %yes = sdy.constant dense<true> : tensor<i1>
    stablehlo.return %yes : tensor<i1>
   } do {
    %none = stablehlo.tanh %it : tensor<6xf32>
    stablehlo.return %it : tensor<6xf32>
   }
  %3 = func.call @f(%0) : (tensor<6xf32>) -> tensor<6xf32>
  %4 = stablehlo.while(%it = %3) : tensor<6xf32>
   cond {
    %yes = sdy.constant dense<true> : tensor<i1>
    stablehlo.return %yes : tensor<i1>
   } do {
    %none = stablehlo.tanh %it : tensor<6xf32>
    stablehlo.return %it : tensor<6xf32>
   }
  return %4 : tensor<6xf32>
}
func.func private @f(%arg0: tensor<6xf32>) -> tensor<6xf32> {
  %0 = stablehlo.tanh %arg0 : tensor<6xf32>
  return %arg0 : tensor<6xf32>
}"""
    check(text, drop_dead, ["canonicalize{enable-patterns={sdy-collective} region-simplify=aggressive}"])
