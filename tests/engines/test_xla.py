"""The engine xla: programs on host devices equal numpy's, and hold exactly the planned collectives."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from autoshard.engines.grid import Grid
from tests.engines.compiled_collectives import counted

SCRIPT = Path(__file__).with_name("xla_devices.py")
ROOT = Path(__file__).parents[2]
CASES = ("step/6/sharding_propagation", "random/3")


@pytest.mark.jax
@pytest.mark.slow
def test_programs_on_eight_devices() -> None:
    pytest.importorskip("jax")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), *sys.path))}
    done = subprocess.run(
        [sys.executable, SCRIPT, *CASES], capture_output=True, text=True, timeout=600, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    found = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines() if "/" in line)
    assert list(found) == list(CASES) and int(found[CASES[0]]) > 20


def test_collectives_are_read_in_both_notations() -> None:
    grid = Grid((("dp", 2), ("tp", 2)), (0, 2, 1, 3))
    text = """
  %a = f32[4,6]{1,0} all-reduce(f32[4,6]{1,0} %x), channel_id=1, replica_groups={{0,1},{2,3}}, to_apply=%sum
  %b = (f32[2,3]{1,0}, f32[2,3]{1,0}) all-to-all(%p, %q), channel_id=2, replica_groups=[2,2]<=[2,2]T(1,0)
  ROOT %c = bf16[5]{0} collective-permute(%r), source_target_pairs={{0,1},{1,0}}
  %d = (f32[8]{0}, f32[16]{0}) all-gather-start(%s), replica_groups=[2,2]<=[4], dimensions={0}
"""
    assert counted(text, grid) == Counter(
        {
            ("all_reduce", ((0, 2), (1, 3)), 96): 1,
            ("all_to_all", ((0, 1), (2, 3)), 48): 1,
            ("permute", ((0, 2), (2, 0)), 10): 1,
            ("all_gather", ((0, 2), (1, 3)), 64): 1,
        }
    )


@pytest.mark.jax
def test_empty_blocks_are_not_sent_which_xla_refuses() -> None:
    jnp = pytest.importorskip("jax.numpy")
    from autoshard.engines.xla_collectives import XlaCollectives

    collectives, block = XlaCollectives(Grid((("dp", 2), ("tp", 3)), tuple(range(6)))), jnp.zeros((4, 0, 6), bool)
    assert collectives.all_gather(block, ("tp",), 1).shape == (4, 0, 6)
    assert collectives.all_gather(block, ("tp",), 0).shape == (12, 0, 6)
    assert collectives.reduce_scatter(block, ("dp",), 2, "sum").shape == (4, 0, 3)
    assert collectives.all_to_all(block, ("dp",), 0, 2).shape == (2, 0, 12)
