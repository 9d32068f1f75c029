"""Programs on ranks of torch.distributed, checked on each: started by `test_torch.py` with `autoshard run`.

Each argument is a case: forward/MESH/MODE, step/MESH/MODE, compiled/MESH/MODE (a small step, compiled), random/SEED (on
CPUs, and on a device that is none), or device/MESH/MODE (a small step on a device that is no CPU, and sends as well
through copies on the host).
"""

from __future__ import annotations

import runpy
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autoshard.api import Planned
from autoshard.engines.placement import DevicePlacement
from autoshard.engines.torch_engine import TorchRun
from autoshard.exporters.torch_module import TorchModule
from autoshard.partition.program import Program
from autoshard.runtime.interpret import Executor
from autoshard.runtime.mpi import default_comm
from tests.engines.pretended import pretended
from tests.engines.programs import forward, program_of, small_step, step
from tests.engines.recorded import difference
from tests.mpi.first_rank import by_first
from tests.oracle.many import case


def check(name: str) -> None:
    """Run a case on numpy's engine and on torch's, on the same ranks."""
    kind, *rest = name.split("/")
    if kind == "random":
        one = case(int(rest[0]))
        program = program_of(one)
        comm = default_comm(program.mesh.devices)
        executor = Executor(program, comm)
        blocks = executor.scatter(one.made.feeds)
        wanted = executor.gather(executor.run(blocks))
        with pretended() as device:
            for placement in _placements(device):
                run = TorchRun(program, comm, device=placement)
                _assert_same(executor.gather(run.consume([list(parts) for parts in blocks])), wanted)
                assert not difference(run.collectives.done, program, comm.ranks[0], 1)
        found = TorchRun(program, comm).consume([list(parts) for parts in blocks])
        _assert_same(executor.gather(found), wanted)
        return
    if kind == "device":
        _check_device(*small_step(*rest))
        return
    model, given = {"forward": forward, "compiled": small_step}.get(kind, step)(*rest)
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
        _check_modules(model, given, compiled=(False, True))
    _check_collectives(model.program, run, 2)


def _check_device(planned: Planned, given: Sequence[np.ndarray]) -> None:
    """A step, and a module that trains, on a device whose tensors no backend moves."""
    program, comm = planned.program, default_comm(planned.plan.mesh.devices)
    arrays = [np.array(one) for one in planned.traced.inputs(*given)]
    executor = Executor(program, comm)
    blocks = executor.scatter(arrays)
    wanted = executor.gather(executor.run(blocks))
    with pretended() as device:
        code = _exported(planned)
        for placement in _placements(device):
            run = TorchRun(program, comm, device=placement)
            found = run.consume([list(parts) for parts in blocks])
            _assert_same(executor.gather(found), wanted)
            _check_collectives(program, run, 1)
            _check_code(code, planned, arrays, placement)
        _check_modules(planned, given, device=("cpu", _placements(device)[0]))


def _exported(planned: Planned) -> dict[str, Any]:
    """The names in the exported module, which is that of all ranks: the first one writes it."""
    text = by_first(lambda: planned.export("torch-code"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.py"
        path.write_text(text)
        return runpy.run_path(str(path))


def _check_code(
    code: dict[str, Any], planned: Planned, arrays: Sequence[np.ndarray], placement: DevicePlacement
) -> None:
    """The exported module, on the device."""
    inputs = dict(zip([one.name for one in planned.program.inputs], arrays, strict=True))
    found = code["run_on"](placement.device, placement.wire, code["PLAN"], code["step"], inputs, 1)
    executor = Executor(planned.program, default_comm(planned.plan.mesh.devices))
    _assert_same([found[one.name] for one in planned.program.outputs], executor(*arrays))


def _placements(device: str) -> tuple[DevicePlacement, DevicePlacement]:
    """With copies on the host around each collective, and with a backend that moves the device's tensors."""
    backends = "cpu:gloo,pretended:gloo"
    return DevicePlacement(device, backend=backends), DevicePlacement(device, device, backends)


def _check_modules(planned: Planned, given: Sequence[np.ndarray], **options: tuple[Any, Any]) -> None:
    """A module with one value of an option trains as with the other: each from the plan's values, for three steps."""
    losses = []
    ((name, values),) = options.items()
    for value in values:
        model = TorchModule(planned, **{name: value})
        optimizer, own = model.optimizer(), []
        for _ in range(3):
            loss = model(*map(np.asarray, given))
            loss.backward()
            optimizer.step()
            own.append(loss.detach().cpu().numpy())
        own += [one.cpu().numpy() for one in model.whole_state_dict().values()]
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
