"""Defaults of options from an autoshard.toml or the table [tool.autoshard] of a pyproject.toml."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FFN = f"{ROOT}/sample_code/sharding_propagation/train.py:forward"
MODULE = f"{ROOT}/sample_code/06_shardings_by_rule/mlp.mlir"

SETTINGS = """
[tool.autoshard]
mesh = "dp=2,tp=2"
mode = "zero3"
hardware = "h100"

[tool.autoshard.plan]
top = 3
sort = "bytes"
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in a project with settings."""
    (tmp_path / "pyproject.toml").write_text(SETTINGS)
    inner = tmp_path / "models"
    inner.mkdir()
    monkeypatch.chdir(inner)
    return inner


def planned(cli, *arguments: str) -> tuple[str, str, str]:
    code, out, err = cli("plan", *arguments, "--json")
    assert code == 0, err
    found = json.loads(out)
    return found["mesh"], found["search"], found["hardware"]


def test_settings_are_defaults(cli, here):
    assert planned(cli, FFN) == ("dp=2 tp=2", "zero3", "h100")
    # What the command line says comes first, also of two options that mean the same.
    assert planned(cli, FFN, "-n", "8", "--search", "bfs") == ("d=8", "bfs", "h100")
    assert planned(cli, FFN, "--mesh", "a=4", "--hardware", "cpu") == ("a=4", "zero3", "cpu")
    assert planned(cli, MODULE, "--mode", "factor")[0] == "batch=2 model=4", "a module names its mesh itself"
    assert cli("layout", "f32[6]", "d", "-n", "2")[0] == 0
    (here / "autoshard.toml").write_text('[plan]\nmesh = "x=8"\nmode = "data_parallel"\n')
    assert planned(cli, FFN) == ("x=8", "data_parallel", "cpu"), "the nearest file counts, alone"


def test_the_example_of_the_docs(cli, here):
    page = (ROOT / "docs" / "reference" / "command_line.md").read_text(encoding="utf-8")
    (here / "autoshard.toml").write_text(page.rpartition("```text\n")[2].partition("```")[0])
    assert planned(cli, FFN, "--mode", "zero3") == ("dp=2 tp=4", "zero3", "h100")


@pytest.mark.parametrize(
    "text, words",
    [
        ("hardwear = 'h100'", "'hardwear' is no option; did you mean 'hardware'?"),
        ("[plans]\ntop = 3", "'plans' is no command; did you mean 'plan'"),
        ("[plan]\ntops = 3", "'tops' is no option of plan; did you mean 'top'"),
        ("[plan", "cannot read the settings in"),
        ("[plan]\ntop = 'many'", "Invalid value for '--top'"),
    ],
)
def test_mistakes(cli, here, text, words):
    (here / "autoshard.toml").write_text(text)
    code, _, err = cli("plan", FFN, "-n", "2")
    assert code == 2 and words in " ".join(err.split())
