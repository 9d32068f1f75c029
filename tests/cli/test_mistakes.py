"""Mistakes in scripts and on the command line: what is told is the user's own part, and before anything is planned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

SCRIPT = """
import numpy as np
from autoshard import nn, ops

x = np.zeros((4, 6), np.float32)

def raises():
    return {}["key"]

def wants(a, *, b=3):
    return nn.Dense(6, 8), (x,)

def too_many():
    return nn.Dense(6, 8), (x, x)

def too_few():
    return (lambda a, b: a + b), (x,)

def no_lines():
    return nn.Dense(5, 8), (x,)

def numpy_call():
    return (lambda a: np.tanh(a)), (x,)

def good():
    return nn.Dense(6, 8), (x,)

def talks():
    print("while it is made")

    def model(x):
        print("while it is traced")
        return ops.relu(x)

    return model, (x,)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(SCRIPT)
    return str(path)


def test_what_a_script_raises_is_told_by_its_own_lines(cli, script):
    code, _, err = cli("plan", f"{script}:raises", "-n", "2")
    lines = err.splitlines()
    assert code == 1 and lines[0].startswith("Traceback") and lines[-1] == "KeyError: 'key'"
    assert [line for line in lines if "File" in line] == [f'  File "{script}", line 8, in raises']


@pytest.mark.parametrize(
    "name, words",
    [
        ("wants", "wants takes the arguments (a, *, b=3); a function without arguments is needed"),
        ("too_many", "Dense.construct takes (x"),
        ("too_many", "but gets 2 inputs: too many positional arguments"),
        ("too_few", "<lambda> takes (a, b), but gets 1 input: missing a required argument: 'b'"),
        ("no_lines", "autoshard: matmul: MatMul (... m k, n k -> ... m n): k is 5"),
        ("numpy_call", "numpy.tanh (autoshard.ops.tanh is for tensors) needs the numbers of the tensor a"),
    ],
)
def test_mistakes_in_a_script(cli, script, name, words):
    code, _, err = cli("plan", f"{script}:{name}", "-n", "2")
    assert code == 2 and words in err and "typer" not in err and "Traceback" not in err


@pytest.mark.parametrize(
    "command, option, words",
    [
        ("plan", ("--save", "nowhere/plan.json"), "there is no directory"),
        ("plan", ("--save", "."), "it is a directory; name a file"),
        ("export", ("-o", "nowhere/plan.json"), "there is no directory"),
        ("dump", ("-o", "mine.py/dumps"), "mine.py is a file"),
    ],
)
def test_files_that_cannot_be_written_are_found_before_planning(cli, script, command, option, words, monkeypatch):
    def plan(*_, **__):
        raise AssertionError("nothing is to be planned")

    monkeypatch.setattr("autoshard.api.plan", plan)
    monkeypatch.chdir(Path(script).parent)
    code, _, err = cli(command, f"{script}:good", "-n", "2", *option)
    assert code == 2 and words in " ".join(err.split())


@pytest.mark.parametrize("command", ["plan", "compare", "propagate", "partition"])
def test_what_a_script_prints_is_not_in_the_json(cli, script, command):
    mode = ("--mode", "bfs") if command == "compare" else ()
    code, out, err = cli(command, f"{script}:talks", "-n", "2", "--json", *mode)
    assert code == 0 and json.loads(out)
    assert "while it is made\n" in err and "while it is traced\n" in err


@pytest.mark.parametrize("text, words", [(b"def f(:\n", "SyntaxError: "), (b"\0", "SyntaxError: source code")])
def test_a_script_that_is_no_python_is_told_by_its_line(cli, tmp_path, text, words):
    path = tmp_path / "wrong.py"
    path.write_bytes(text)
    code, out, err = cli("plan", f"{path}:f", "-n", "2")
    assert (code, out) == (1, "") and words in err and "autoshard/cli" not in err
    assert (f'File "{path}", line 1' in err) == (text != b"\0")


def test_a_mode_that_is_unknown_is_found_before_comparing(cli, script):
    code, out, err = cli("compare", f"{script}:good", "-n", "2", "--mode", "bfs", "--mode", "annealing")
    assert code == 2 and not out and "unknown search mode 'annealing'" in err


def test_redistribute_names_the_hardware_that_is_unknown(cli):
    code, _, err = cli("redistribute", "f32[6, 4] -, - -> d, -", "-n", "2", "--hardware", "abacus")
    assert code == 2 and err.startswith("autoshard: hardware 'abacus': no hardware preset 'abacus'; there are cpu")


MODULE = """func.func @main(%a: tensor<4x6xf32>) -> tensor<4x6xf32> {
  %0 = stablehlo.tanh %a : tensor<4x6xf32>
  return %0 : tensor<4x6xf32>
}"""


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("compare", "GOOD", "-n", "2", "--statistics", "foo"), "--statistics is 'foo'; it can be batch or"),
        (("compare", "GOOD", "-n", "2", "--hardware", "h10"), "did you mean h100"),
        (("compare", "GOOD", "-n", "2", "--dataset-strategy", "half"), "--dataset-strategy is 'half'; it can be"),
        (("compare", "GOOD", "-n", "2", "--micro-batches", "3"), "cannot be cut into 3 micro batches"),
        (("compare", "MODULE"), "names no mesh; give one, --mesh dp=2,tp=4 or -n 8"),
        (("partition", "MODULE"), "names no mesh; give one, --mesh dp=2,tp=4 or -n 8"),
        (("plan", "GOOD", "--mesh", " "), "has no axis; write e.g. 'dp=2,tp=4'"),
        (("plan", "GOOD", "--mesh", f"dp={10**20}"), f"autoshard: the number {10**20} is too large"),
        (("export", "GOOD", "-n", "2", "--to", "mpmd"), "which is of a training step in stages (--pipeline AXIS"),
    ],
)
def test_what_no_mode_can_take_is_told_once(cli, script, tmp_path, arguments, words):
    (tmp_path / "mine.mlir").write_text(MODULE)
    named = {"GOOD": f"{script}:good", "MODULE": str(tmp_path / "mine.mlir")}
    code, out, err = cli(*(named.get(one, one) for one in arguments))
    assert code == 2 and out == "" and words in err and err.count("\n") == 1


def test_a_filter_that_finds_nothing_says_so(cli, script):
    code, out, _ = cli("plan", f"{script}:good", "-n", "2", "--filter", "nothing")
    assert code == 0 and "no row has a name with 'nothing' in it" in out
