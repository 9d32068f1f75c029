"""The README tells the truth: its commands print what it shows, and its Python runs.

With AUTOSHARD_REWRITE_GOLDEN=1 the shown output is replaced by the present one; look at the difference.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from autoshard.cli import main
from autoshard.ops.registry import operators, remove

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


@pytest.mark.parametrize("code", _PYTHON.findall(README.read_text(encoding="utf-8")))
def test_python_runs(code, capsys):
    known = {one.name for one in operators()}
    try:
        exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    finally:
        for one in {one.name for one in operators()} - known:
            remove(one)


def test_commands_and_files_exist():
    text = README.read_text(encoding="utf-8")
    scripts = re.findall(r"^bash (\S+)", text, re.MULTILINE)
    assert len(scripts) == 2
    for path in (*scripts, *re.findall(r"`((?:tests|autoshard|sample_code|\.ci)/[\w./]*)`", text)):
        assert (ROOT / path).exists(), path
