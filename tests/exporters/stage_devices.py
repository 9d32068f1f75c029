"""Stages as functions of JAX on 8 devices of this host: started by `test_jax_stages.py`, as devices are counted once.

Each argument is a case; two steps lead to what two steps in one piece lead to.
"""

from __future__ import annotations

import sys

from autoshard.engines.xla_engine import need_devices
from autoshard.pipeline.schedules import SCHEDULES, make_schedule
from tests.exporters.stage_models import STEPS, assert_close, planned_case, unsplit

ALL_SCHEDULES = "every schedule"


def check(name: str) -> str:
    """Run a case; what of the ways of values is in it."""
    planned, given, graph = planned_case(name)
    stages = planned.to_jax()
    assert_close(stages.run(given, STEPS), unsplit(graph, given))
    pieces, routes = stages.plan.pieces, stages.plan.routes
    ends = [one for piece in pieces for one in (*piece.inputs, *piece.outputs)]
    found = {
        "partial": any(one.partial for one in ends),
        "padded": any(one.padded != one.shape for one in ends),
        "moved": any(route.moved for route in routes),
        "joined": bool(stages.plan.joined),
        "data": stages.plan.prologue is not None,
        "donated": any(piece.donated for piece in pieces),
    }
    return " ".join(word for word, is_there in found.items() if is_there)


def check_schedules() -> str:
    """The same stages by every schedule."""
    for name in SCHEDULES:
        schedule = make_schedule(name, 2, 4)
        planned, given, graph = planned_case("tied in v", schedule=schedule, micro_batches=4, search="bfs")
        assert_close(planned.to_jax().run(given, STEPS), unsplit(graph, given))
    return ""


if __name__ == "__main__":
    need_devices(8)
    for name in sys.argv[1:]:
        print(f"{name}: {check_schedules() if name == ALL_SCHEDULES else check(name)}", flush=True)
