"""Joint moves find what no change of one operator, nor a chain of them, leads to; drafts keep their true cost."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard import ops
from autoshard.core.place import parse_strategy
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh
from autoshard.propagate.traced import asked_on
from autoshard.search.assignment import Draft, Pricing
from autoshard.search.greedy.choose import chooser
from autoshard.search.local.icm import Improver
from autoshard.search.local.joint_moves import move_values
from autoshard.search.modes.communication import slow_network
from autoshard.search.problem import Problem
from autoshard.trace.function import trace
from tests.search.plans import array

ROWS, WIDTH, COLUMNS, READERS = 64, 512, 16, 3


def readers(x, *weights):
    return tuple(ops.matmul(x, weight) for weight in weights)


@pytest.fixture
def improver() -> Improver:
    """Three products of one matrix, which lies split by rows; the weights are whole, results are wanted by columns.

    The draft gathers the matrix, once for all three, and splits the columns.
    """
    mesh = Mesh(x=8)
    asked = tuple('[{}, {"x"}]' for _ in range(READERS))
    feeds = array(ROWS, WIDTH), *(array(WIDTH, COLUMNS, seed=i) for i in range(READERS))
    traced = trace(readers, *feeds, out_shardings=asked)
    graph = traced.graph
    x, *weights = graph.inputs
    given = {x: Layout(mesh, [mesh.all_axes, ()]), **{one: Layout.whole(mesh, 2) for one in weights}}
    outputs = asked_on(traced, mesh).outputs[graph.name]
    problem = Problem(graph, mesh, slow_network(), given=given, asked_outputs=outputs)
    pricing = Pricing(problem, chooser(mesh, problem.hardware).prices)
    columns = {
        node: parse_strategy(node.rule, ((1, 1), (1, 8)), mesh, [of.shape for of in node.operand_types], node.label)
        for node in graph.nodes
    }
    assert len(columns) == READERS
    return Improver(Draft(pricing, columns), mesh, graph.nodes, {}, {})


def paid(improver: Improver) -> float:
    return sum(improver.draft.costs.values())


def test_several_readers_of_one_copy_change_together(improver):
    improver.sweep(improver.free)
    improver.chains(100)
    x, result = improver.pricing.graph.inputs[0], improver.pricing.graph.outputs[0]
    rows, columns = (
        Layout(improver.mesh, dims) for dims in ([improver.mesh.all_axes, ()], [(), improver.mesh.all_axes])
    )
    prices = improver.pricing.prices
    gathered = prices.redistribution(rows, Layout.whole(improver.mesh, 2), x.type)
    assert paid(improver) == pytest.approx(gathered), "alone, no reader saves the copy that others need"
    move_values(improver, 100)
    exchanged = READERS * prices.redistribution(rows, columns, result.type)
    assert paid(improver) == pytest.approx(exchanged)
    assert exchanged < gathered / 10
    again = Draft(improver.pricing, improver.draft.strategies)
    assert again.seconds == pytest.approx(improver.draft.seconds, rel=1e-12)


def test_no_tries_no_change(improver):
    before = improver.draft.strategies
    move_values(improver, 0)
    assert improver.draft.strategies == before


def test_a_rejected_move_leaves_the_draft_as_it_was(improver):
    move_values(improver, 100)
    best = improver.draft.seconds
    chosen = dict(improver.draft.chosen)
    move_values(improver, 100)
    assert improver.draft.seconds == pytest.approx(best, rel=1e-12)
    assert np.all([improver.draft.chosen[node] is one for node, one in chosen.items()])
