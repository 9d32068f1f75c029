"""`autoshard run MODULE.mlir -n 8 --check` of loops, branches and manual computations, on MPI ranks."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.jax, pytest.mark.mpi]

HEAD = 'sdy.mesh @mesh = <["x"=2, "y"=4]>\n'
ADD = (
    "({\n^bb0(%p: tensor<f32>, %q: tensor<f32>):\n%r = stablehlo.add %p, %q : tensor<f32>\n"
    "stablehlo.return %r : tensor<f32>\n})"
)
CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"

LOOPS = """
func.func private @loops(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>},
    %w: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}) -> (tensor<8x16xf32>, tensor<i32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %f0 = stablehlo.constant dense<0.0> : tensor<f32>
  %most = stablehlo.constant dense<40.0> : tensor<f32>
  %half = stablehlo.constant dense<0.5> : tensor<8x16xf32>
  %0:2 = stablehlo.while(%a = %x, %n = %zero) : tensor<8x16xf32>, tensor<i32>
  cond {
    %square = stablehlo.multiply %a, %a : tensor<8x16xf32>
    %sum = stablehlo.reduce(%square init: %f0) applies stablehlo.add across dimensions = [0, 1]
        : (tensor<8x16xf32>, tensor<f32>) -> tensor<f32>
    %goes = stablehlo.compare GT, %sum, %most : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %goes : tensor<i1>
  } do {
    %b = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0]
        : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
    %c = stablehlo.tanh %b : tensor<8x16xf32>
    %d = stablehlo.multiply %c, %half : tensor<8x16xf32>
    %m = stablehlo.add %n, %one : tensor<i32>
    stablehlo.return %d, %m : tensor<8x16xf32>, tensor<i32>
  }
  %1 = "stablehlo.case"(%0#1) ({
    %e = stablehlo.negate %0#0 : tensor<8x16xf32>
    stablehlo.return %e : tensor<8x16xf32>
  }, {
    %g = stablehlo.dot_general %0#0, %w, contracting_dims = [1] x [1]
        : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
    stablehlo.return %g : tensor<8x16xf32>
  }) : (tensor<i32>) -> tensor<8x16xf32>
  return %1, %0#1 : tensor<8x16xf32>, tensor<i32>
}
"""

MANUAL = f"""
func.func private @manual(%x: tensor<8x16xf32>) -> tensor<16x16xf32> {{
  %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{{"x"}}, {{"y"}}]>]
      out_shardings=[<@mesh, [{{"x", "y"}}, {{}}]>] manual_axes={{"x", "y"}} (%a: tensor<4x4xf32>) {{
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %three = stablehlo.constant dense<3> : tensor<i32>
    %1:2 = stablehlo.while(%b = %a, %n = %zero) : tensor<4x4xf32>, tensor<i32>
    cond {{
      %goes = stablehlo.compare LT, %n, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %goes : tensor<i1>
    }} do {{
      %c = "stablehlo.collective_permute"(%b) <{{{CHANNEL},
          source_target_pairs = dense<[[0, 1], [1, 2], [2, 3], [3, 0], [4, 5], [5, 6], [6, 7]]> : tensor<7x2xi64>}}>
          : (tensor<4x4xf32>) -> tensor<4x4xf32>
      %d = stablehlo.add %b, %c : tensor<4x4xf32>
      %m = stablehlo.add %n, %one : tensor<i32>
      stablehlo.return %d, %m : tensor<4x4xf32>, tensor<i32>
    }}
    %2 = "stablehlo.all_gather"(%1#0) <{{all_gather_dim = 1 : i64, {CHANNEL},
        replica_groups = dense<[[0, 1, 2, 3], [4, 5, 6, 7]]> : tensor<2x4xi64>, use_global_device_ids}}>
        : (tensor<4x4xf32>) -> tensor<4x16xf32>
    %3 = "stablehlo.all_reduce"(%2) <{{{CHANNEL},
        replica_groups = dense<[[0, 7], [1, 6], [2, 5], [3, 4]]> : tensor<4x2xi64>, use_global_device_ids}}> {ADD}
        : (tensor<4x16xf32>) -> tensor<4x16xf32>
    %4 = "stablehlo.reduce_scatter"(%3) <{{scatter_dimension = 0 : i64, {CHANNEL},
        replica_groups = dense<[[0, 4], [1, 5], [2, 6], [3, 7]]> : tensor<4x2xi64>, use_global_device_ids}}> {ADD}
        : (tensor<4x16xf32>) -> tensor<2x16xf32>
    %5 = stablehlo.sine %4 : tensor<2x16xf32>
    sdy.return %5 : tensor<2x16xf32>
  }} : (tensor<8x16xf32>) -> tensor<16x16xf32>
  return %0 : tensor<16x16xf32>
}}
"""


MAIN = """
func.func public @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>},
    %w: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>})
    -> (tensor<8x16xf32>, tensor<i32>, tensor<16x16xf32>) {
  %0:2 = call @loops(%x, %w) : (tensor<8x16xf32>, tensor<16x16xf32>) -> (tensor<8x16xf32>, tensor<i32>)
  %1 = call @manual(%x) : (tensor<8x16xf32>) -> tensor<16x16xf32>
  return %0#0, %0#1, %1 : tensor<8x16xf32>, tensor<i32>, tensor<16x16xf32>
}
"""


def test_run_on_eight_ranks(cli, tmp_path):
    path = tmp_path / "model.mlir"
    path.write_text(HEAD + MAIN + LOOPS + MANUAL)
    code, out, err = cli("run", str(path), "-n", "8", "--check", "--timeout", "200")
    assert code == 0, err
    first, last = out.splitlines()
    assert " 7 collectives; " in first and last == "equal to the unsplit run"
