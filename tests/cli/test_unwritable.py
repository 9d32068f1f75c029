"""What must not be written is told before anything is planned; and a machine without a browser, or a failing disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).resolve().parents[2]
FFN = f"{ROOT}/sample_code/sharding_propagation/train.py:forward"
MODULE = f"{ROOT}/sample_code/06_shardings_by_rule/mlp.mlir"
WRITING = {
    "plan": ("plan", FFN, "-n", "8", "--save", "plan.json"),
    "dump": ("dump", FFN, "-n", "8", "-o", "dumps"),
    "view": ("view", FFN, "-n", "8", "-o", "plan.html"),
    "trace": ("trace", FFN, "-n", "8", "-o", "trace.json"),
    "export": ("export", FFN, "-n", "8", "--to", "dot", "-o", "plan.dot"),
    "run": ("run", FFN, "-n", "8", "--trace", "traced"),
    "propagate": ("propagate", MODULE, "-o", "out.mlir"),
    "schedule": ("schedule", "1f1b", "--stages", "2", "--micro-batches", "2", "-o", "rows.csv"),
    "hardware show": ("hardware", "show", "h100", "-n", "8", "-o", "links.graphml"),
    "calibrate": ("calibrate", "-n", "2", "-o", "mine.json"),
    "checkpoint export": ("checkpoint", "export", "saved", "whole.safetensors"),
}


@pytest.mark.parametrize("name", WRITING)
def test_no_permission_is_told_before_any_work(cli: Cli, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def work(*_, **__):
        raise AssertionError("nothing is to be done")

    may = os.access
    monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK and may(path, mode))
    for place in ("autoshard.api.plan", "autoshard.calibrate.calibrate", "autoshard.api.propagate.propagate"):
        monkeypatch.setattr(place, work)
    monkeypatch.chdir(tmp_path)
    code, out, err = cli(*WRITING[name])
    assert (code, out) == (2, "") and "cannot write" in err and "permission denied" in err, err
    assert not [*tmp_path.iterdir()]


def test_a_disk_that_fails_is_one_line(cli: Cli):
    """Nobody may make files there, root neither."""
    code, out, err = cli("view", FFN, "-n", "8", "-o", "/proc/self/plan.html")
    assert (code, out) == (2, "") and err.startswith("autoshard: ") and err.count("\n") == 1


def test_no_browser(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: bool(opened.append(address)))
    page = tmp_path / "plan.html"
    code, _, err = cli("view", FFN, "-n", "8", "-o", str(page), "--open")
    assert code == 2 and "no browser is found" in err and page.is_file()
    assert opened == [page.as_uri()]
