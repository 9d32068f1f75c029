"""Scans skip ops that a visit would not change: every step is the same, in the same order, as if all were visited."""

from __future__ import annotations

import random
from typing import Any

import pytest
from against_shardy import work_of
from generate.module import random_module

from autoshard.propagate.driver import PropagationDriver
from autoshard.propagate.pipeline import run_pipeline
from autoshard.propagate.run import Log

pytestmark = pytest.mark.jax


def _steps(log: Log) -> list[tuple[Any, ...]]:
    return [
        (event.op.name, str(event.step.changes), str(event.before), event.level, event.priority) for event in log.events
    ]


@pytest.mark.parametrize("seed", range(300, 330))
def test_a_scan_skips_no_step(seed: int, monkeypatch: pytest.MonkeyPatch):
    text = random_module(random.Random(seed))
    ours = _steps(run_pipeline(work_of(text)))
    monkeypatch.setattr(PropagationDriver, "_worth_a_visit", lambda self, more: bytearray(b"\1") * len(self.ops))
    assert ours == _steps(run_pipeline(work_of(text)))
