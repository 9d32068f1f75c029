"""`planned.to_torch()`: the sample of training with ZeRO on 2 ranks, saved, resumed, equal to torch's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("torch_training.py")
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.torch
def test_training_with_zero_is_saved_and_resumed(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), *sys.path)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("equal") == 2
