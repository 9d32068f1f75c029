"""`autoshard truth`: rows, scores, limits and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ONE = "GPT 22B tp=8 full"


def test_a_row_beside_its_prediction(cli):
    code, out, _ = cli("truth", "--only", ONE, "--only", "GPT 39.1B", "--explain", "1")
    assert code == 0
    assert ONE in out and "errors by source" in out and "products" in out
    assert "39.1B" in out and "not predicted" not in out, "a row with stages, too"


def test_json_and_limit(cli):
    code, out, err = cli("truth", "--only", ONE, "--json", "--limit", "0.0001")
    (row,) = json.loads(out)["rows"]
    assert code == 1 and "the limit is 0.0001 %" in err
    assert row["predicted_seconds"] == pytest.approx(sum(row["parts"].values())) and row["measured_seconds"] == 1.42


def test_rows_that_no_plan_expresses_have_no_tables(cli, tmp_path):
    path = tmp_path / "rows.json"
    row = {
        "id": "a", "table": "a", "sequence": 64, "hardware": "a100", "axes": {"pp": 4}, "plan": "megatron",
        "model": {"builder": "gpt", "hidden": 64, "layers": 2, "heads": 4, "vocabulary": 128},
        "global_batch": 4, "micro_batch": 1, "measured": {"seconds": 1.0},
    }  # fmt: skip
    source = {"name": "us", "cite": ""}
    path.write_text(json.dumps({"format": "autoshard truth", "version": 1, "source": source, "rows": [row]}))
    code, out, _ = cli("truth", str(path))
    assert (code, out) == (0, "not predicted: 1 row: 1 with more stages than layers\n")


def test_schema(cli):
    code, out, _ = cli("truth", "--schema")
    assert code == 0 and "Row" in json.loads(out)["$defs"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("none.json",), "there is no measured step in none.json"),
        (("nowhere.csv",), "cannot read the measured steps nowhere.csv"),
        (("--only", "no such row"), "no measured step has 'no such row'"),
        (("--limit", "nan"), "--limit is nan; it is a number of percent from 0 on"),
        (("--explain", "-1"), "Invalid value for '--explain'"),
        (("--hardware", "h100"), "write NAME=FILE.json"),
        (("--hardware", "h100=nothing"), "no hardware preset 'nothing'"),
    ],
)
def test_mistakes(cli, arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = {"name": "us", "cite": "", "notes": ""}
    none = {"format": "autoshard truth", "version": 1, "source": source, "rows": []}
    Path("none.json").write_text(json.dumps(none))
    code, _, err = cli("truth", *arguments)
    assert code == 2 and words in err
