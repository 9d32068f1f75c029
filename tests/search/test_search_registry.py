"""Search modes by name: a user's own one is found everywhere, and unknown ones are told what there is."""

from __future__ import annotations

import pytest

import autoshard as ash
from autoshard.core.strategy import replicated_strategy
from autoshard.layout import Layout
from autoshard.plan.plan import Cause, Decision, Option, Plan
from autoshard.search import find_mode, registry, search_modes
from autoshard.search.problem import Problem
from autoshard.util.errors import UnknownNameError
from tests.search.plans import FFN, array, assert_runs_as_whole, kinds, strategies


def repeated(problem: Problem) -> Plan:
    """Every rank does everything."""
    graph, mesh = problem.graph, problem.mesh
    decisions = {
        node: Decision(Option(replicated_strategy(node.rule, mesh), 0.0, 0.0, 0.0), Cause("repeated"))
        for node in graph.nodes
    }
    layouts = {value: Layout.replicated(mesh, value.type.rank) for value in graph.values}
    return Plan(graph, mesh, decisions, layouts, tuple(layouts[value] for value in graph.outputs), search="repeated")


@pytest.fixture
def mode():
    ash.search_mode("repeated")(repeated)
    yield "repeated"
    del registry._MODES["repeated"]


def test_a_search_of_ones_own(mode):
    x = array(12, 10)
    planned = ash.plan(FFN(((2, 1), (1, 4)), sizes=(10, 24, 6)), (x,), devices=8, search=mode)
    assert_runs_as_whole(planned, (x,))
    assert strategies(planned)["relu"] == "((1, 1))" and not kinds(planned)
    assert planned.to_json()["operators"][0]["cause"] == "repeated"
    ash.set_auto_parallel_context(search_mode=mode)
    assert mode in search_modes() and find_mode(mode).__wrapped__ is repeated


def test_a_name_is_taken_once(mode):
    with pytest.raises(UnknownNameError, match="search mode 'repeated' is already defined"):
        ash.search_mode(mode)(repeated)


def test_an_unknown_name_is_told_all_modes(mode):
    known = ", ".join(search_modes())
    assert {"batch", "bfs", "factor", "repeated", "sharding_propagation"} <= set(search_modes())
    with pytest.raises(UnknownNameError, match=f"unknown search mode 'magic'; known are {known}"):
        find_mode("magic")


def test_a_search_that_forgets_an_operator_is_found_out(mode):
    def lazy(problem: Problem) -> Plan:
        full = repeated(problem)
        first, *rest = full.graph.nodes
        kept = {node: full.decisions[node] for node in rest}
        return Plan(full.graph, full.mesh, kept, full.layouts, full.outputs)

    registry._MODES[mode] = lazy
    with pytest.raises(ash.errors.PlanError, match="the plan for 'ffn' has no strategy for dense1.matmul"):
        ash.plan(FFN(sizes=(10, 24, 6)), (array(12, 10),), devices=8, search=mode)
