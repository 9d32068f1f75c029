"""User priority: rounds in the order of the numbers, gaps and all."""

from __future__ import annotations

import itertools

import pytest
from against_shardy import check, propagated

pytestmark = pytest.mark.jax


def module(batch: str, model: str, zero: str) -> str:
    """Batch split of the data, Megatron split and ZeRO split of the weights, each with its priority."""
    return f"""module {{ sdy.mesh @mesh = <["a"=2, "b"=2, "c"=4]>
  func.func @main(%x: tensor<8x6xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"a", ?}}{batch}, {{?}}]>}},
      %w: tensor<6x4xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"a", ?}}{zero}, {{"b", ?}}{model}]>}},
      %v: tensor<4x6xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"b", ?}}{model}, {{"a"}}{zero}]>}})
      -> tensor<8x6xf32> {{
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<8x6xf32>, tensor<6x4xf32>) -> tensor<8x4xf32>
    %1 = stablehlo.sine %0 : tensor<8x4xf32>
    %2 = stablehlo.dot_general %1, %v, contracting_dims = [1] x [0]
      : (tensor<8x4xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
    return %2 : tensor<8x6xf32> }} }}"""


@pytest.mark.parametrize("order", list(itertools.permutations(("p0", "p1", "p5"))))
def test_rounds(order: tuple[str, str, str]):
    check(module(*order))


@pytest.mark.parametrize("batch", ["", "p0"])
def test_none_is_zero(batch: str):
    check(module(batch, "p2", "p2"))


def test_the_log_tells_the_round():
    _, log = propagated(module("", "p1", "p5"), "sdy-user-priority-propagate")
    rounds = [event.priority for event in log.events]
    assert rounds == sorted(rounds) and set(rounds) >= {0, 1}


def test_unreduced_and_replicated_axes_are_kept():
    check("""module { sdy.mesh @mesh = <["a"=2, "b"=2, "c"=4]>
      func.func @main(%x: tensor<8x6xf32>
          {sdy.sharding = #sdy.sharding<@mesh, [{"c":(2)2, ?}p1, {?}], replicated={"a"}, unreduced={"b"}>})
          -> tensor<8x6xf32> {
        %0 = stablehlo.sine %x {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{?}, {"a", ?}p3]>]>} : tensor<8x6xf32>
        return %0 : tensor<8x6xf32> } }""")


def test_edges_wait_too():
    check("""module { sdy.mesh @mesh = <["a"=2, "b"=2, "c"=4]>
      func.func @main(%x: tensor<8x6xf32>, %y: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"a"}]>})
          -> (tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"b"}p2, {?}]>}, tensor<8x6xf32>) {
        %0:2 = stablehlo.optimization_barrier
          {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"a", ?}p1, {?}]>, <@mesh, [{?}, {?}p2]>]>} %x, %y
          : tensor<8x6xf32>, tensor<8x6xf32>
        %1 = stablehlo.add %0#0, %0#1 : tensor<8x6xf32>
        return %1, %0#1 : tensor<8x6xf32>, tensor<8x6xf32> } }""")
