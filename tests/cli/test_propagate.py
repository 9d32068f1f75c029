"""`autoshard propagate` and `autoshard explain` on scripts."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest

TARGET = str(Path(__file__).with_name("shardings.py")) + ":net"
MESH = ("--mesh", "dp=2,tp=4")


@pytest.mark.parametrize(
    "command, options",
    [
        ("propagate", ["--pass", "--keep-rules", "--conservative", "--out", "--json", "--mesh", "-n"]),
        ("explain", ["--pass", "--conservative", "--mesh", "-n", "VALUE"]),
    ],
)
def test_help_names_the_options(cli, command, options):
    code, out, _ = cli(command, "--help")
    assert code == 0
    assert all(option in out for option in options)


def test_the_report(cli):
    code, out, err = cli("propagate", TARGET, *MESH)
    assert code == 0 and err == ""
    assert "net, pass full: 7 of 7 values are split" in out
    assert "mesh @mesh is dp=2 tp=4, 8 devices" in out
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert (
        '[{"dp"}, {"tp"}]' in lines["dense2.matmul"]
        and "from sharding_constraint, from dense2" in lines["dense2.matmul"]
    )
    assert lines["dense1.weight"].split()[-1] == "asked"
    assert "conflicts" in lines and 'dense2.weight dim 1 has "tp" already' in " ".join(out.split())


def test_json(cli):
    code, out, _ = cli("propagate", TARGET, *MESH, "--json", "--pass", "basic")
    assert code == 0
    found = json.loads(out)
    assert list(found) == ["pass", "values", "outputs", "conflicts", "without_rule", "warnings", "steps", "seconds"]
    assert found["pass"] == "basic" and found["steps"] > 0 and found["seconds"] > 0
    assert found["warnings"] == [] and found["without_rule"] == []
    by_name = {value["name"]: value for value in found["values"]}
    assert by_name["dense1.matmul"]["sharding"] == '<@mesh, [{"dp", ?}, {"tp", ?}]>'
    assert by_name["dense1.matmul"]["type"] == "f32[48, 24]"
    assert all(list(value) == ["name", "type", "sharding", "cause"] for value in found["values"] + found["outputs"])
    assert [one["name"] for one in found["outputs"]] == ["output 0"]
    clash = found["conflicts"][0]
    assert clash["reason"] == "taken" and clash["left"] and not clash["decided"]
    assert clash["operator"] == "MatMul dense2.matmul" and "shardings.py:19" in clash["source"]
    assert {clash["wanted"]["value"], clash["against"]["value"]} == {"dense2.weight", "sharding_constraint"}


@pytest.mark.parametrize("which", ["basic", "aggressive", "op-priority", "user-priority", "full"])
def test_each_pass(cli, which):
    code, out, _ = cli("propagate", TARGET, *MESH, "--pass", which, "--conservative")
    assert code == 0 and f"pass {which}:" in out


RULES = ("--pass", "full")


def test_explain(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    code, whole, err = cli("explain", TARGET, "dense2.matmul", *MESH)
    assert code == 0 and err == "" and whole.startswith("in the plan by sharding_propagation on mesh dp=2 tp=4:\n")
    out = dedent(whole.partition("\nby rules alone, before any search:\n")[2])
    assert out == cli("explain", TARGET, "dense2.matmul", *MESH, *RULES)[1]
    assert out.startswith('dense2.matmul: f32[48, 12], sharding [{"dp"}, {"tp"}]\n')
    assert "on mesh dp=2 tp=4 a device holds f32[24, 3]" in out
    assert 'dim 0, of 48, is split in 2 over "dp":' in out
    story = out[out.index("dim 1, of 12") :].splitlines()
    assert "1. dense2.weight dim 1" in story[1] and 'asked of argument dense2.weight: {"tp", ?}' in story[1]
    assert "2. dense2.matmul dim 1  level 3  from dense2.weight dim 1, forward through MatMul" in story[2]
    assert "(operand 1 to result)" in story[2] and "shardings.py:19]" in story[2]
    assert 'conflict, left: "tp" of sharding_constraint dim 1 did not spread to dense2.weight dim 0' in out
    assert '"tp" of sharding_constraint dim 1: asked of argument dense1.weight' in out
    assert "level 3 of 5: all operators, broadcasts only backward" in out


def test_explain_tells_why_a_dim_is_whole(cli):
    _, out, _ = cli("explain", TARGET, "dense2.weight", *MESH, *RULES)
    assert "dim 0, of 24, is whole:\n       conflict" in out
    _, out, _ = cli("explain", TARGET, "dense1.weight", *MESH, *RULES)
    assert "dim 0, of 10, is whole: no axes came to it" in out


@pytest.mark.parametrize("name", ["dense1.weight", "%arg1"])
def test_explain_knows_arguments_by_name_and_position(cli, name):
    code, out, _ = cli("explain", TARGET, name, *MESH, *RULES)
    assert code == 0 and out.startswith("dense1.weight: ")


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("propagate", "absent.mlir"), "cannot read absent.mlir: there is no such file"),
        (("propagate", "absent.py:net", *MESH), "cannot load absent.py: there is no such file"),
        (("propagate", str(Path(__file__).parent)), "it is a directory; a StableHLO module is a file"),
        (("propagate", __file__), f"name the function in it that returns the model: {__file__}:FUNCTION"),
        (("propagate", TARGET), "neither is given"),
        (("propagate", TARGET, *MESH, "-n", "8"), "both are given"),
        (("propagate", TARGET, "-n", "8"), "axis 'tp' is not in the mesh"),
        (("propagate", TARGET, *MESH, "--pass", "greedy"), "unknown propagation pass 'greedy'; known are basic, agg"),
        (("propagate", TARGET, *MESH, "-o", "x.mlir"), "-o is for StableHLO modules"),
        (("propagate", TARGET, *MESH, "--keep-rules"), "--keep-rules is for StableHLO modules"),
        (("propagate", f"{TARGET}s", *MESH), "has no function 'nets'; did you mean 'net'?; its functions are"),
        (("explain", TARGET, "dense2.matmull", *MESH), "did you mean 'dense2.matmul'"),
        (("explain", TARGET, "?", *MESH), "it has 11 names, such as"),
        (("explain", TARGET, "relu", *MESH, "--pass", "all"), "unknown propagation pass 'all'"),
    ],
)
def test_errors(cli, arguments, words):
    code, out, err = cli(*arguments)
    assert code == 2 and out == ""
    assert words in err
    assert not Path("x.mlir").exists()
