"""Programs on ranks of torch.distributed, checked on each: started by `test_torch.py` with `autoshard run`.

Each argument is a case: forward/MESH/MODE, step/MESH/MODE, compiled/MESH/MODE (a step, compiled), or random/SEED.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from autoshard.api import Planned
from autoshard.engines.torch_engine import TorchRun
from autoshard.partition.program import Program
from autoshard.runtime.interpret import Executor
from autoshard.runtime.mpi import default_comm
from tests.engines.programs import forward, program_of, step
from tests.engines.recorded import difference
from tests.oracle.many import case


def check(name: str) -> None:
    """Run a case on numpy's engine and on torch's, on the same ranks."""
    kind, *rest = name.split("/")
    if kind == "random":
        one = case(int(rest[0]))
        program = program_of(one)
        comm = default_comm(program.mesh.devices)
        executor, run = Executor(program, comm), TorchRun(program, comm)
        blocks = executor.scatter(one.made.feeds)
        found = run.consume([list(parts) for parts in blocks])
        _assert_same(executor.gather(found), executor.gather(executor.run(blocks)))
        return
    model, given = (forward if kind == "forward" else step)(*rest)
    parameters = list(model.traced.parameters.values())
    before = [np.array(one.data) for one in parameters]
    engine = "torch-compiled" if kind == "compiled" else "torch"
    found = [np.asarray(model.run(*given, engine=engine)) for _ in range(2)]
    found += [np.array(one.data) for one in parameters]
    for one, value in zip(parameters, before, strict=True):
        one.set_data(value)
    wanted = [np.asarray(model.run(*given)) for _ in range(2)] + [np.array(one.data) for one in parameters]
    _assert_same(found, wanted)
    run = model.session_on(engine).executor
    assert isinstance(run, TorchRun)
    if kind == "compiled":
        assert run.text.source.count("k.stretch(") == len(run._kernels._of) > 1  # type: ignore[attr-defined]
        assert run._kernels._compiled  # type: ignore[attr-defined]
        _check_modules(model, given)
    _check_collectives(model.program, run, 2)


def _check_modules(planned: Planned, given: Sequence[np.ndarray]) -> None:
    """A module that is compiled trains as one that is not: each from the plan's values, for three steps."""
    losses = []
    for compiled in (False, True):
        model = planned.to_torch(compiled=compiled)
        optimizer, own = model.optimizer(), []
        for _ in range(3):
            loss = model(*map(np.asarray, given))
            loss.backward()
            optimizer.step()
            own.append(loss.detach().numpy())
        losses.append(own)
    assert not np.array_equal(losses[0][0], losses[0][2])
    _assert_same(losses[1], losses[0])


def _check_collectives(program: Program, run: TorchRun, times: int) -> None:
    """What was done in all runs is what the program plans."""
    (rank,) = default_comm(program.mesh.devices).ranks
    assert not difference(run.collectives.done, program, rank, times)


def _assert_same(found: list, wanted: list) -> None:
    for got, want in zip(found, wanted, strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        if want.dtype.kind in "biu":
            np.testing.assert_array_equal(got, want)
        else:
            scale = float(np.max(np.abs(want[np.isfinite(want)]), initial=1e-30))
            np.testing.assert_allclose(got, want, rtol=1e-3, atol=max(1e-4 * scale, 1e-6))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        check(name)
        print(name, "equal", flush=True)
