"""Programs on 8 devices of this host, checked here: started by `test_xla.py`, as devices are counted once a process.

Each argument is a case: forward/MESH/MODE, step/MESH/MODE, or random/SEED.
"""

from __future__ import annotations

import sys

import numpy as np

from autoshard.api import Planned
from autoshard.engines.executors import Runs
from autoshard.engines.xla_engine import XlaRun, need_devices
from autoshard.partition.program import Program
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm
from tests.engines.compiled_collectives import differences
from tests.engines.programs import forward, program_of, step
from tests.oracle.many import case


def check(name: str) -> int:
    """Run a case on numpy's engine and on XLA's; how many collectives its compiled program has."""
    kind, *rest = name.split("/")
    if kind == "random":
        return _random(int(rest[0]))
    model, given = (forward if kind == "forward" else step)(*rest)
    return _model(model, given)


def _random(seed: int) -> int:
    one = case(seed)
    program = program_of(one)
    executor, run = Executor(program, LocalComm(program.mesh.devices)), XlaRun(program)
    blocks = executor.scatter(one.made.feeds)
    found = executor.gather(run.consume([list(parts) for parts in blocks]))
    _assert_same(found, executor.gather(executor.run(blocks)))
    return _check_collectives(program, run)


def _model(model: Planned, given: tuple) -> int:
    """Twice, so that what a step updates is used."""
    names = list(model.traced.parameters.values())
    before = [np.array(one.data) for one in names]
    found = [np.asarray(model.run(*given, engine="xla")) for _ in range(2)] + [np.array(one.data) for one in names]
    for one, value in zip(names, before, strict=True):
        one.set_data(value)
    wanted = [np.asarray(model.run(*given)) for _ in range(2)] + [np.array(one.data) for one in names]
    _assert_same(found, wanted)
    return _check_collectives(model.program, model.session_on("xla").executor)


def _assert_same(found: list, wanted: list) -> None:
    for got, want in zip(found, wanted, strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        if want.dtype.kind in "biu":
            np.testing.assert_array_equal(got, want)
        else:
            scale = float(np.max(np.abs(want[np.isfinite(want)]), initial=1e-30))
            np.testing.assert_allclose(got, want, rtol=1e-3, atol=max(1e-4 * scale, 1e-6))


def _check_collectives(program: Program, run: Runs) -> int:
    """The compiled program has those that are planned; how many."""
    assert isinstance(run, XlaRun)
    wrong = differences(run.lowered(), program, run.text.grid)
    assert not wrong, wrong
    return len(program.collectives)


if __name__ == "__main__":
    need_devices(8)
    for name in sys.argv[1:]:
        print(name, check(name))
