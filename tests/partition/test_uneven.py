"""Dims that do not divide: programs by random uneven strategies, whatever their padding holds, equal the whole run."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard.cost.evaluate import evaluate_plan
from autoshard.ir.graph import DATA
from autoshard.layout import Mesh
from autoshard.partition.lower import lower
from autoshard.partition.program import Compute
from autoshard.partition.verify import verify_program
from autoshard.runtime import padded
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm
from autoshard.search import Problem, find_mode
from autoshard.util.errors import StrategyError
from costmodel import preset
from tests.oracle import test_programs as programs
from tests.oracle.check import assert_same, single
from tests.oracle.samples import SAMPLES
from tests.partition.uneven_plans import (
    check_equals_whole,
    is_uneven,
    layout_of,
    random_plan,
    random_program,
    strategy_of,
)

SIZES = (5, 6, 7, 9, 10, 13, 24)
PROGRAMS = 36


@pytest.fixture
def poison(monkeypatch):
    """Padding that holds NaN, or numbers that are no index."""

    def blank(shape, of):
        made = np.zeros(shape, of)
        made.fill(np.nan if of.kind in "fc" else 1 if of.kind == "b" else 77)
        return made

    monkeypatch.setattr(padded, "_blank", blank)


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_uneven_programs_equal_whole(seed, poison, monkeypatch):
    monkeypatch.setattr(programs, "SIZES", SIZES)
    rng, mesh, graph, feeds = random_program(seed, 404)
    plan = random_plan(graph, mesh, rng)
    what = f"\non mesh {mesh} with " + "; ".join(f"{node.label} as {plan.strategy(node)}" for node in graph.nodes)
    try:
        check_equals_whole(lower(plan), graph, feeds)
    except Exception as error:
        pytest.fail(f"{type(error).__name__}: {error}{what}")


@pytest.mark.parametrize("seed", range(15))
def test_searches_plan_around_uneven_strategies(seed, poison, monkeypatch):
    """Some operators and data inputs are uneven by request; a search plans the rest."""
    monkeypatch.setattr(programs, "SIZES", SIZES)
    rng, mesh, graph, feeds = random_program(seed, 405, gradients=False)
    fixed = {node: strategy_of(node, mesh, rng) for node in graph.nodes if rng.random() < 0.3}
    given = {
        value: layout_of(value.type.shape, mesh, rng)
        for value, role in zip(graph.inputs, graph.roles, strict=True)
        if role == DATA
    }
    problem = Problem(graph, mesh, preset("cpu"), given=given, fixed=fixed)
    try:
        plan = find_mode("batch" if seed % 4 == 3 else "sharding_propagation")(problem)
    except StrategyError as error:
        assert "want" in str(error)  # two of them want one parameter in different layouts
        return
    cost = evaluate_plan(plan, preset("cpu").for_ranks(mesh.devices))
    assert cost.seconds > 0 and cost.peak_memory_bytes > 0
    check_equals_whole(lower(plan), graph, feeds)


@pytest.mark.parametrize("held", ["poison", "zeros"])
@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_every_operator_with_dims_that_do_not_divide(sample, held, request):
    """Each operator's sample on ranks whose number divides few sizes, by random strategies."""
    if held == "poison":
        request.getfixturevalue("poison")
    arrays = sample.arrays(np.random.default_rng(1))
    graph, node = single(sample.op, arrays, sample.attributes)
    whole = sample.op.evaluate(arrays, node.attrs)
    for seed, name in enumerate(("2x5", "7")):
        mesh = Mesh.parse(name)
        plan = random_plan(graph, mesh, np.random.default_rng([seed, 11]))
        program = lower(plan)
        verify_program(program)
        got = Executor(program, LocalComm(mesh.devices))(*arrays)
        for ours, theirs in zip(got, whole, strict=True):
            assert_same(ours, theirs, 1e-5, f"{sample} by {plan.strategy(node)} on {mesh}")


def test_the_programs_are_uneven(monkeypatch):
    """Whether the generator makes what these tests live from: most plans are uneven, many mask padding."""
    monkeypatch.setattr(programs, "SIZES", SIZES)
    uneven, masked = 0, 0
    for seed in range(0, PROGRAMS, 2):
        rng, mesh, graph, _ = random_program(seed, 404)
        plan = random_plan(graph, mesh, rng)
        uneven += is_uneven(plan)
        masked += any(one.op.name == "MaskPadding" for one in lower(plan).instructions if isinstance(one, Compute))
    assert uneven > PROGRAMS / 2 * 0.8 and masked > PROGRAMS / 2 * 0.4
