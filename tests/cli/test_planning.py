"""`autoshard plan` and `autoshard dump`, with each of their options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoshard.util.errors import AutoshardError

MODELS = Path(__file__).with_name("models.py")
FORWARD = f"{MODELS}:forward"


def plan_json(cli, *arguments: str) -> dict:
    code, out, err = cli("plan", *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def strategies(found: dict) -> dict[str, list]:
    return {one["name"]: one["in_strategy"] for one in found["operators"]}


def test_plan_as_json(cli):
    found = plan_json(cli, FORWARD, "-n", "8")
    assert strategies(found) == {
        "dense1.matmul": [[2, 1], [1, 4]],
        "dense1.add": [[2, 4], [4]],
        "relu": [[2, 4]],
        "dense2.matmul": [[2, 4], [4, 1]],
        "dense2.add": [[2, 4], [4]],
    }
    first, second = found["operators"][:2]
    assert (first["op"], first["cause"], first["cause_from"]) == ("MatMul", "configured", [])
    assert (second["cause"], second["cause_from"]) == ("propagated", ["dense1.matmul"])
    assert first["out_strategy"] == [[2, 4]]
    assert {"seconds", "bytes_per_device", "peak_memory_bytes"} <= set(found["cost"])
    assert (found["mesh"], found["devices"], found["search"]) == ("d=8", 8, "sharding_propagation")
    scatter = next(one for one in found["redistributions"] if one["value"] == "dense2.matmul")
    assert [step["kind"] for step in scatter["steps"]] == ["reduce_scatter"]
    assert scatter["users"] == ["dense2.add"]
    # A rank holds 24 x 12 terms and sends 3 of 4 parts of them.
    assert scatter["bytes"] == 24 * 12 * 4 * 3 / 4


@pytest.mark.parametrize("function", ["single_input", "traced"])
def test_other_ways_to_return_a_model(cli, function):
    assert strategies(plan_json(cli, f"{MODELS}:{function}", "-n", "8")) == strategies(
        plan_json(cli, FORWARD, "-n", "8")
    )


def test_named_mesh(cli):
    found = plan_json(cli, FORWARD, "--mesh", "dp=2,tp=4")
    assert found["mesh"] == "dp=2 tp=4"
    layouts = {one["name"]: one["layout"] for one in found["inputs"]}
    assert layouts["dense1.weight"] == "-, tp"
    assert layouts["dense2.weight"] == "tp, -"


def test_report_tells_everything(cli):
    code, out, err = cli("plan", FORWARD, "-n", "8")
    assert (code, err) == (0, "")
    for words in (
        "net on mesh d=8 (8 devices, cpu)",
        "configured dense1.matmul",
        "((2, 4), (4, 1))",
        "reduce_scatter",
    ):
        assert words in out
    assert "alternatives" not in out


def test_alternatives(cli):
    _, out, _ = cli("plan", FORWARD, "-n", "8", "--alternatives")
    assert "alternatives (the chosen one first)" in out
    found = plan_json(cli, FORWARD, "-n", "8", "--alternatives")
    listed = {one["name"]: one["alternatives"] for one in found["operators"]}
    assert listed["dense1.matmul"] == []
    assert listed["dense2.add"] and all(one["redistribution_seconds"] > 0 for one in listed["dense2.add"])


def test_no_annotation_says_where_it_started(cli):
    assert "no operator is configured" in plan_json(cli, f"{MODELS}:free", "-n", "4")["started_from"]


def test_conflicts_are_listed(cli):
    assert "conflicts" not in cli("plan", FORWARD, "-n", "8")[1]
    target = f"{MODELS}:disagreeing"
    assert "conflicts between configured operators" in cli("plan", target, "-n", "8")[1]
    (conflict,) = plan_json(cli, target, "-n", "8")["conflicts"]
    assert (conflict["producer"], conflict["consumer"]) == ("dense1.matmul", "dense1.add")
    assert (conflict["from"], conflict["to"]) == ("d:(1)2, d:(2)4", "d, -")


def test_data_parallel(cli):
    found = plan_json(cli, FORWARD, "-n", "8", "--dataset-strategy", "data_parallel")
    assert found["inputs"][0]["parts"] == [8, 1]


def test_hardware(cli):
    found = plan_json(cli, FORWARD, "-n", "8", "--hardware", "h100")
    assert found["hardware"] == "h100"
    assert found["cost"]["seconds"] != plan_json(cli, FORWARD, "-n", "8")["cost"]["seconds"]


def test_search(cli):
    assert plan_json(cli, FORWARD, "-n", "8", "--search", "sharding_propagation")["operators"]


def test_options_of_the_mode(cli):
    found = plan_json(cli, FORWARD, "-n", "8", "--search", "auto", "--option", "axes=2", "--option", "mode=factor")
    tried = found["started_from"].partition("of these: ")[2]
    assert found["started_from"].startswith("factor on the mesh ")
    assert all(f"{mesh} " in tried for mesh in ("d=8", "a=4 b=2", "a=2 b=4")) and "c=" not in tried


@pytest.mark.parametrize(
    "arguments, words",
    [
        ((FORWARD,), "neither is given"),
        ((FORWARD, "-n", "8", "--mesh", "8"), "both are given"),
        ((FORWARD, "-n", "8", "--search", "guess"), "'guess'; known are"),
        ((FORWARD, "-n", "8", "--hardware", "abacus"), "'abacus'"),
        ((FORWARD, "-n", "8", "--dataset-strategy", "half"), "'half'"),
        ((FORWARD, "-n", "8", "--option", "axes"), "cannot read --option 'axes'; write NAME=VALUE"),
        ((FORWARD, "-n", "8", "--option", "axes=2"), "search mode 'sharding_propagation' has no option 'axes'"),
        ((FORWARD, "--mesh", "dp=2,2"), "cannot read '2' in mesh"),
        ((FORWARD, "-n", "0"), "size 0"),
        ((f"{MODELS}:forward_", "-n", "8"), "no function 'forward_'; did you mean 'forward'?; its functions are: "),
        ((f"{MODELS}:NUMBER", "-n", "8"), "no function 'NUMBER'"),
        (
            (f"{MODELS}:nothing", "-n", "8"),
            "must return (model, inputs) or something traced, but returned NoneType",
        ),
        ((f"{MODELS}:three", "-n", "8"), "but returned a tuple of 3"),
        ((str(MODELS), "-n", "8"), "write SCRIPT.py:function"),
        (("missing.py:forward", "-n", "8"), "there is no such file"),
        ((f"{MODELS}:wrong_strategy", "-n", "8"), "dense1.matmul (MatMul)"),
    ],
)
def test_one_clean_message(cli, arguments, words):
    code, out, err = cli("plan", *arguments)
    assert (code, out) == (2, "")
    assert words in err and err.startswith("autoshard: ")
    assert "Traceback" not in err


def test_message_names_the_users_line(cli):
    _, _, err = cli("plan", f"{MODELS}:wrong_strategy", "-n", "8")
    line = next(i for i, text in enumerate(MODELS.read_text().splitlines(), 1) if "matmul.shard(first)" in text)
    assert f"models.py:{line}" in err


def test_debug_shows_the_traceback(cli, monkeypatch):
    monkeypatch.setenv("AUTOSHARD_DEBUG", "1")
    with pytest.raises(AutoshardError, match="neither is given"):
        cli("plan", FORWARD)


def test_dump_writes_the_ranks_asked_for(cli, tmp_path):
    code, out, err = cli("dump", FORWARD, "-n", "8", "-o", str(tmp_path / "ir"), "--ranks", "0,5")
    assert (code, err) == (0, "")
    written = [Path(line) for line in out.splitlines()]
    assert all(path.is_file() for path in written)
    assert {path.parent.name for path in written} == {"rank_0", "rank_5"}
    assert len(written) == 6
    validate = next(path for path in written if "validate" in path.name)
    assert "ReduceScatter" in validate.read_text()


def test_dump_writes_all_ranks(cli, tmp_path):
    assert cli("dump", FORWARD, "--mesh", "dp=2,tp=4", "--output", str(tmp_path))[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"rank_{rank}" for rank in range(8)]


@pytest.mark.parametrize("ranks", ["8", "one", "-1", ""])
def test_dump_refuses_other_ranks(cli, tmp_path, ranks):
    code, _, err = cli("dump", FORWARD, "-n", "8", "-o", str(tmp_path), f"--ranks={ranks}")
    assert code == 2
    assert "numbers from 0 to 7" in err
