"""The engine torch on a device other than CPUs: see `device_checks`, which this runs in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
ROOT = Path(__file__).resolve().parents[2]


def test_operators_on_a_device() -> None:
    command = [sys.executable, "-m", "tests.engines.device_checks"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 270
