"""The README tells the truth: its commands print what it shows, and its Python runs.

With AUTOSHARD_REWRITE_GOLDEN=1 the shown output is replaced by the present one; look at the difference.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

from autoshard.cli import main
from autoshard.layout.mesh import Mesh
from autoshard.ops.registry import Operator, operators, remove
from tests.ops.checks import check_gradient, check_split

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
_EXAMPLE = re.compile(r"```\n\$ (autoshard .*)\n((?:.*\n)*?)```\n")
_PYTHON = re.compile(r"```python\n((?:.*\n)*?)```\n")


def test_examples_show_what_the_commands_print(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "120")
    text = README.read_text(encoding="utf-8")
    examples = list(_EXAMPLE.finditer(text))
    assert examples, "the README has an example"
    for example in examples:
        monkeypatch.setattr(sys, "argv", shlex.split(example[1]))
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        printed = capsys.readouterr().out
        if os.environ.get("AUTOSHARD_REWRITE_GOLDEN") == "1":
            text = text.replace(example[0], f"```\n$ {example[1]}\n{printed}```\n")
            README.write_text(text, encoding="utf-8")
        else:
            assert printed == example[2]


@pytest.fixture
def registry():
    """Takes out of the registry what a test defines."""
    known = set(operators())
    yield
    for one in set(operators()) - known:
        remove(one.name)


@pytest.mark.parametrize("code", _PYTHON.findall(README.read_text(encoding="utf-8")))
def test_python_runs(code, registry):
    names: dict = {"__name__": "readme"}
    exec(compile(code, "README.md", "exec"), names)
    for op in (value for value in names.values() if isinstance(value, Operator)):
        x = np.random.default_rng(5).standard_normal((6, 10))
        assert check_gradient(op, (x,), {"beta": 1.5}) == 1
        assert check_split(op, (x,), {"beta": 1.5}, Mesh.parse("2")) > 1


def test_commands_and_files_exist():
    text = README.read_text(encoding="utf-8")
    scripts = re.findall(r"^bash (\S+)", text, re.MULTILINE)
    assert len(scripts) == 2
    for path in (*scripts, *re.findall(r"`((?:tests|autoshard|sample_code|\.ci)/[\w./]*)`", text)):
        assert (ROOT / path).exists(), path
