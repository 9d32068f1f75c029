"""Programs on devices behind a host: steps take what it takes to start them, and no more where devices are busy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoshard import ops
from autoshard.api import plan
from autoshard.cost.instructions import Costs
from autoshard.cost.timeline import step_seconds, timeline, waiting_seconds
from autoshard.partition.program import Compute
from costmodel import Hardware, preset
from tests.partition.passing import program_of

X = {"x": ((64, 96), "f32", "tp, -")}
STEPS = [
    ("a", "Exp", ["x"], {}, ["-, -"]),
    ("c", "Add", ["a", "a"], {}, ["-, -", "-, -"]),
]


def behind(operator: float, collective: float) -> Hardware:
    base = preset("a100")
    return replace(base, device=replace(base.device, host_seconds=operator, host_collective_seconds=collective))


@pytest.mark.parametrize(("operator", "collective"), [(1e-3, 0.0), (0.0, 1e-3), (1e-3, 2e-3)])
def test_a_slow_host_is_waited_for(operator, collective):
    program = program_of("tp=4", X, STEPS, {"c": "-, -"})
    costs, free = Costs(behind(operator, collective)), Costs(preset("a100"))
    kernels = sum(isinstance(one, Compute) for one in program.instructions)
    host, alone = kernels * operator + collective, step_seconds(program, free)
    assert kernels == 2 and waiting_seconds(program, free) == 0
    assert host < step_seconds(program, costs) <= host + alone + 1e-12
    assert step_seconds(program, costs) == pytest.approx(alone + waiting_seconds(program, costs))
    assert timeline(program, costs).seconds == step_seconds(program, costs)


def test_a_fast_host_is_not():
    program = program_of("tp=4", X, STEPS, {"c": "-, -"})
    assert waiting_seconds(program, Costs(behind(1e-9, 1e-9))) < 2e-8


def test_plans_tell_what_they_wait_for_their_host():
    def model(x, w):
        return ops.relu(ops.matmul(x, w))

    arrays = np.ones((8, 16), np.float32), np.ones((16, 24), np.float32)
    slow, fast = (
        plan(model, arrays, mesh="dp=2", search="data_parallel", hardware=known)
        for known in (behind(1e-3, 1e-3), preset("a100"))
    )
    started = 2 + sum(one.collectives for one in slow.cost.axes)
    assert slow.cost.waiting_seconds == pytest.approx(started * 1e-3, rel=0.05) and fast.cost.waiting_seconds == 0
    assert slow.cost.seconds == pytest.approx(fast.cost.seconds + slow.cost.waiting_seconds)
