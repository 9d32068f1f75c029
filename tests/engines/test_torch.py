"""The engine torch: programs on 4 ranks of torch.distributed equal numpy's, by the planned collectives."""

from __future__ import annotations

import os
import subprocess
import sys
import weakref
from pathlib import Path
from shutil import which

import pytest

SCRIPT = Path(__file__).with_name("torch_ranks.py")
ROOT = Path(__file__).parents[2]
QUICK = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
"""Few kernels are compiled sooner by the rank itself than by processes that it would start for that."""
CASES = ("step/dp=2,tp=2/megatron", "step/4/factor", "device/4/zero3")
"""The last is on a device that is no CPU, which torch knows of from then on."""


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.torch
def test_programs_on_four_ranks() -> None:
    pytest.importorskip("torch")
    _run(4, CASES)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.skipif(which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_programs_on_two_ranks() -> None:
    pytest.importorskip("torch")
    _run(2, ("compiled/2/batch",))


def _run(ranks: int, cases: tuple[str, ...]) -> None:
    environment = {**os.environ, **QUICK, "PYTHONPATH": os.pathsep.join((str(ROOT), *sys.path))}
    command = [sys.executable, "-m", "autoshard", "run", "-n", str(ranks), "--timeout", "300", str(SCRIPT), *cases]
    done = subprocess.run(command, capture_output=True, text=True, timeout=360, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert all(done.stdout.count(f"{case} equal") == ranks for case in cases)


@pytest.mark.torch
def test_groups_go_with_the_one_of_all_ranks() -> None:
    """Threads of a group that is still there when Python ends may abort the process."""
    pytest.importorskip("torch")
    import torch.distributed as dist

    from autoshard.engines.grid import Grid
    from autoshard.engines.torch_collectives import TorchCollectives

    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        collectives = TorchCollectives(Grid((("x", 1),), (0,)), 0)
        collectives.prepare([("x",)])
        made = [weakref.ref(dist.group.WORLD), weakref.ref(collectives.group_of(("x",))[0])]
    finally:
        dist.destroy_process_group()
    assert [one() for one in made] == [None, None]


def test_a_single_element_may_lie_anywhere() -> None:
    """A dim of one has any stride, by which torch refuses to look at its bytes."""
    torch = pytest.importorskip("torch")
    from autoshard.engines.torch_collectives import _bytes

    one = torch.arange(6, dtype=torch.float64).reshape(2, 3)[:1, 1]
    assert one.stride() == (3,) and one.is_contiguous()
    assert _bytes(one).view(torch.float64).tolist() == [1.0]
    assert _bytes(torch.ones(3, 4, dtype=torch.bfloat16)).shape == (24,)
