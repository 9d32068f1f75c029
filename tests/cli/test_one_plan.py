"""Commands speak of one plan where nobody names another, and in the words of their options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoshard.cli.words import as_options

FORWARD = f"{Path(__file__).with_name('models.py')}:forward"
OVER = (FORWARD, "-n", "8")


def said(cli, *words: str) -> str:
    code, out, err = cli(*words)
    assert code == 0, err
    return out


def test_commands_speak_of_the_same_plan(cli, tmp_path):
    plan = json.loads(said(cli, "plan", *OVER, "--json"))
    exported = json.loads(said(cli, "export", *OVER))
    assert exported["layouts"] == plan["layouts"] and exported["search"] == plan["search"]
    moved = json.loads(said(cli, "partition", *OVER, "--json"))
    assert moved == json.loads(said(cli, "partition", *OVER, "--json", "--mode", plan["search"]))
    assert moved != json.loads(said(cli, "partition", *OVER, "--json", "--mode", "data_parallel"))
    said(cli, "dump", *OVER, "-o", str(tmp_path), "--ranks", "0")
    dumped = "".join(path.read_text() for path in tmp_path.rglob("*.ir"))
    for name, layout in plan["layouts"].items():
        shown = said(cli, "explain", FORWARD, name, "-n", "8").partition("in the plan by ")[2]
        assert shown.startswith(f"{plan['search']} on mesh d=8:")
        assert f"{name} lies as [{layout}]:" in shown or "lies whole" in shown and "d" not in layout
    assert "d:(1)2" in plan["layouts"]["relu"] and "relu" in dumped


@pytest.mark.parametrize("command", ["plan", "export", "partition", "dump"])
def test_the_mode_has_one_name(cli, tmp_path, command):
    more = ("-o", str(tmp_path)) if command == "dump" else ()
    assert said(cli, command, *OVER, *more, "--mode", "bfs") == said(cli, command, *OVER, *more, "--search", "bfs")
    code, _, err = cli(command, *OVER, *more, "--mode", "optimum")
    assert code == 2 and "unknown search mode 'optimum'; did you mean optimal?" in err


def test_explain_of_one_pass_tells_of_rules_alone(cli):
    out = said(cli, "explain", FORWARD, "relu", "-n", "8", "--pass", "basic")
    assert "no rule splits it" in out and "in the plan" not in out


def test_messages_name_options(cli):
    code, _, err = cli("plan", *OVER, "--mode", "bfs", "--memory", "1 KiB")
    assert code == 1 and err.endswith("; --mode optimal looks for the fastest plan that keeps the limit\n")
    code, _, err = cli("plan", *OVER, "--dataset-strategy", "half")
    assert code == 2 and "--dataset-strategy is 'half'" in err
    code, _, err = cli("plan", *OVER, "--memory", "much")
    assert code == 2 and err.startswith("autoshard: --memory: ")
    assert as_options("leave mesh out and give devices=8") == "leave mesh out and give -n 8"
    assert as_options("mesh 'dp=2' has tp=4, memory 3") == "mesh 'dp=2' has tp=4, memory 3"
