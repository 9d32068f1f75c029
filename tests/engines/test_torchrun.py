"""`torchrun script.py`, whose ranks torch starts one by one: they become one job, and run a plan."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("torchrun_ranks.py")
ROOT = Path(__file__).parents[2]


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("ranks, told", [(2, "equal"), (3, "the plan is for 2 ranks, but 3 were started")])
def test_ranks_of_torchrun(ranks: int, told: str) -> None:
    pytest.importorskip("torch")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), *sys.path)), "OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node", str(ranks), str(SCRIPT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert told in done.stdout + done.stderr, done.stderr
    assert (done.returncode == 0) == (ranks == 2)
