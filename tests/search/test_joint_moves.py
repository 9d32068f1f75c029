"""Joint moves find what no change of one operator, nor a chain of them, leads to; drafts keep their true cost."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard import ops
from autoshard.core.place import parse_strategy
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh
from autoshard.propagate.traced import annotations_on
from autoshard.search.assignment import Assignment, Pricing
from autoshard.search.greedy.choose import chooser
from autoshard.search.local.icm import LocalSearch
from autoshard.search.local.joint_moves import joint_moves
from autoshard.search.modes.communication import slow_network
from autoshard.search.problem import Problem
from autoshard.trace.function import trace
from tests.search.plans import array

ROWS, WIDTH, COLUMNS, READERS = 64, 512, 16, 3


def readers(x, *weights):
    return tuple(ops.matmul(x, weight) for weight in weights)


@pytest.fixture
def local_search() -> LocalSearch:
    """Three products of one matrix, which lies split by rows; the weights are whole, results are wanted by columns.

    The draft gathers the matrix, once for all three, and splits the columns.
    """
    mesh = Mesh(x=8)
    asked = tuple('[{}, {"x"}]' for _ in range(READERS))
    feeds = array(ROWS, WIDTH), *(array(WIDTH, COLUMNS, seed=i) for i in range(READERS))
    traced = trace(readers, *feeds, out_shardings=asked)
    graph = traced.graph
    x, *weights = graph.inputs
    given = {x: Layout(mesh, [mesh.all_axes, ()]), **{one: Layout.replicated(mesh, 2) for one in weights}}
    outputs = annotations_on(traced, mesh).outputs[graph.name]
    problem = Problem(graph, mesh, slow_network(), given=given, asked_outputs=outputs)
    pricing = Pricing(problem, chooser(mesh, problem.hardware).prices)
    columns = {
        node: parse_strategy(node.rule, ((1, 1), (1, 8)), mesh, [of.shape for of in node.operand_types], node.label)
        for node in graph.nodes
    }
    assert len(columns) == READERS
    return LocalSearch(Assignment(pricing, columns), graph.nodes, {}, {})


def paid(local_search: LocalSearch) -> float:
    return sum(local_search.assignment.costs.values())


def test_several_readers_of_one_copy_change_together(local_search):
    local_search.sweep(local_search.free)
    local_search.chains(100)
    x, result = local_search.pricing.graph.inputs[0], local_search.pricing.graph.outputs[0]
    rows, columns = (
        Layout(local_search.mesh, dims) for dims in ([local_search.mesh.all_axes, ()], [(), local_search.mesh.all_axes])
    )
    prices = local_search.pricing.prices
    gathered = prices.redistribution(rows, Layout.replicated(local_search.mesh, 2), x.type)
    assert paid(local_search) == pytest.approx(gathered), "alone, no reader saves the copy that others need"
    joint_moves(local_search, 100)
    exchanged = READERS * prices.redistribution(rows, columns, result.type)
    assert paid(local_search) == pytest.approx(exchanged)
    assert exchanged < gathered / 10
    again = Assignment(local_search.pricing, local_search.assignment.strategies)
    assert again.seconds == pytest.approx(local_search.assignment.seconds, rel=1e-12)


def test_no_tries_no_change(local_search):
    before = local_search.assignment.strategies
    joint_moves(local_search, 0)
    assert local_search.assignment.strategies == before


def test_a_rejected_move_leaves_the_draft_as_it_was(local_search):
    joint_moves(local_search, 100)
    best = local_search.assignment.seconds
    chosen = dict(local_search.assignment.chosen)
    joint_moves(local_search, 100)
    assert local_search.assignment.seconds == pytest.approx(best, rel=1e-12)
    assert np.all([local_search.assignment.chosen[node] is one for node, one in chosen.items()])
