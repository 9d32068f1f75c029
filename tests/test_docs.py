"""The README and docs/ tell the truth: every code block of theirs is run, or its commands are looked up.

- `python`: executed, the blocks of a page one after the other in one namespace;
- `console`: each `$ autoshard ...` is run in this process, and must print what the block shows. With
  AUTOSHARD_REWRITE_GOLDEN=1 the shown output is replaced by the present one; look at the difference;
- `sh`: commands that need MPI or minutes. They are not run: their names, options and files must exist;
- `text` and `mermaid`: pictures.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from autoshard.cli import main
from autoshard.cli.commands import app
from autoshard.layout.mesh import Mesh
from autoshard.ops.registry import Operator, operators, remove
from autoshard.search import search_modes
from autoshard.search.registry import _MODES, _OPTIONS
from tests.ops.checks import check_gradient, check_split

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^\$ (autoshard .*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
_PATH = re.compile(r"`((?:tests|autoshard|sample_code|benchmarks|costmodel|docs|\.ci)/[\w./-]*)`")
# A word of a listing that stands for whatever the reader has, not for a file of this repository.
_PLACEHOLDER = re.compile(r"[A-Z_]+\b")


def blocks(page: Path, kind: str) -> list[str]:
    return [body for found, body in _BLOCK.findall(page.read_text(encoding="utf-8")) if found == kind]


def named(pages: list[Path], kind: str) -> list:
    """A test case per page with blocks of this kind; pages that use torch or jax are marked so."""
    cases = []
    for page in pages:
        found = blocks(page, kind)
        marks = [
            getattr(pytest.mark, extra)
            for extra in ("torch", "jax")
            if any(f"import {extra}" in text or extra == "jax" and ".mlir" in text for text in found)
        ]
        if found:
            cases.append(pytest.param(page, id=str(page.relative_to(ROOT)), marks=marks))
    return cases


def test_every_block_says_what_it_is():
    kinds = {kind for page in PAGES for kind, _ in _BLOCK.findall(page.read_text(encoding="utf-8"))}
    assert kinds == {"python", "console", "sh", "text"}


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize("page", named(PAGES, "console"))
def test_commands_print_what_is_shown(page, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "120")
    for block in blocks(page, "console"):
        examples = list(_COMMAND.finditer(block))
        assert examples and block.startswith("$ "), "a block of a console begins with a command"
        for example in examples:
            monkeypatch.setattr(sys, "argv", shlex.split(example[1]))
            with pytest.raises(SystemExit) as ended:
                main()
            assert not ended.value.code
            printed = capsys.readouterr().out
            if os.environ.get("AUTOSHARD_REWRITE_GOLDEN") == "1":
                text = page.read_text(encoding="utf-8").replace(example[0], f"$ {example[1]}\n{printed}")
                page.write_text(text, encoding="utf-8")
            else:
                assert printed == example[2]


@pytest.fixture
def registry():
    """Takes out of the registries the operators and search modes that a test defines."""
    known, modes = set(operators()), set(search_modes())
    yield
    for one in set(operators()) - known:
        remove(one.name)
    for mode in set(search_modes()) - modes:
        del _MODES[mode], _OPTIONS[mode]


@pytest.mark.parametrize("page", named(PAGES, "python"))
def test_python_runs(page, registry, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": page.stem}
    for number, code in enumerate(blocks(page, "python")):
        exec(compile(code, f"{page.name}, Python block {number + 1}", "exec"), names)
    own = {name: value for name, value in names.items() if isinstance(value, Operator)}
    for op in own.values():
        x = np.random.default_rng(5).standard_normal((6, 10))
        assert check_gradient(op, (x,), {"beta": 1.5}) == 1
        assert check_split(op, (x,), {"beta": 1.5}, Mesh.parse("2")) > 1


@cache
def _commands() -> Any:
    return typer.main.get_command(app)


@pytest.mark.parametrize("page", named(PAGES, "sh"))
def test_commands_exist(page):
    for line in "".join(blocks(page, "sh")).splitlines():
        for text in re.split(r"; ", re.split(r"\s{2,}|\s#\s", line)[0]):
            assert wrong_in(shlex.split(text)) == "", line


def wrong_in(words: list[str]) -> str:
    """What is wrong with a command line, in words."""
    while "=" in words[0]:
        words = words[1:]
    if words[0] == "autoshard":
        return _wrong_in_ours(words[1:])
    if words[0] in ("bash", "python"):
        paths = [ROOT / word for word in words[1:2] if not word.startswith("-")]
        return "".join(f"no {path}" for path in paths if not path.exists())
    return "" if words[0] in (".ci/run", "pip", "ruff", "pyright") else f"{words[0]} is unknown"


def _wrong_in_ours(words: list[str]) -> str:
    command = _commands()
    while words and hasattr(command, "commands"):
        if words[0] not in command.commands:
            return f"there is no command {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    known = {option for parameter in command.params for option in parameter.opts}
    unknown = [word for word in words if word.startswith("-") and word.split("=")[0] not in known]
    files = [word.partition(":")[0] for word in words if "/" in word and not _PLACEHOLDER.match(word)]
    missing = [file for file in files if re.search(r"\.(py|mlir)$", file) and not (ROOT / file).exists()]
    return " ".join(unknown + missing)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_files_exist(page):
    text = page.read_text(encoding="utf-8")
    for link in _LINK.findall(_BLOCK.sub("", text)):
        assert (page.parent / link).exists(), link
    for path in _PATH.findall(text):
        assert (ROOT / path).exists(), path


def test_the_readme_has_the_two_commands():
    """Those that .ci/run runs."""
    scripts = re.findall(r"^bash (\S+)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    ci = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert scripts == ["sample_code/sharding_propagation/run.sh", "tests/run.sh"]
    assert all(f"bash {script}" in ci for script in scripts)


def test_the_index_names_every_page():
    """Itself, or the index of a part."""
    index = ROOT / "docs/README.md"
    indices = [index] + [index.parent / link for link in _LINK.findall(index.read_text(encoding="utf-8"))]
    parts = [one for one in indices if one.name == index.name]
    named_there = {(one.parent / link).resolve() for one in parts for link in _LINK.findall(one.read_text("utf-8"))}
    assert {page for page in PAGES if page.is_relative_to(index.parent)} - {index} <= named_there
