"""Ways to use meshes of many axes: few strategies each, few of them, and the plan says in which it is the best."""

from __future__ import annotations

import pytest

from autoshard import nn, ops
from autoshard.cost.evaluate import prices_for
from autoshard.layout.mesh import Mesh
from autoshard.search import Problem, find_mode
from autoshard.search import mesh_cuts as ways_of
from autoshard.search.domains import mesh_units_of
from autoshard.search.exact.over_mesh_cuts import solve_over_mesh_cuts
from autoshard.search.exact.search import ExactSearch, solve
from autoshard.search.factor_graph import FactorGraph
from autoshard.search.mesh_cuts import MeshCuts
from autoshard.trace.function import trace
from autoshard.util.clock import now
from costmodel import preset
from tests.search.plans import array

HARDWARE = preset("h100")


def product(mesh: Mesh) -> Problem:
    """A product and a sum, of sizes that many small axes divide."""
    graph = trace(lambda x, w, y: ops.add(ops.matmul(x, w), y), array(256, 1024), array(1024, 512), array(256, 512))
    return Problem(graph.graph, mesh, HARDWARE)


def pointwise(mesh: Mesh, rank: int) -> Problem:
    return Problem(trace(lambda x: ops.sigmoid(ops.relu(x)), array(*[64] * rank)).graph, mesh, HARDWARE)


PROBLEMS = {
    "product on axes": lambda: product(Mesh((f"x{i}", 2) for i in range(10))),
    "product on a flat mesh": lambda: product(Mesh.flat(1024)),
    "pointwise, rank 4": lambda: pointwise(Mesh.flat(64), 4),
    "pointwise, rank 2": lambda: pointwise(Mesh.flat(64), 2),
    "pointwise on axes": lambda: pointwise(Mesh((f"x{i}", 2) for i in range(6)), 3),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_tables_stay_small(name):
    """Two operators on 64 devices planned redistributions between all layouts for more than a minute."""
    problem = PROBLEMS[name]()
    ways = MeshCuts(problem)
    assert not ways.is_whole and ways.total <= len(ways.units) + ways_of.NEXT * ways.parts
    widest = None
    for units in ways:
        assert len(units) <= ways.parts and units.bundled
        ways.note(float(len(ways.searched)))
        widest = units
    assert len(ways.searched) == ways.total and widest is not None and len(widest) == ways.parts
    factor_graph = FactorGraph(
        problem, prices_for(HARDWARE), mesh_units_of(problem.mesh, problem.graph).cut((len(ways.units) // 2,))
    )
    assert max(factor_graph.sizes) <= ways_of.MOST
    assert 0 < sum(map(len, factor_graph.transfers._planned_for.values())) <= ways_of.PAIRS


def test_small_meshes_are_used_whole():
    for text in ("8", "2x4", "8x8", "2x2x2", "dp=16 tp=16"):
        ways = MeshCuts(product(Mesh.parse(text)))
        assert [len(units) for units in ways] == [len(ways.units)] and ways.description == ""


def test_short_searches_use_few_parts():
    """All of a mesh where the graph has few operators; of many, in two parts."""
    for text, parts in (("4x4", 2), ("4x4x4", 3), ("64", 3)):
        problem = product(Mesh.parse(text))
        assert MeshCuts(problem).parts == parts >= MeshCuts(problem, short=True).parts >= 2
    layers = [nn.Dense(64 + 8 * i, 72 + 8 * i) for i in range(24)]
    many = trace(nn.SequentialCell(*layers), array(128, 4, 64)).graph
    for text, total in (("4x4", 1), ("4x4x4", 2), ("64", 3), ("256", 3)):
        ways = MeshCuts(Problem(many, Mesh.parse(text), HARDWARE), short=True)
        found = []
        for units in ways:
            found.append(len(units))
            ways.note(1.0)
        assert found == [2] * total


@pytest.mark.parametrize("best", range(1, 10))
def test_short_searches_go_outwards_as_long_as_it_gets_better(best):
    layers = [nn.Dense(64 + 8 * i, 72 + 8 * i) for i in range(24)]
    many = trace(nn.SequentialCell(*layers), array(128, 4, 64)).graph
    ways = MeshCuts(Problem(many, Mesh.flat(1024), HARDWARE), short=True)
    for units in ways:
        ways.note(1.0 + abs(len(f"{units.sizes[0]:b}") - 1 - best))
    assert ways.searched[(best,)] == 1.0 == min(ways.searched.values())
    beyond = 1 < best < 9  # the first that is worse again
    assert len(ways.searched) == 1 + abs(best - 5) + beyond + 1  # halves, up to the best, and one to the other side


def test_two_parts_are_nearly_as_good_as_three():
    problem = product(Mesh.parse("4x4x4"))
    units = MeshCuts(problem).units
    whole, *every = [solve(FactorGraph(problem, prices_for(HARDWARE), one)).value for one in (units, *units.bundles(2))]
    assert whole * (1 - 1e-9) <= min(every) <= 1.05 * whole


def test_a_glance_bounds_what_is_found():
    problem = product(Mesh.parse("4x4x4"))
    for units in MeshCuts(problem).units.bundles(2):
        factor_graph = FactorGraph(problem, prices_for(HARDWARE), units)
        search, best = ExactSearch(factor_graph, now() + 60.0, gap=0.01), solve(factor_graph).value
        bound = search.glance()
        assert 0 < bound <= best * (1 + 1e-9)
        found, proved = search.run()
        assert found is not None and bound <= proved * (1 + 1e-9) and proved <= best * (1 + 1e-9)
        assert best * (1 - 1e-9) <= found.value <= best * 1.01


@pytest.mark.parametrize("text", ["2x2x2x2x2", "4x3x2x2"])
def test_few_ways_hold_the_best_of_all(text):
    problem = product(Mesh.parse(text))
    ways = MeshCuts(problem)
    whole = mesh_units_of(problem.mesh, problem.graph)
    every = [solve(FactorGraph(problem, prices_for(HARDWARE), units)).value for units in whole.bundles(2)]
    factor_graph, found = solve_over_mesh_cuts(problem, 60.0, mesh_cuts=ways)
    assert found.proven and found.value <= min(every) * (1 + 1e-9)
    assert factor_graph.units.bundled and found.stats["searched"] == ways.total == len(ways.searched)


def test_a_plan_says_of_which_ways_it_speaks():
    problem = product(Mesh.parse("a=2 b=2 c=2 d=2 e=2"))
    for mode in ("optimal", "dynamic_programming"):
        told = find_mode(mode)(problem).started_from
        assert "parts of the mesh that are used as one" in told and " | " in told and "a.b" in told
    stats = find_mode("optimal")(problem).search_stats
    assert stats["restricted"] == 1 and stats["searched"] == stats["ways"] < 20 and stats["possible ways"] >= 4
