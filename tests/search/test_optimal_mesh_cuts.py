"""Where a mesh has so many axes that neighbours are used as one, all ways to do so are compared."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autoshard import ops
from autoshard.cost.memory import peak_memory
from autoshard.cost.prices import prices_for
from autoshard.layout.mesh import Mesh
from autoshard.search import Problem, evaluate_plan, find_mode
from autoshard.search import mesh_cuts as ways_of
from autoshard.search.exact.over_mesh_cuts import plan_of_assignment, promising, solve_over_mesh_cuts
from autoshard.search.exact.search import ExactSearch, solve
from autoshard.search.factor_graph import FactorGraph
from autoshard.search.mesh_cuts import MeshCuts
from autoshard.trace.function import trace
from autoshard.util.clock import now
from autoshard.util.errors import MemoryLimitError
from costmodel import preset
from tests.search.plans import array

HARDWARE = preset("h100")


def problem(**options) -> Problem:
    """Two products with a sum between them that several read, on a mesh of three unequal axes."""

    def function(x, v, w):
        hidden = ops.relu(ops.matmul(x, v))
        return ops.add(ops.matmul(hidden, w), x), ops.square(hidden)

    graph = trace(function, array(400, 96), array(96, 480), array(480, 96)).graph
    return Problem(graph, Mesh.parse("2x3x4"), HARDWARE, options=options)


@pytest.fixture
def ways(monkeypatch) -> list[FactorGraph]:
    """The tables of each way to use the three axes as two."""
    monkeypatch.setattr(ways_of, "MOST", 100)
    return [FactorGraph(problem(), prices_for(HARDWARE), units) for units in MeshCuts(problem())]


def test_the_best_of_all_ways_is_found(ways):
    assert len(ways) == 2 and all(one.units.bundled and len(one.units) == 2 for one in ways)
    values = [solve(one).value for one in ways]
    assert len(set(values)) > 1
    factor_graph, found = solve_over_mesh_cuts(problem(), 30.0)
    assert found.value == pytest.approx(min(values), rel=1e-9) and found.proven
    assert found.stats["ways"] == found.stats["searched"] == 2
    plan = plan_of_assignment(factor_graph, found)
    assert evaluate_plan(plan, HARDWARE).seconds == pytest.approx(found.value, rel=1e-9)
    assert plan.search_stats["restricted"] == plan.search_stats["proven"] == 1


def test_a_way_without_time_is_told_by_the_gap(ways):
    _, found = solve_over_mesh_cuts(problem(), 1e-9)
    assert found.stats["searched"] == 1 and found.stats["ways"] == 2
    assert found.bound == 0 and not found.proven
    assert found.value >= min(solve(one).value for one in ways) * (1 - 1e-9)


def test_only_what_is_below_a_value_is_searched(ways):
    for factor_graph in ways:
        best = solve(factor_graph)
        found, bound = ExactSearch(factor_graph, now() + 30.0).run(best.value * 1.01)
        assert found is not None and found.value == pytest.approx(best.value, rel=1e-9)
        assert bound == pytest.approx(best.value, rel=1e-9)
        found, bound = ExactSearch(factor_graph, now() + 30.0).run(best.value * 0.99)
        assert found is None and best.value * 0.99 * (1 - 1e-8) <= bound <= best.value


def test_a_memory_limit_holds_in_all_ways(ways):
    free = find_mode("optimal")(problem())
    most = peak_memory(free)
    tight = find_mode("optimal")(problem(memory=math.ceil(0.95 * most)))
    assert peak_memory(tight) <= math.ceil(0.95 * most)
    stats = tight.search_stats
    assert stats["seconds"] >= free.search_stats["seconds"] * (1 - 1e-9)
    assert stats["bound"] <= stats["seconds"] * (1 + 1e-9)
    assert np.isclose(stats["gap"], (stats["seconds"] - stats["bound"]) / stats["seconds"])
    with pytest.raises(MemoryLimitError) as told:
        find_mode("optimal")(problem(memory=100))
    assert told.value.limit == 100 < told.value.needed <= most


def test_cuts_of_which_no_sum_can_be_of_use_are_left_out():
    function = trace(lambda x, w, v: ops.matmul(ops.relu(ops.matmul(x, w)), v), array(1024, 1024), array(1024, 1024),
                     array(1024, 1024))  # fmt: skip
    of = Problem(function.graph, Mesh.flat(128), HARDWARE)
    first, second = promising(of)
    bounds = first.glance(), second.glance()
    assert bounds[0] <= bounds[1]
    assert [one.whole.units for one in promising(of, 2 * bounds[1])] == [first.whole.units, second.whole.units]
    assert not promising(of, bounds[0] / 2)


def test_whether_a_mesh_is_used_whole_is_told_without_counting_its_cuts(monkeypatch):
    monkeypatch.setattr(MeshCuts, "_most_parts", lambda self: pytest.fail("counts all cuts"))
    of = Problem(problem().graph, Mesh.flat(1024), HARDWARE)
    assert not MeshCuts(of, short=True).is_whole
