"""--micro-batches of plan, compare and run: loops in reports, results of the whole batch, mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

MODELS = Path(__file__).with_name("models.py")
STEP = f"{MODELS}:step"


def test_plan_and_compare(cli):
    code, out, _ = cli("plan", STEP, "-n", "2", "--micro-batches", "4", "--mode", "batch")
    assert code == 0 and "micro_batches" in out
    code, out, _ = cli("compare", STEP, "-n", "2", "--micro-batches", "4", "--mode", "batch", "--mode", "bfs", "--json")
    plans = json.loads(out)["plans"]
    assert code == 0 and len(plans) == 2


@pytest.mark.mpi
def test_a_run_is_compared_with_the_whole_batch(cli):
    code, out, err = cli(
        "run", STEP, "-n", "2", "--micro-batches", "4", "--mode", "batch", "--check", "--timeout", "120"
    )
    assert code == 0, err
    assert "the unsplit run" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan", STEP, "-n", "2", "--micro-batches", "5"), "x has 48 rows, which 5 does not divide; 1, 2, 3, 4, 6, 8"),
        (("plan", STEP, "-n", "2", "--micro-batches", "0"), "into 0 micro batches: give a number from 1 on"),
        (("run", str(MODELS), "-n", "2", "--micro-batches", "2"), "which plans itself"),
    ],
)
def test_mistakes(cli, arguments, message):
    if arguments[0] == "run":
        arguments = ("run", *arguments[2:], arguments[1])
    code, _, err = cli(*arguments)
    assert code == 2 and message in err
