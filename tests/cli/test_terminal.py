"""What `autoshard plan` prints: of a deep model one screen; at 80 and 120 columns, in pipes and without colour.

With AUTOSHARD_REWRITE_GOLDEN=1 the golden files are replaced by what is printed now; look at the difference.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

import pytest
from rich.console import Console

from autoshard.api import Planned
from autoshard.report.brief import RowFilter, print_brief, shortened
from autoshard.report.plan import print_summary

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "golden"
DEEP = f"{HERE / 'deep.py'}:training"
SETTINGS = ("--mesh", "dp=2,tp=4", "--mode", "megatron", "--hardware", "h100")
MOST_LINES = 60


def printed(cli, monkeypatch, columns: int, *more: str) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, err = cli("plan", DEEP, *SETTINGS, *more)
    assert (code, err) == (0, "")
    return out


@pytest.mark.parametrize("columns", [80, 120])
def test_a_deep_plan_is_one_screen(cli, monkeypatch, columns):
    text = printed(cli, monkeypatch, columns)
    lines = text.splitlines()
    assert len(lines) <= MOST_LINES and max(map(len, lines)) <= columns
    assert "a step takes" in "".join(lines[:5]) and "\x1b" not in text
    titles = [line.partition(":")[0] for line in lines if " rows (--top " in line]
    assert titles == ["modules", "operators", "redistributions", "inputs"]
    assert any(line.startswith("blocks.{0..11}.") for line in lines) and "blocks.3." not in text


MLP = ("sample_code/06_shardings_by_rule/mlp.py:forward", "--mesh", "batch=2,model=4")
README = {
    "plan": ("plan", "sample_code/sharding_propagation/train.py:forward", "-n", "8"),
    "view": ("view", "sample_code/sharding_propagation/train.py:forward", "-n", "8", "-o", "{folder}/plan.html"),
    "explain": ("explain", MLP[0], "tanh", *MLP[1:]),
    "compare": ("compare", *MLP, "--mode", "optimal", "--mode", "zero3"),
}
"""The commands of the README, which fit any width; in a pipe they have no colours, NO_COLOR or not."""
_TOOK = re.compile(r" +[\d.]+ [mun]?s$", re.MULTILINE)


def test_the_readme_has_these_commands():
    text = (HERE.parents[1] / "README.md").read_text(encoding="utf-8")
    for arguments in README.values():
        assert " ".join(("autoshard", *arguments)).replace("{folder}/", "") in text


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("name", README)
def test_the_readme_prints_what_it_did(cli, monkeypatch, tmp_path, name, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(HERE.parents[1])
    code, text, err = cli(*(one.replace("{folder}", str(tmp_path)) for one in README[name]))
    text = text.replace(f"{tmp_path}/", "")
    text = _TOOK.sub(" (a time)", text) if name == "compare" else text  # what planning took
    assert (code, err) == (0, "") and "\x1b" not in text
    assert max(map(len, text.splitlines())) <= columns
    path = GOLDEN / f"{name}_{columns}.txt"
    if os.environ.get("AUTOSHARD_REWRITE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_rows_are_chosen(cli, monkeypatch):
    text = printed(cli, monkeypatch, 120, "--top", "2", "--sort", "name", "--filter", r"^blocks.*query")
    assert "blocks.{0..11}.attention.query" in text and "mapping" not in text.partition("modules")[2]
    operators = text.partition("operators")[2].partition("\n\n")[0].splitlines()[3:]
    assert len(operators) == 2 and operators == sorted(operators)
    chosen = printed(cli, monkeypatch, 80, "--columns", "share,cause,name", "--top", "1")
    heads = [line.split() for line in chosen.splitlines() if line.startswith("share")]
    assert heads == [["share", "name"], ["share", "cause", "name"], ["share"]]
    whole = printed(cli, monkeypatch, 240, "--full")
    assert len(whole.splitlines()) > 1000 and "blocks.7.attention.query.matmul" in whole


@cache
def _planned() -> Planned:
    import autoshard
    from tests.cli.deep import training

    return autoshard.plan(training(), (), "dp=2 tp=4", search="megatron", hardware="h100")


def _on_a_terminal(monkeypatch, **environment: str) -> str:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    console = Console(force_terminal=True, width=80, highlight=False, markup=False, record=False)
    with console.capture() as captured:
        print_summary(_planned(), console)
        print_brief(_planned(), console, RowFilter())
    return captured.get()


def test_colour_means_dear_and_may_be_left_out(monkeypatch):
    yellow = "\x1b[33m"
    coloured = _on_a_terminal(monkeypatch, TERM="xterm-256color")
    lines = [line for line in coloured.splitlines() if yellow in line]
    assert lines and all(float(line.partition("%")[0].split()[-1].rpartition("m")[2]) >= 5 for line in lines)
    assert yellow not in _on_a_terminal(monkeypatch, TERM="xterm-256color", NO_COLOR="1")
    assert "\x1b" not in _on_a_terminal(monkeypatch, TERM="dumb").replace("\x1b[1m", "").replace("\x1b[0m", "")


def test_names_are_cut_at_dots():
    name = "transformer.h.{0..11}.attn.c_attn.matmul"
    for most in range(12, 50):
        short = shortened(name, most)
        assert len(short) <= most and (short == name or "…" in short)
    assert shortened(name, 30) == "transformer.h.….c_attn.matmul"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--top", "0"), "at least one"),
        (("--sort", "size"), "time, bytes, name"),
        (("--filter", "("), "cannot filter"),
        (("--columns", "name,timee"), "did you mean 'time'"),
        (("--top", "3", "--full"), "leave --full"),
        (("--filter", "x", "--json"), "--json"),
    ],
)
def test_mistakes(cli, arguments, words):
    code, out, err = cli("plan", DEEP, *SETTINGS, *arguments)
    assert (code, out) == (2, "") and words in err
