"""`autoshard partition`: the list of collectives, as a table and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

MODELS = Path(__file__).with_name("models.py")
FORWARD = f"{MODELS}:forward"
KEYS = {"kind", "bytes_moved", "group_size", "axes", "operator"}

MODULE = """sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func public @main(
    %x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>},
    %w: tensor<16x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>})
    -> (tensor<8x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<8x16xf32>, tensor<16x12xf32>) -> tensor<8x12xf32>
  return %0 : tensor<8x12xf32>
}
"""

LOOP = """sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func public @main(%a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>},
    %w: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>})
    -> (tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}) {
  %n = stablehlo.constant dense<5> : tensor<i32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %r:2 = stablehlo.while(%i = %c0, %x = %a) : tensor<i32>, tensor<8x16xf32>
    cond {
      %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %j = stablehlo.add %i, %one : tensor<i32>
      %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
        : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
      stablehlo.return %j, %y : tensor<i32>, tensor<8x16xf32>
    }
  return %r#1 : tensor<8x16xf32>
}
"""


def listed(cli, *arguments: str) -> dict:
    code, out, err = cli("partition", *arguments, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert all(set(one) == KEYS for one in found["collectives"])
    assert found["total_bytes_moved"] == sum(one["bytes_moved"] for one in found["collectives"])
    return found


def test_a_script(cli):
    found = listed(cli, FORWARD, "--mesh", "dp=2,tp=4", "--mode", "sharding_propagation")
    assert found["collectives"], "the model's second product is split along what it sums over"
    assert {axis for one in found["collectives"] for axis in one["axes"]} <= {"dp", "tp"}
    assert any("models.py:" in one["operator"] for one in found["collectives"])
    for one in found["collectives"]:
        assert one["kind"] in {"all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute"}
        assert one["group_size"] > 1


def test_the_table_tells_the_same(cli):
    found = listed(cli, FORWARD, "-n", "8", "--mode", "sharding_propagation")
    code, out, _ = cli("partition", FORWARD, "-n", "8", "--mode", "sharding_propagation")
    assert code == 0
    assert sum(line.split()[0] == one["kind"] for one in found["collectives"][:1] for line in out.splitlines()) >= 1
    assert f"{len(found['collectives'])} collective" in out
    head, row, *_ = out.splitlines()
    assert row[: head.index("sends") + 5].endswith("B"), "figures stand to the right"


@pytest.mark.jax
def test_a_module(cli, tmp_path):
    (tmp_path / "model.mlir").write_text(MODULE)
    found = listed(cli, str(tmp_path / "model.mlir"), "--mode", "factor")
    (one,) = found["collectives"]
    local = 4 * 12 * 4  # a rank's rows, columns, bytes
    assert (one["kind"], one["group_size"], one["axes"]) == ("all-reduce", 4, ["y"])
    assert one["bytes_moved"] == 2 * 3 / 4 * local
    assert found["executed"] == {"times": [1], "total_bytes_moved": one["bytes_moved"]}


@pytest.mark.jax
def test_collectives_in_loops_count_once_and_are_told_as_often_as_they_run(cli, tmp_path):
    (tmp_path / "loop.mlir").write_text(LOOP)
    found = listed(cli, str(tmp_path / "loop.mlir"), "--mode", "factor")
    times = found["executed"]["times"]
    assert len(times) == len(found["collectives"])
    total = sum(one["bytes_moved"] * count for one, count in zip(found["collectives"], times, strict=True))
    assert found["executed"]["total_bytes_moved"] == total
    # x @ w, x split by columns and w by rows: terms, scattered over columns again; 8 x 16 floats on each rank
    inside = [one for one, count in zip(found["collectives"], times, strict=True) if count == 5]
    assert [(one["kind"], one["bytes_moved"]) for one in inside] == [("reduce-scatter", 3 / 4 * 8 * 16 * 4)]


def test_neither_mesh_nor_devices(cli):
    code, out, err = cli("partition", FORWARD)
    assert (code, out) == (2, "")
    assert "-n N" in err
