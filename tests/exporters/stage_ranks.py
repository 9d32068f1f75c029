"""Exported stages on a device that is none: started by `test_stage_exports.py` under torchrun.

    stage_ranks.py FOLDER INPUTS.npz OUTPUTS.npz

Two steps of `torch-stages`, or one of `torch-pipelining`; rank 0 writes what it makes.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from tests.engines.pretended import pretended


def made(folder: Path, device: str, wire: str, given: dict[str, np.ndarray]) -> dict[str, Any]:
    """What the exported code makes where its own choice of a device is this one."""
    code = runpy.run_path(str(folder / "train.py"))
    runtime: Any = sys.modules["stages_runtime"]
    plan, schedule = code["PLAN"], folder / "schedule.csv"
    runtime.start = lambda *_: (device, wire)
    check_devices(runtime)
    if "main_stages" in code:
        return runtime.run_steps(plan, schedule, given, 2)
    pipeline = runtime.StagePipeline(plan, schedule, given)
    loss = pipeline.step({})
    return {**pipeline.gradients(), "loss": np.asarray(loss)}


def check_devices(runtime: Any) -> None:
    """That all pieces take and give what lies on the device."""
    run = runtime.StageGroup.run

    def checked(self: Any, piece: Any, given: Any) -> Any:
        found = run(self, piece, given)
        assert {one.device.type for one in (*given, *found)} <= {"pretended"}
        return found

    runtime.StageGroup.run = checked


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    sys.path.insert(0, str(folder))
    # Backward passes stay in this thread, which pretends the device.
    with pretended() as device, torch.autograd.set_multithreading_enabled(False):
        backend: Any = torch.get_device_module(device)
        backend.get_rng_state, backend.set_rng_state = (
            lambda _: torch.get_rng_state(),
            lambda state, _: torch.set_rng_state(state),
        )
        dist.init_process_group("cpu:gloo,pretended:gloo")
        found = made(folder, device, "cpu" if sys.argv[4:] else device, dict(np.load(sys.argv[2])))
        if dist.get_rank() == 0:
            np.savez(sys.argv[3], **found)
        dist.destroy_process_group()
