"""The memory model: its terms against plain sums over a plan, and its peaks against what runs take."""

from __future__ import annotations

import random

import numpy as np
import pytest

from autoshard import nn, ops
from autoshard.api import plan
from autoshard.core.enumerate import enumerate_strategies
from autoshard.cost.evaluate import evaluate_plan
from autoshard.cost.memory import memory_of, peak_memory
from autoshard.cost.schedule import GraphMoments
from autoshard.ir.graph import Node
from autoshard.layout import Layout, Mesh
from autoshard.plan.plan import Cause, Decision, Option, Plan
from autoshard.runtime.local import LocalComm
from autoshard.search.memory_limit import memory_model, read_limit
from autoshard.search.problem import Problem
from autoshard.trace.function import trace
from autoshard.transform import train_step
from autoshard.util.errors import MemoryLimitError, PlanError
from benchmarks import cost_truth
from benchmarks.models import transformer_step
from costmodel import preset
from tests.search.plans import FFN, array

MESH = Mesh.parse("a=2 b=2")


def training():
    net = FFN(sizes=(12, 24, 8))
    return train_step(
        nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params(), 0.01), array(24, 12), array(24, 8)
    )


def attention(x, w):
    y = ops.transpose(ops.reshape(ops.matmul(x, w), shape=(4, 6, 2, 8)), perm=(0, 2, 1, 3))
    return ops.reshape(
        ops.transpose(ops.softmax(ops.batch_matmul(y, y, transpose_b=True)), perm=(0, 2, 1, 3)), shape=(4, 72)
    )


GRAPHS = {"training": training().graph, "attention": trace(attention, array(4, 6, 16), array(16, 16)).graph}


def drawn(problem: Problem, seed: int) -> Plan:
    """A plan of random strategies on a random layout of each input."""
    rng, decisions, layouts = random.Random(seed), {}, {}
    for value in problem.graph.inputs:
        options = [Layout.replicated(problem.mesh, value.type.rank)]
        for user, i in problem.graph.users[value]:
            options += [one.operand_layouts[i] for one in enumerate_strategies(user.rule, problem.mesh)]
        layouts[value] = rng.choice(options)
    for node in problem.graph.nodes:
        strategy = rng.choice(enumerate_strategies(node.rule, problem.mesh))
        decisions[node] = Decision(Option(strategy, 0.0, 0.0, 0.0), Cause("drawn"))
        layouts.update(zip(node.results, strategy.result_layouts, strict=True))
    return Plan(problem.graph, problem.mesh, decisions, layouts, problem.outputs(layouts))


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("seed", range(6))
def test_rows_are_what_a_plan_needs(name, seed):
    problem = Problem(GRAPHS[name], MESH, preset("cpu"))
    made = drawn(problem, seed)
    model = memory_model(problem)

    def choices(variable):
        return [made.strategy(variable) if isinstance(variable, Node) else made.layouts[variable]]

    rows = np.zeros(model.moments, np.int64)
    for term in model.terms:
        rows[term.first : term.last + 1] += term.table(choices).reshape(())
    assert rows.max() == peak_memory(made)
    assert (rows == memory_of(made).timeline).all()


def test_tables_hold_every_combination_and_equal_keys_equal_tables():
    problem = Problem(GRAPHS["training"], MESH, preset("cpu"))
    lists: dict = {}

    def choices(variable):
        if isinstance(variable, Node):
            return enumerate_strategies(variable.rule, MESH)
        whole = Layout.replicated(MESH, variable.type.rank)
        rows = [whole.with_dims([(MESH.axis("a"),), ()])] if variable.type.rank == 2 else []
        return lists.setdefault(variable.type.rank, [whole, *rows])

    tables: dict = {}
    rng = random.Random(3)
    for term in memory_model(problem).terms:
        if len(term.variables) > 3:
            continue
        table = term.table(choices)
        assert table.shape == tuple(len(choices(one)) for one in term.variables) and table.dtype == np.int64
        index = tuple(rng.randrange(size) for size in table.shape)
        picked = {one: choices(one)[i] for one, i in zip(term.variables, index, strict=True)}
        assert table[index] == term.at(picked.__getitem__)
        key = term.key, tuple(tuple(choices(one)) for one in term.variables)
        assert (tables.setdefault(key, table) == table).all()


def test_a_view_keeps_what_it_is_a_view_of():
    graph = GRAPHS["attention"]
    schedule = GraphMoments(graph)
    matmul, reshape, transpose = graph.nodes[:3]
    assert schedule.is_view(reshape) and schedule.is_view(transpose)
    assert not schedule.is_view(graph.nodes[-1]), "a reshape of what a transpose made is a copy"
    (use,) = schedule.uses[matmul.results[0]]
    assert use.end == schedule.runs[graph.nodes[3]] > schedule.runs[transpose]


def test_inputs_that_updates_replace_go_at_their_last_use():
    step = training()
    planned = plan(step, mesh="2", search="bfs")
    held = {one.what: one for one in memory_of(planned.plan).held if one.kind in ("parameter", "state", "data")}
    end = max(one.last for one in held.values())
    kept = [one for one in held.values() if one.kind == "data"]
    assert kept and all(one.last == end for one in kept)
    weight = next(value for value in planned.graph.inputs if value.name.endswith("dense1.weight"))
    assert held[weight.name].last < end


@pytest.mark.parametrize("world", [1, 4])
def test_peaks_are_those_of_runs(world):
    step = transformer_step(1, 1, 1, hidden=64, heads=4, vocabulary=192, sequence=48, batch=12)
    for search in ("bfs", "data_parallel"):
        planned = plan(step, devices=world, search=search)
        measured = cost_truth.peak_of(planned, LocalComm(world))
        # Virtual ranks take turns, so that the scratch of an operator is there once for all of them.
        slack = 1.1 if world == 1 else 1.25
        assert measured <= planned.cost.peak_memory_bytes <= slack * measured
        assert planned.cost.peak_memory_bytes <= evaluate_plan(planned.plan, planned.hardware).peak_memory_bytes * 1.02


def test_a_limit_is_kept_to_the_byte():
    """What a plan's program needs, as reports have it, is enough for it."""
    step = training()
    planned = plan(step, mesh="2", search="bfs")
    needed = planned.cost.peak_memory_bytes
    assert needed < peak_memory(planned.plan)
    assert plan(step, mesh="2", search="bfs", memory=needed).cost.peak_memory_bytes == needed
    for mode in ("sharding_propagation", "optimal"):
        assert plan(step, mesh="2", search=mode, memory=needed).cost.seconds <= planned.cost.seconds
    with pytest.raises(MemoryLimitError) as caught:
        plan(step, mesh="2", search="bfs", memory=needed - 1)
    assert (caught.value.needed, caught.value.limit) == (needed, needed - 1)
    told = str(caught.value)
    assert "over the memory limit" in told and "(1 B)" in told and "search='optimal'" in told
    assert planned.cost.memory is not None and planned.cost.memory.peak_at in told


def test_limits_are_read_from_text():
    assert read_limit("2 KiB") == 2048 and read_limit(None) is None and read_limit(7) == 7
    with pytest.raises(PlanError, match="cannot read 'much'"):
        read_limit("much")
