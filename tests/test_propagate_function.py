"""propagate() from Python: traced models and StableHLO modules, reports, stories, files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import autoshard
from autoshard import Mesh, propagate
from autoshard.api.propagate import PASSES
from autoshard.propagate.levels import Level
from autoshard.propagate.step import BOTH
from autoshard.report.propagation import to_json
from autoshard.trace.function import trace
from autoshard.util.errors import ContextError, PlanError, RuntimeSetupError, ShardingError, UnknownNameError
from tests.cli.shardings import Net, net

X = np.ones((48, 10), np.float32)
MESH = "dp=2,tp=4"


def by_name(spread: autoshard.Propagated) -> dict[str, str]:
    return {value.name: str(sharding) for value, sharding in spread.shardings.items()}


@pytest.mark.parametrize("which", PASSES)
def test_a_model(which):
    model, x = net()
    spread = propagate(model, x, MESH, which=which)
    more = "" if which == "full" else ", ?"
    found = by_name(spread)
    # The basic strategy leaves it whole: tp splits what the product sums over, too.
    columns = "?" if which == "basic" else f'"tp"{more}'
    assert found["dense2.matmul"] == f'<@mesh, [{{"dp"{more}}}, {{{columns}}}]>'
    assert found["x"] == '<@mesh, [{"dp"' + more + "}, {" + ("" if which == "full" else "?") + "}]>"
    assert spread.which == which and spread.seconds > 0


@pytest.mark.parametrize("mesh", [MESH, Mesh.parse(MESH)])
def test_what_may_be_propagated(mesh):
    for target, inputs in ((Net(), X), (Net(), (X,)), (trace(Net(), X), ())):
        assert by_name(propagate(target, inputs, mesh))["dense1.weight"] == '<@mesh, [{}, {"tp"}]>'


def test_an_order_of_ones_own():
    nothing = propagate(Net(), X, MESH, which="op-priority", order=(Level(),))
    assert nothing.log.events == ()
    only = (Level(operators={"ReLU": BOTH}),)
    spread = propagate(Net(), X, MESH, which="op-priority", order=only)
    assert [event.op.name for event in spread.log.events] == []
    both = (Level(spreads={"pointwise": BOTH}),)
    spread = propagate(Net(), X, MESH, which="op-priority", order=both)
    assert {event.op.name for event in spread.log.events} == {"ReLU", "ShardingConstraint"}
    assert "level 1 of 1: elementwise operators" in spread.explain("relu")


@pytest.mark.parametrize("which", ["basic", "aggressive"])
def test_an_order_needs_op_priority(which):
    with pytest.raises(ContextError, match=f"the pass '{which}' has none"):
        propagate(Net(), X, MESH, which=which, order=(Level(),))


def test_wrong_calls():
    with pytest.raises(ContextError, match="unknown propagation pass 'all'; known are basic"):
        propagate(Net(), X, MESH, which="all")
    with pytest.raises(PlanError, match="'net' is a traced model; give the mesh"):
        propagate(Net(), X)
    with pytest.raises(PlanError, match="names its own meshes; leave mesh out"):
        propagate("model.mlir", mesh=MESH)
    with pytest.raises(ShardingError, match=r"dense1.weight at .*shardings.py:\d+ .* axis 'tp' is not in the mesh"):
        propagate(Net(), X, "dp=8")


def test_a_model_is_no_module():
    spread = propagate(Net(), X, MESH)
    with pytest.raises(PlanError, match="'net' was not read from a StableHLO module"):
        spread.to_mlir()
    with pytest.raises(PlanError):
        spread.save("model.mlir")
    assert not Path("model.mlir").exists()


def test_the_report_is_repeatable():
    first, second = (propagate(Net(), X, MESH) for _ in range(2))
    assert first.report().splitlines()[1:] == second.report().splitlines()[1:]
    assert first.explain("relu") == second.explain("relu")
    assert {**to_json(first), "seconds": 0} == {**to_json(second), "seconds": 0}
    narrow, wide = (max(map(len, text.splitlines()[2:])) for text in (first.report(width=70), first.report()))
    assert narrow <= 70 < wide


def test_a_story():
    told = propagate(Net(), X, MESH, which="basic").explain("x").splitlines()
    assert told[0] == 'x: f32[48, 10], sharding [{"dp", ?}, {?}]'
    story = [line.split("  [")[0].split(". ", 1)[1].split("  ") for line in told if ". " in line[:8]]
    assert [parts[-1].strip() for parts in story] == [
        'asked by the sharding constraint sharding_constraint: {"dp", ?}',
        "from sharding_constraint dim 0, backward through ShardingConstraint sharding_constraint",
        "from relu dim 0, backward through ReLU relu",
        "from dense1.matmul dim 0, backward through MatMul dense1.matmul (result to operand 0)",
    ]
    assert told[-1] == "dim 1, of 10, is whole: no axes came to it"


def test_an_unknown_value():
    spread = propagate(Net(), X, MESH)
    with pytest.raises(UnknownNameError, match="'dense.matmul'; did you mean 'dense2.matmul' or 'dense1.matmul'"):
        spread.explain("dense.matmul")


# -- modules

TEXT = """sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%arg0: tensor<8x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {?}]>},
    %arg1: tensor<8x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"y"}]>}) -> tensor<8x12xf32> {
  %0 = stablehlo.add %arg0, %arg1 : tensor<8x12xf32>
  return %0 : tensor<8x12xf32>
}
"""


@pytest.mark.jax
def test_a_module_from_text_path_or_import(tmp_path):
    path = tmp_path / "model.mlir"
    path.write_text(TEXT)
    imported = autoshard.from_stablehlo(TEXT)
    outcomes = [propagate(target) for target in (TEXT, path, str(path), imported)]
    assert len({spread.to_mlir() for spread in outcomes}) == 1
    assert [spread.file for spread in outcomes] == ["", str(path), str(path), ""]
    assert by_name(outcomes[0])["%0"] == '<@mesh, [{"x"}, {"y"}]>'
    told = [spread.explain("%0") for spread in outcomes]
    assert f"{path}:4]" in told[1] == told[2]
    assert "[" + str(path) not in told[0] == told[3]


@pytest.mark.jax
def test_saving_a_module(tmp_path):
    spread = propagate(TEXT, which="basic")
    spread.save(tmp_path / "out.mlir", keep_rules=True)
    text = (tmp_path / "out.mlir").read_text()
    assert text == spread.to_mlir(keep_rules=True) != spread.to_mlir()
    assert by_name(propagate(text, which="basic")) == by_name(spread)
    with pytest.raises(RuntimeSetupError, match="cannot write"):
        spread.save(tmp_path / "absent" / "out.mlir")


@pytest.mark.jax
def test_all_public_functions_stay():
    text = TEXT + "func.func public @other(%arg0: tensor<4xf32>) -> tensor<4xf32> { return %arg0 : tensor<4xf32> }\n"
    assert "@other" in propagate(text).to_mlir()
    assert "@other" not in propagate(text.replace("public", "private")).to_mlir()


@pytest.mark.jax
def test_disagreeing_groups_are_a_warning():
    text = TEXT.replace(
        "  return",
        "  sdy.sharding_group %arg0 group_id=1 : tensor<8x12xf32>\n"
        "  sdy.sharding_group %arg1 group_id=1 : tensor<8x12xf32>\n  return",
    )
    spread = propagate(text, which="basic")
    [warning] = to_json(spread)["warnings"]
    assert warning in spread.report().replace("\n", " ")
    assert "sharding group 1 are asked to lie in different ways" in warning


DYNAMIC = """sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%d: tensor<?x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"y"}]>},
    %x: tensor<8x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {?}]>}) -> (tensor<?x12xf32>, tensor<8x12xf32>) {
  %0 = stablehlo.negate %d : tensor<?x12xf32>
  %1 = stablehlo.negate %x : tensor<8x12xf32>
  return %0, %1 : tensor<?x12xf32>, tensor<8x12xf32>
}
"""


@pytest.mark.jax
def test_shardings_spread_around_tensors_of_dynamic_size():
    spread = propagate(DYNAMIC)
    found = {value.name: str(sharding) for value, sharding in spread.shardings.items()}
    assert found == {
        "%arg0": '<@mesh, [{}, {"y"}]>',
        "%arg1": '<@mesh, [{"x"}, {}]>',
        "%0": "None",
        "%1": '<@mesh, [{"x"}, {}]>',
    }
    assert "stablehlo.negate %arg0 : tensor<?x12xf32>" in spread.to_mlir()
    assert "%1" in spread.report()
    with pytest.raises(autoshard.util.errors.ShapeError, match="its shape is dynamic"):
        _ = spread.graph.inputs[0].type.nbytes
    with pytest.raises(autoshard.util.errors.ShapeError, match=r"cannot import tensor<\?x12xf32>"):
        autoshard.from_stablehlo(DYNAMIC)
