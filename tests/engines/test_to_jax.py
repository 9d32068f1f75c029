"""`planned.to_jax()`: the sample of training with optax on 8 devices, saved, resumed on 4, equal to optax alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("jax_training.py")
ROOT = Path(__file__).parents[2]


@pytest.mark.jax
@pytest.mark.slow
def test_training_with_optax_is_saved_and_resumed(tmp_path: Path) -> None:
    pytest.importorskip("optax")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), *sys.path))}
    command = [sys.executable, str(SCRIPT), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("equal")
