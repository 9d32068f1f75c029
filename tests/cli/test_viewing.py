"""`autoshard view` and `autoshard diff`: pages, tables and JSON, from scripts and from files."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema

from autoshard.exporters.difference import difference_schema
from autoshard.exporters.export import plan_schema

MODELS = Path(__file__).with_name("models.py")
FORWARD, FREE = f"{MODELS}:forward", f"{MODELS}:free"


def test_a_page_of_a_script(cli, tmp_path):
    path = tmp_path / "plan.html"
    assert cli("view", FORWARD, "-n", "8", "-o", str(path)) == (0, f"{path}\n", "")
    assert path.read_text().startswith("<!doctype html>") and "net on d=8" in path.read_text()


def test_a_page_of_files_is_that_of_their_plans(cli, tmp_path):
    files = []
    for name, target in (("a", FORWARD), ("b", FREE)):
        code, out, _ = cli("plan", target, "-n", "8", "--json", "--all")
        assert code == 0
        jsonschema.validate(json.loads(out), plan_schema())
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(out)
    pages = [tmp_path / "files.html", tmp_path / "scripts.html"]
    assert cli("view", *map(str, files), "-o", str(pages[0]))[0] == 0
    assert cli("view", FORWARD, FREE, "-n", "8", "-o", str(pages[1]))[0] == 0
    assert "sharding_propagation" in cli("diff", *map(str, files))[1]


def test_a_difference_as_text_and_json(cli):
    code, out, err = cli("diff", FORWARD, "--against", "data_parallel", "-n", "8")
    assert (code, err) == (0, "")
    for words in (
        "A: net on mesh d=8",
        "by data_parallel",
        "a step",
        "operators that differ",
        "inputs that differ",
        "%",
    ):
        assert words in out
    code, out, err = cli("diff", FORWARD, "--against", "data_parallel", "-n", "8", "--json")
    found = json.loads(out)
    jsonschema.validate(found, difference_schema())
    assert found["before"]["search"] == "sharding_propagation" and found["after"]["search"] == "data_parallel"
    changed = {one["name"] for one in found["operators"]}
    assert "dense1.matmul" in changed and found["alike"] == 5 - len(changed)
    assert {one["what"]: one["unit"] for one in found["figures"]}["a step"] == "seconds"


def test_equal_plans_do_not_differ(cli):
    found = json.loads(cli("diff", FORWARD, FORWARD, "-n", "8", "--json")[1])
    assert (found["operators"], found["redistributions"], found["inputs"], found["alike"]) == ([], [], [], 5)


def test_mistakes(cli, tmp_path):
    saved = tmp_path / "saved.json"
    assert cli("plan", FORWARD, "-n", "8", "--save", str(saved))[0] == 0
    wrong = {
        ("view", FORWARD, "-n", "8", "-o", "no/plan.html"): "there is no directory no",
        ("view", FORWARD, "-n", "8", "-o", "/proc/plan.html"): "cannot write /proc/plan.html",
        ("view", FORWARD, FREE, "--against", "zero3", "-n", "8"): "one plan or two can be shown",
        ("view", FORWARD, "--against", "zero33", "-n", "8"): "zero33",
        ("view", str(saved)): "--json --all",
        ("view", str(saved), "--mode", "zero3"): "is a plan already",
        ("view", str(tmp_path / "none.json")): "none.json",
        ("diff", FORWARD, "-n", "8"): "two",
        ("plan", FORWARD, "-n", "8", "--all"): "--json",
    }
    whole = json.loads(cli("plan", FORWARD, "-n", "8", "--json", "--all")[1])
    held = whole["cost"]["memory"].pop("everything")
    for name, memory, words in (
        ("some", whole["cost"]["memory"], "has no memory to show"),
        ("text", "all", "Expected `object | null`, got `str` - at `$.cost.memory`"),
        ("rows", {"everything": held[:1] + ["x"]}, "got `str` - at `$.cost.memory.everything[1]`"),
    ):
        (tmp_path / name).with_suffix(".json").write_text(
            json.dumps({**whole, "cost": {**whole["cost"], "memory": memory}})
        )
        wrong["view", str((tmp_path / name).with_suffix(".json"))] = words
    for arguments, words in wrong.items():
        code, out, err = cli(*arguments)
        assert (code, out) == (2, "") and words in err, (arguments, err)


def test_a_trace_of_a_script(cli, tmp_path):
    path = tmp_path / "trace.json"
    assert cli("trace", FORWARD, "-n", "8", "--ranks", "0,3", "-o", str(path)) == (0, f"{path}\n", "")
    found = json.loads(path.read_text())
    assert {one["pid"] for one in found["traceEvents"]} == {0, 3} and found["otherData"]["mesh"] == "d=8"
    for arguments, words in {
        ("-o", "no/trace.json"): "there is no directory no",
        ("--ranks", "8"): "0 to 7",
    }.items():
        code, _, err = cli("trace", FORWARD, "-n", "8", *arguments)
        assert code == 2 and words in err


def test_traces_of_what_plans_itself_are_refused(cli, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("print(1)")
    code, _, err = cli("run", "-n", "2", "--trace", str(tmp_path / "out"), str(script))
    assert code == 2 and "--trace goes with a model" in err
