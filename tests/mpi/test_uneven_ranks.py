"""Dims that do not divide on MPI ranks: random programs by random uneven strategies equal the whole run."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard.layout import Mesh
from autoshard.mindspore.communication import get_group_size
from autoshard.partition.lower import lower
from autoshard.runtime.interpret import Executor
from autoshard.runtime.mpi import default_comm
from autoshard.trace.evaluate import evaluate
from tests.oracle import test_programs as programs
from tests.partition.uneven_plans import random_plan

WORLD = get_group_size()


@pytest.fixture(scope="module")
def comm():
    return default_comm(WORLD)


@pytest.mark.parametrize("seed", range(10))
def test_uneven_programs_equal_whole(seed, comm, monkeypatch):
    monkeypatch.setattr(programs, "SIZES", (5, 6, 7, 9, 10, 13))
    rng = np.random.default_rng([seed, 406])
    mesh = Mesh(a=2, b=WORLD // 2) if WORLD % 2 == 0 and seed % 2 else Mesh.flat(WORLD)
    graph = programs.random_graph(rng)
    feeds = programs.feeds_for(graph, rng)
    if seed % 3 == 0:
        graph = programs.with_gradient(graph)
    got = Executor(lower(random_plan(graph, mesh, rng)), comm)(*feeds)
    for value, ours, theirs in zip(graph.outputs, got, evaluate(graph, feeds), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-11, err_msg=value.name)
