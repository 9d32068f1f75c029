"""The engine torch: programs on 4 ranks of torch.distributed equal numpy's, by the planned collectives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("torch_ranks.py")
ROOT = Path(__file__).parents[2]
CASES = ("step/dp=2,tp=2/megatron", "step/4/factor")


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.torch
def test_programs_on_four_ranks() -> None:
    pytest.importorskip("torch")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), *sys.path))}
    command = [sys.executable, "-m", "autoshard", "run", "-n", "4", "--timeout", "300", str(SCRIPT), *CASES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=360, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert all(done.stdout.count(f"{case} equal") == 4 for case in CASES)
