"""`autoshard propagate` and `autoshard explain` on StableHLO modules, good and bad ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jax._src.interpreters import mlir as jax_mlir
from jaxlib.mlir import ir

from autoshard.api.propagate import Propagated

pytestmark = pytest.mark.jax

MESH = 'sdy.mesh @mesh = <["x"=2, "y"=4]>\n'
MODULE = (
    MESH
    + """func.func @main(%arg0: tensor<8x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {?}]>},
    %arg1: tensor<8x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"x", ?}]>})
    -> (tensor<8x12xf32>, tensor<8x12xf32>) {
  %0 = stablehlo.custom_call @mystery(%arg0) : (tensor<8x12xf32>) -> tensor<8x12xf32>
  %1 = stablehlo.custom_call @mystery(%0) : (tensor<8x12xf32>) -> tensor<8x12xf32>
  %2 = stablehlo.add %arg0, %arg1 : tensor<8x12xf32>
  %3 = call @f(%2) : (tensor<8x12xf32>) -> tensor<8x12xf32>
  return %1, %3 : tensor<8x12xf32>, tensor<8x12xf32>
}
func.func private @f(%arg0: tensor<8x12xf32>) -> tensor<8x12xf32> {
  %0 = stablehlo.tanh %arg0 : tensor<8x12xf32>
  return %0 : tensor<8x12xf32>
}
"""
)


CONFLICT = (
    MESH
    + """func.func @main(%arg0: tensor<8x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {?}]>},
    %arg1: tensor<8x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"x", ?}]>}) -> tensor<8x12xf32> {
  %0 = stablehlo.tanh %arg0 : tensor<8x12xf32>
  %1 = stablehlo.add %0, %arg1 : tensor<8x12xf32>
  %2 = stablehlo.sine %1 : tensor<8x12xf32>
  %3 = stablehlo.add %2, %arg1 : tensor<8x12xf32>
  return %3 : tensor<8x12xf32>
}
"""
)


@pytest.fixture
def module(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.mlir"
    path.write_text(MODULE)
    return path


def test_a_module_is_held_against_shardy(cli, module):
    code, out, err = cli("propagate", "model.mlir", "--against", "shardy")
    assert (code, err) == (0, "")
    assert out.startswith("the module is the one that shardy of jaxlib") and "custom_call" not in out
    code, out, _ = cli("propagate", "model.mlir", "--against", "shardy", "--pass", "basic", "--json")
    assert code == 0 and json.loads(out)["against"]["agrees"]
    code, _, err = cli("propagate", "model.mlir", "--against", "gspmd")
    assert code == 2 and "--against gspmd: the one peer that is known is shardy" in err


def test_what_differs_from_shardy_is_printed(cli, module, monkeypatch):
    Path("model.mlir").write_text(CONFLICT)
    assert cli("propagate", "model.mlir", "--against", "shardy", "--pass", "aggressive")[0] == 0
    ours = Propagated.to_mlir
    monkeypatch.setattr(
        Propagated, "to_mlir", lambda spread: ours(spread).replace("stablehlo.add", "stablehlo.multiply")
    )
    code, out, _ = cli("propagate", "model.mlir", "--against", "shardy", "--pass", "aggressive")
    assert code == 1
    assert "leaves another module" in out and "\n-" in out and "\n+" in out


def parsed(text: str) -> str:
    """MLIR takes it, and prints it as it is."""
    with jax_mlir.make_ir_context():
        return str(ir.Module.parse(text))


def test_the_module_goes_to_the_standard_output(cli, module):
    code, out, err = cli("propagate", "model.mlir")
    assert code == 0
    assert 'sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>' in parsed(out)
    assert out.index("stablehlo.custom_call") < out.index("stablehlo.add") < out.index("stablehlo.tanh")
    # What people should know does not disturb it.
    assert "custom call mystery" in err and "conflicts" in err and "sharding  " not in err


def test_the_module_goes_to_a_file(cli, module):
    code, out, err = cli("propagate", "model.mlir", "-o", "out.mlir", "--pass", "op-priority")
    assert code == 0 and err == ""
    text = Path("out.mlir").read_text()
    parsed(text)
    assert "sharding_rule" not in text
    assert "pass op-priority" in out and "operators without a rule" in out
    wall = next(line.split() for line in out.splitlines() if line.startswith("custom call mystery"))
    assert wall[3:] == ["2", "model.mlir:5", "and", "model.mlir:6"]
    assert sorted(path.name for path in Path().iterdir()) == ["model.mlir", "out.mlir"]


def test_rules_are_kept_on_request(cli, module):
    code, _, _ = cli("propagate", "model.mlir", "-o", "out.mlir", "--pass", "aggressive", "--keep-rules")
    assert code == 0
    assert "#sdy.op_sharding_rule<([i, j], [i, j])->([i, j]) {i=8, j=12}>" in Path("out.mlir").read_text()


def test_json_and_a_file(cli, module):
    code, out, _ = cli("propagate", "model.mlir", "-o", "out.mlir", "--json")
    assert code == 0 and Path("out.mlir").is_file()
    found = json.loads(out)
    assert found["without_rule"] == [
        {"name": "custom call mystery", "count": 2, "sources": ["model.mlir:5", "model.mlir:6"]}
    ]
    assert [one["sharding"] for one in found["outputs"]] == [None, '<@mesh, [{"x"}, {}]>']
    assert {one["reason"] for one in found["conflicts"]} >= {"order"}
    names = [one["name"] for one in found["values"]]
    assert "%2" in names and "f/%0" in names


def test_reading_back_what_was_written_changes_nothing(cli, module):
    cli("propagate", "model.mlir", "-o", "once.mlir", "--pass", "basic")
    cli("propagate", "once.mlir", "-o", "twice.mlir", "--pass", "basic")
    assert Path("once.mlir").read_text() == Path("twice.mlir").read_text()


def test_explain_across_a_call(cli, module, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    code, out, _ = cli("explain", "model.mlir", "f/%0", "--pass", "full")
    assert code == 0
    assert 'dim 0, of 8, is split in 2 over "x":' in out
    steps = [line for line in out.splitlines() if line[:5].strip().rstrip(".").isdigit()]
    assert "asked of argument %arg0" in steps[0] and "[model.mlir:2]" in steps[0]
    assert "forward through Add %2 (operand 0 to result)" in steps[1] and "[model.mlir:7]" in steps[1]
    assert "forward into the body of the function f, called at %3" in steps[2]
    assert "forward through Tanh f/%0" in steps[3] and "[model.mlir:12]" in steps[3]
    assert 'conflict, decided: "x" of %arg1 dim 1 did not spread to %2 dim 1' in out
    # Arguments have the place of their function.
    assert '"x" of %arg1 dim 1: asked of argument %arg1  [model.mlir:' in out


@pytest.mark.parametrize("name", ["%2", "2", "f/%arg0", "%arg1", "output 1"])
def test_explain_names(cli, module, name):
    assert cli("explain", "model.mlir", name)[0] == 0


def test_a_value_that_nothing_reached(cli, module):
    _, out, _ = cli("explain", "model.mlir", "%1")
    assert "no rule splits it: no sharding reached it" in out


# -- bad input


def function(arg: str = "", result: str = "", body: str = "", returned: str = "%arg0") -> str:
    of = "tensor<8x12xf32>"
    attrs = [f" {{sdy.sharding = #sdy.sharding<{one}>}}" if one else "" for one in (arg, result)]
    return f"func.func @main(%arg0: {of}{attrs[0]}) -> ({of}{attrs[1]}) {{\n{body}return {returned} : {of}\n}}\n"


def constrained(sharding: str) -> str:
    body = f"%0 = sdy.sharding_constraint %arg0 <{sharding}> : tensor<8x12xf32>\n"
    return MESH + function(body=body, returned="%0")


@pytest.mark.parametrize(
    "text, words",
    [
        # What is no module.
        ("", "there is nothing in it"),
        ("hello", "bad.mlir"),
        (MESH + "func.func @main(", "bad.mlir:2:16: expected non-function type"),
        (MESH + function().replace("return", "returns"), "bad.mlir:3:"),
        (MESH, "no function with a body"),
        ('func.func @main(%a: tensor<8xf32>) { "mhlo.none"(%a) : (tensor<8xf32>) -> () return }', "mhlo.none"),
        # Shardings, each with its place.
        (MESH + function('@mesh, [{"x"}]'), "arg 0 - sharding doesn't match tensor rank: 1 != 2"),
        (MESH + function(result='@mesh, [{"x"}, {}, {}]'), "result 0 - sharding doesn't match tensor rank: 3 != 2"),
        (MESH + function('@mesh, [{"z"}, {}]'), 'unknown axis name: "z"'),
        (MESH + 'sdy.mesh @other = <["z"=2]>\n' + function('@mesh, [{"z"}, {}]'), 'arg 0 - unknown axis name: "z"'),
        (function('@mesh, [{"x"}, {}]'), "unknown mesh: @mesh"),
        (MESH + function('@mesh, [{"x"}, {"x"}]'), 'duplicate axis ref: "x"'),
        (MESH + function('@mesh, [{"x"}, {}], replicated={"x"}'), 'duplicate axis ref: "x"'),
        (MESH + function('@mesh, [{"x"}, {}], unreduced={"x"}'), 'duplicate axis ref: "x"'),
        (MESH + function('@mesh, [{"y":(1)3}, {}]'), "doesn't divide the size of the full axis 4"),
        (MESH + function('@mesh, [{"y":(1)2, "y":(2)2}, {}]'), "two consecutive sub-axes can be merged"),
        (MESH + function('@mesh, [{"y":(1)4}, {}]'), "sub-axis size is equal to the full axis size"),
        (MESH + function('@mesh, [{"y":(1)1}, {}]'), "sub-axis sizes must be greater than 1"),
        (MESH + function("@mesh, [{}p1, {}]"), "dim 0 is empty and closed but has a priority"),
        (constrained('@mesh, [{"x"}]'), "bad.mlir:3:6: 'sdy.sharding_constraint' op"),
        (MESH.replace('"y"=4', '"x"=4') + function(), 'duplicate axis name: "x"'),
        (
            MESH.replace('"y"=4', '"y"=0') + function(),
            "bad.mlir:1:27: custom op 'sdy.mesh' axis size must be at least 1, got: 0",
        ),
    ],
)
def test_bad_modules_are_named_with_their_place(cli, tmp_path, monkeypatch, text, words):
    monkeypatch.chdir(tmp_path)
    Path("bad.mlir").write_text(text)
    code, out, err = cli("propagate", "bad.mlir", "-o", "out.mlir")
    assert code == 2 and out == ""
    assert words in err and "bad.mlir" in err
    assert "Traceback" not in err
    assert not Path("out.mlir").exists()


def test_what_is_neither_text_nor_bytecode(cli, tmp_path):
    path = tmp_path / "noise.mlir"
    path.write_bytes(b"\xff\xfe\x00\x01")
    code, _, err = cli("propagate", str(path))
    assert code == 2 and "noise.mlir as a StableHLO module: it is neither text nor MLIR bytecode" in err


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("-n", "8"), "meshes that it names itself (sdy.mesh); leave -n out"),
        (("--mesh", "x=2"), "meshes that it names itself (sdy.mesh); leave --mesh out"),
        (("-o", "absent/out.mlir"), "there is no directory absent"),
        (("-o", "."), "cannot write .: it is a directory"),
        (("--keep-rules", "--json"), "--keep-rules is for the module that is written"),
    ],
)
def test_options_that_do_not_fit(cli, module, arguments, words):
    code, out, err = cli("propagate", "model.mlir", *arguments)
    assert code == 2 and out == "" and words in err


def test_another_kind_of_file(cli, module):
    other = module.rename("model.txt")
    code, _, err = cli("propagate", str(other))
    assert code == 2 and "the name of a StableHLO module ends in .mlir" in err


def test_a_name_that_is_gone(cli, module):
    module.write_text(MODULE.replace("return %1, %3", "return %2, %3"))
    code, _, err = cli("explain", "model.mlir", "%1")
    assert code == 2 and "'%1' has no sharding: nothing needs it" in err
    code, _, err = cli("explain", "model.mlir", "%22")
    assert code == 2 and "no value, argument or operator named '%22'; did you mean" in err
