"""Op priority: each level against Shardy, and orders that users give."""

from __future__ import annotations

import pytest
from against_shardy import check, propagated

from autoshard.propagate.levels import ORDER, Level
from autoshard.propagate.step import BACKWARD, BOTH, FORWARD
from autoshard.util.errors import UnknownNameError

pytestmark = pytest.mark.jax
HEAD = 'module { sdy.mesh @mesh = <["a"=2, "b"=2, "c"=4]> '
A, B = ('{sdy.sharding = #sdy.sharding<@mesh, [{"' + axis + '", ?}, {?}]>}' for axis in "ab")
# The product would like "a" on its rows, the sum with y has "b": elementwise goes first.
MATMUL = f"""{HEAD} func.func @main(%x: tensor<8x6xf32> {A}, %w: tensor<6x4xf32>, %y: tensor<8x4xf32> {B})
    -> tensor<8x4xf32> {{
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<8x6xf32>, tensor<6x4xf32>) -> tensor<8x4xf32>
  %1 = stablehlo.add %0, %y : tensor<8x4xf32>
  return %1 : tensor<8x4xf32> }} }}"""
# x is used twice, so nothing passes its sine and cosine at level 0.
SHARED = f"""{HEAD} func.func @main(%x: tensor<8x6xf32>, %y: tensor<8x6xf32> {A})
    -> (tensor<8x6xf32> {B}, tensor<8x6xf32>, tensor<6x8xf32>) {{
  %0 = stablehlo.sine %x : tensor<8x6xf32>
  %1 = stablehlo.cosine %x : tensor<8x6xf32>
  %2 = stablehlo.add %1, %y : tensor<8x6xf32>
  %3 = stablehlo.transpose %2, dims = [1, 0] : (tensor<8x6xf32>) -> tensor<6x8xf32>
  return %0, %2, %3 : tensor<8x6xf32>, tensor<8x6xf32>, tensor<6x8xf32> }} }}"""
BROADCAST = f"""{HEAD} func.func @main(%x: tensor<8xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"a", ?}}]>}},
    %y: tensor<8x6xf32> {B}, %n: tensor<i32>) -> (tensor<8x6xf32>, tensor<8x3xf32>, tensor<8xf32>) {{
  %0 = stablehlo.broadcast_in_dim %x, dims = [0] : (tensor<8xf32>) -> tensor<8x6xf32>
  %1 = stablehlo.add %0, %y : tensor<8x6xf32>
  %2 = stablehlo.dynamic_slice %1, %n, %n, sizes = [8, 3]
    : (tensor<8x6xf32>, tensor<i32>, tensor<i32>) -> tensor<8x3xf32>
  %3 = stablehlo.broadcast_in_dim %x, dims = [0] : (tensor<8xf32>) -> tensor<8xf32>
  return %1, %2, %3 : tensor<8x6xf32>, tensor<8x3xf32>, tensor<8xf32> }} }}"""


@pytest.mark.parametrize("text", [MATMUL, SHARED, BROADCAST])
def test_levels(text: str):
    check(text)


def placed(text: str, order: tuple[Level, ...]) -> list[tuple[str, int | None]]:
    _, log = propagated(text, "sdy-op-priority-propagate", order=order)
    return [(event.op.name, event.level) for event in log.events if event.output is None]


def test_the_log_tells_the_level():
    assert placed(MATMUL, ORDER)[0] == ("Add", 0)


def test_an_order_of_the_user():
    matmul_first = (Level(operators={"DotGeneral": BOTH}), Level(others=BOTH))
    assert placed(MATMUL, matmul_first)[0] == ("DotGeneral", 0)
    only_forward = (Level({"pointwise": FORWARD}),)
    assert {name for name, _ in placed(SHARED, only_forward)} <= {"Add", "Sin", "Cos"}
    assert all(level == 0 for _, level in placed(SHARED, only_forward))
    assert not placed(BROADCAST, (Level({"broadcast": BACKWARD}),))


def test_unknown_names():
    with pytest.raises(UnknownNameError, match="unknown spread class 'elementwise'; known are 'pointwise', 'move'"):
        Level({"elementwise": BOTH})
    with pytest.raises(UnknownNameError, match="unknown operator 'DotGenral'; did you mean 'DotGeneral'"):
        Level(operators={"DotGenral": BOTH})
