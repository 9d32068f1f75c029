"""Random programs through all passes: legal, with equal results, no more bytes, no more memory, in every step."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard.ir.text import show
from autoshard.layout import Mesh
from autoshard.partition.lower import lower
from autoshard.partition.passes import PASSES, optimize
from autoshard.partition.verify import verify_program
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm
from autoshard.trace.evaluate import evaluate
from costmodel import preset
from tests.oracle import test_programs as programs
from tests.oracle.check import assert_same
from tests.partition.test_nests_random import Drawn
from tests.partition.uneven_plans import MESHES, random_plan
from tests.search.plans import array, checked

EVEN, UNEVEN = (4, 6, 10, 12, 24), (5, 6, 7, 9, 10, 13, 24)


@pytest.mark.parametrize("seed", range(16))
def test_random_programs(seed, monkeypatch):
    monkeypatch.setattr(programs, "SIZES", UNEVEN if seed % 4 == 3 else EVEN)
    rng = np.random.default_rng([seed, 404])
    mesh = Mesh.parse(MESHES[seed % len(MESHES)])
    graph = programs.random_graph(rng)
    feeds = programs.feeds_for(graph, rng)
    if seed % 2:
        graph = programs.with_gradient(graph)
    program = lower(random_plan(graph, mesh, rng))
    made, savings = optimize(program, preset("cpu").for_ranks(mesh.devices), PASSES)
    verify_program(made)
    for one in savings:
        assert one.nbytes > -1e-6 and one.collectives >= 0 and one.after.peak <= savings[0].before.peak, one
        assert one.after.overlapped_seconds <= one.before.overlapped_seconds * (1 + 1e-9), one
    got = Executor(made, LocalComm(mesh.devices))(*feeds)
    for value, ours, theirs in zip(graph.outputs, got, evaluate(graph, feeds), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), value.name
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-11, err_msg=f"{value.name} of\n{show(graph)}")


@pytest.mark.parametrize("seed", range(100, 106))
def test_random_nests(seed):
    drawn = Drawn(seed)
    n, m = drawn.shape
    inputs = [array(n, m, seed=seed), array(m, m, seed=seed) / m**0.5]
    mode = ("factor", "bfs", "sharding_propagation", "batch")[seed % 4]
    planned = checked(drawn, inputs, str(drawn.mesh), search=mode, passes=tuple(PASSES))
    assert planned.savings[-1].after.peak <= planned.savings[0].before.peak
    again, _ = optimize(planned.program, planned.hardware, ["share"])
    verify_program(again)


def test_passes_are_the_same_every_time():
    drawn = Drawn(11)
    n, m = drawn.shape
    inputs = [array(n, m, seed=1), array(m, m, seed=1) / m**0.5]
    planned = checked(drawn, inputs, str(drawn.mesh), search="batch")
    other = checked(drawn, inputs, str(drawn.mesh), search="batch")
    assert [type(one) for one in planned.program.instructions] == [type(one) for one in other.program.instructions]
    assert [one.after for one in planned.savings] == [one.after for one in other.savings]
    for ours, theirs in zip(planned.run(*inputs), other.run(*inputs), strict=True):
        assert_same(ours, theirs, 0.0, "the same program")
