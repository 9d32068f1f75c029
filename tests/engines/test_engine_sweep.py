"""One model of the sweep over all samples: a step of training on XLA, equal to JAX, by the planned collectives."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoshard.layout.mesh import Mesh


@pytest.mark.jax
@pytest.mark.slow
def test_a_step_of_training_on_xla(tmp_path: Path) -> None:
    pytest.importorskip("optax")
    from benchmarks.engine_sweep import sweep

    found = sweep(("jax:moe_training",), Mesh.parse("dp=2 tp=2"), ("xla",), tmp_path)
    (row,) = found.values()
    assert row["equal"] and not row["other"] and row["collectives"] > 5, row
