"""The benchmarks run, in small, and their own checks find what they should; no time is asserted."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import step_time

FOLDER = Path(step_time.__file__).parent
SMALL = ["--hidden", "48", "--batch", "20", "--steps", "2", "--blocks", "2"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / "step_time.py"), *SMALL, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.mpi
@pytest.mark.parametrize("task", [(), ("--task", "attention", "--heads", "4", "--sequence", "5")])
def test_step_time_prints_figures_of_results_that_agree(task: tuple[str, ...]):
    done = run("--json", *task)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert list(figures["milliseconds"]) == [step_time.HAND, step_time.SESSION, step_time.MODEL]
    assert all(0 < one < math.inf for one in [*figures["milliseconds"].values(), *figures["ratio"].values()])
    assert figures["last_loss"] < 0.8 * figures["first_loss"]
    assert figures["difference"] <= step_time.TOLERANCE
    assert [one.split()[0] for one in figures["collectives"]] == ["reduce_scatter", "all_gather", "all_reduce"]


@pytest.mark.mpi
def test_step_time_finds_a_step_that_computes_something_else(tmp_path):
    script = tmp_path / "other.py"
    script.write_text(
        "from benchmarks import ffn_step, step_time\n"
        "ffn_step.ByHand._update = lambda self, value, moment, grad: None\n"
        f"step_time.measure(step_time.parse({SMALL!r}))\n"
    )
    command = [sys.executable, "-m", "autoshard", "run", "-n", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=FOLDER.parent)
    assert done.returncode != 0
    assert "losses of autoshard and of the hand-written step differ" in done.stderr


def test_compare_is_relative_to_the_largest_value():
    assert step_time.compare({"a": [1.0, 20.0]}, {"a": [1.001, 20.0]}) == pytest.approx(5e-5, rel=1e-2)
    with pytest.raises(SystemExit, match="^b of autoshard"):
        step_time.compare({"a": [1.0], "b": [3.0, 6.0]}, {"a": [1.0], "b": [3.0, 6.1]})
    with pytest.raises(SystemExit):
        step_time.compare({"a": [math.nan]}, {"a": [1.0]})


@pytest.mark.parametrize(
    "option, value, text",
    [
        ("--ranks", "1", "--ranks 1 must be at least 2"),
        ("--ranks", "7", "--ranks 7 must be at least 2 and divide --hidden 1024"),
        ("--steps", "0", "steps and blocks are at least 1"),
        ("--heads", "3", "--heads 3 must be a multiple of --ranks 2 and divide --hidden 1024"),
        ("--sequence", "100", "--sequence 100 must divide --batch 256"),
    ],
)
def test_step_time_refuses_sizes_that_cannot_be(option, value, text, capsys):
    with pytest.raises(SystemExit):
        step_time.parse(["--task", "attention", option, value])
    assert text in capsys.readouterr().err
