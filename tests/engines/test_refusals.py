"""What an engine cannot do is said before anything runs: which operator, at which line, or which package."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard import plan
from autoshard.api import Planned
from autoshard.engines import extras
from autoshard.engines.executors import check_engine_runs, executor_of
from autoshard.ops.special import bessel_j0
from autoshard.ops.unary import exp
from autoshard.util.errors import PlanError, RuntimeSetupError, UnknownNameError


def _waves() -> Planned:
    return plan(lambda x: bessel_j0(exp(x)), (np.ones((8, 3), np.float32),), "2")


@pytest.mark.jax
def test_an_operator_that_an_engine_lacks_is_named_with_its_line() -> None:
    pytest.importorskip("jax")
    with pytest.raises(PlanError, match=r"'xla' does not run \w+ \(BesselJ0\) at .*test_refusals.py:18: JAX has no"):
        check_engine_runs(_waves().program, "xla")


@pytest.mark.torch
def test_an_engine_that_has_it_runs_all_ranks_in_this_process() -> None:
    pytest.importorskip("torch")
    planned = _waves()
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3)
    np.testing.assert_allclose(planned.run(x, engine="torch"), planned.run(x), rtol=1e-5, atol=1e-6)


@pytest.mark.torch
def test_ranks_of_one_process_are_not_compiled() -> None:
    pytest.importorskip("torch")
    with pytest.raises(RuntimeSetupError, match="autoshard run -n 2 --engine torch-compiled"):
        _waves().run(np.ones((8, 3), np.float32), engine="torch-compiled")


@pytest.mark.torch
def test_another_number_of_ranks_and_backends_that_move_nothing_of_cpus() -> None:
    dist = pytest.importorskip("torch.distributed")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    planned = plan(lambda x: exp(x), (np.ones((8, 3), np.float32),), "2")
    with pytest.raises(RuntimeSetupError, match="the plan is for 2 ranks, but 1 is running; start it with `torchrun"):
        planned.to_torch()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        with pytest.raises(RuntimeSetupError, match=r"started with backend '.*cpu:fake.*but the engine torch .* gloo"):
            planned.to_torch()
    finally:
        dist.destroy_process_group()


def test_unknown_engines_and_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    program = _waves().program
    with pytest.raises(UnknownNameError, match="unknown engine 'xl'; did you mean 'xla'"):
        check_engine_runs(program, "xl")
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(RuntimeSetupError, match=r"the engine torch needs torch and ml_dtypes.*autoshard\[torch\]"):
        check_engine_runs(program, "torch")


def test_xla_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    class Started:
        ranks, world = (1,), 2

    with pytest.raises(RuntimeSetupError, match="runs all 2 devices from one process"):
        executor_of(_waves().program, Started(), "xla")  # type: ignore[arg-type]
