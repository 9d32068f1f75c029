"""Programs on 8 devices of this host, checked here: started by `test_xla.py`, as devices are counted once a process.

Each argument is a case: forward/MESH/MODE, step/MESH/MODE, or random/SEED.
"""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np

from autoshard.api import Planned
from autoshard.engines.executors import Runs
from autoshard.engines.hlo import ONE_BY_ONE, Found, counted, planned
from autoshard.engines.xla_engine import XlaRun, need_devices
from autoshard.partition.program import Program
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm
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
    found, wanted = _collectives(program, run)
    # Of two equal collectives, which no pass has made one here, XLA does one.
    assert not found - wanted, f"compiled but not planned {found - wanted}"
    return sum(found.values())


def _model(model: Planned, given: tuple) -> int:
    """Twice, so that what a step updates is used."""
    names = list(model.traced.parameters.values())
    before = [np.array(one.data) for one in names]
    found = [np.asarray(model.run(*given, engine="xla")) for _ in range(2)] + [np.array(one.data) for one in names]
    for one, value in zip(names, before, strict=True):
        one.set_data(value)
    wanted = [np.asarray(model.run(*given)) for _ in range(2)] + [np.array(one.data) for one in names]
    _assert_same(found, wanted)
    found, wanted = _collectives(model.program, model.session_on("xla").executor)
    assert found == wanted, f"compiled but not planned {found - wanted}, planned but not compiled {wanted - found}"
    return sum(found.values())


def _assert_same(found: list, wanted: list) -> None:
    for got, want in zip(found, wanted, strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        if want.dtype.kind in "biu":
            np.testing.assert_array_equal(got, want)
        else:
            scale = float(np.max(np.abs(want[np.isfinite(want)]), initial=1e-30))
            np.testing.assert_allclose(got, want, rtol=1e-3, atol=max(1e-4 * scale, 1e-6))


def _collectives(program: Program, run: Runs) -> tuple[Counter[Found], Counter[Found]]:
    """Those of the compiled program, and those planned."""
    assert isinstance(run, XlaRun)
    compiled = run.lowered().compile({**ONE_BY_ONE, "xla_backend_optimization_level": "0"}).as_text()
    return counted(compiled, run.text.grid), planned(program, run.text.grid)


if __name__ == "__main__":
    need_devices(8)
    for name in sys.argv[1:]:
        print(name, check(name))
