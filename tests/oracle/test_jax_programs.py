"""The annotated JAX programs of the comparison with XLA: their program for 8 ranks does what the unsplit one does, its
inputs and outputs lie as the annotations ask, and the list of its collectives tells the bytes of its steps."""

from __future__ import annotations

import jax  # noqa: F401  (brings the bindings that read modules)
import numpy as np
import pytest

from autoshard.api import Planned, plan
from autoshard.cli.module_run import differences
from autoshard.frontends import from_stablehlo
from autoshard.partition.program import timed
from autoshard.partition.traffic import bytes_moved, to_json, traffic_of
from autoshard.partition.verify import verify_program
from autoshard.search.constraints import dividing_layout
from autoshard.trace.evaluate import evaluate
from benchmarks.jax_programs import PROGRAMS

pytestmark = pytest.mark.jax
LARGE = 60
"""Operators of programs that are planned by rules alone."""


def feeds(planned: Planned) -> list[np.ndarray]:
    """Small floats, and whole numbers that all of the programs' tables have."""
    rng = np.random.default_rng(3)
    return [
        rng.normal(size=value.type.shape, scale=0.5).astype(np.float32)
        if value.type.dtype.is_float
        else rng.integers(0, 16, value.type.shape).astype(value.type.dtype.numpy)
        for value in planned.graph.inputs
    ]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_split_program_equals_the_whole_one(name: str) -> None:
    imported = from_stablehlo(PROGRAMS[name].module(small=True))
    # Large ones by rules alone: what a search takes for them is not what this is about.
    large = len(imported.graph.nodes) > LARGE
    planned = plan(imported, search="factor" if large else "communication")
    given = feeds(planned)
    verify_program(planned.program)
    found = planned.run(*given)
    whole = evaluate(planned.graph, given)
    if any(value.type.dtype.name == "bf16" for value in planned.graph.values):
        # What is rounded to eight bits on the way is wide again when it leaves.
        found, whole = ([one.astype(np.float16) for one in outputs] for outputs in (found, whole))
    assert not differences(found, whole)
    check_borders(planned, imported)
    check_list(planned)


def check_borders(planned: Planned, imported) -> None:
    """Inputs and outputs lie exactly as asked."""
    asked = imported.asked
    for value, register in zip(imported.graph.inputs, planned.program.inputs, strict=True):
        assert register.layout is dividing_layout(asked.values[value], value.type.shape), value.name
    for i, sharding in enumerate(asked.outputs[imported.graph.name]):
        register = planned.program.outputs[i]
        assert register.layout is dividing_layout(sharding, register.true.shape), i


def check_list(planned: Planned) -> None:
    """Every collective is listed once, with the bytes of its step."""
    told = traffic_of(planned.program)
    moving = [one for one in planned.program.collectives if one.step.communicates]
    assert len(told) == len(moving)
    assert bytes_moved(told) == sum(one.nbytes_moved for one in moving)
    data = to_json(told)
    assert data["total_bytes_moved"] == sum(one["bytes_moved"] for one in data["collectives"])
    times = [times for one, times in timed(planned.program.instructions) if one in set(moving)]
    assert data["executed"]["times"] == times
