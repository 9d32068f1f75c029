"""Seats: the cheapest choices are those that pricing every choice finds, and bounds never say more than prices."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autoshard import ops
from autoshard.core.enumerate import some_strategies
from autoshard.layout.mesh import Mesh
from autoshard.search.assignment import Assignment, Pricing
from autoshard.search.domains import mesh_units_of
from autoshard.search.greedy.choose import chooser
from autoshard.search.local.icm import LocalSearch
from autoshard.search.local.local_cost import LocalCost
from autoshard.search.problem import Problem
from autoshard.trace.function import trace
from costmodel import preset
from tests.search.plans import array

MESH = Mesh(a=2, b=4)


def network(x, first, second, scale):
    hidden = ops.softmax(ops.matmul(x, first), axis=-1)
    return ops.matmul(hidden * scale, second) + x


@pytest.fixture
def pricing() -> Pricing:
    graph = trace(network, array(48, 64), array(64, 96), array(96, 64), array(96)).graph
    problem = Problem(graph, MESH, preset("h100"))
    return Pricing(problem, chooser(MESH, problem.hardware).prices)


def assignment(pricing: Pricing, seed: int) -> Assignment:
    """Any strategies."""
    rng = np.random.default_rng(seed)
    listed = {node: some_strategies(node.rule, MESH) for node in pricing.graph.nodes}
    return Assignment(pricing, {node: ways[rng.integers(len(ways))] for node, ways in listed.items()})


@pytest.mark.parametrize("seed", range(4))
def test_cheapest_choices(pricing, seed):
    made = assignment(pricing, seed)
    for node in pricing.graph.nodes:
        local_cost = LocalCost(made, node)
        choices = [pricing.choice(node, one) for one in some_strategies(node.rule, MESH)]
        prices = sorted(local_cost.price(one) for one in choices)
        limit = prices[len(prices) // 3]
        found = LocalCost(made, node).cheapest(choices, 4, limit)
        assert [seconds for seconds, _ in found] == pytest.approx([one for one in prices if one < limit][:4])
        assert all(local_cost.price(choice) == seconds for seconds, choice in found)


@pytest.mark.parametrize("seed", range(4))
def test_a_limit_is_only_said_to_be_reached_where_it_is(pricing, seed):
    made = assignment(pricing, seed)
    for node in pricing.graph.nodes:
        local_cost = LocalCost(made, node)
        for strategy in some_strategies(node.rule, MESH):
            choice = pricing.choice(node, strategy)
            seconds = local_cost.price(choice)
            assert choice.least <= seconds
            assert local_cost.price(choice, seconds * 1.001) == seconds
            assert local_cost.price(choice, seconds * 0.999) == math.inf


@pytest.mark.parametrize("seed", range(4))
def test_an_answer_is_the_best_of_the_candidates(pricing, seed):
    made = assignment(pricing, seed)
    local_search = LocalSearch(made, pricing.graph.nodes, {}, {})
    for node in pricing.graph.nodes:
        gain, best = local_search.best_response(node)
        local_cost, now = LocalCost(made, node), made.chosen[node]
        least = min(local_cost.price(one) for one in (*local_search.candidates(node), now))
        assert local_cost.price(now) + gain == pytest.approx(least)
        assert local_cost.price(best) == pytest.approx(least)


def test_atoms_make_strategies_of_whole_axes(pricing):
    units = mesh_units_of(MESH, pricing.graph)
    for node in pricing.graph.nodes:
        for strategy in some_strategies(node.rule, MESH):
            assert units.make(strategy.used) == all(ref in MESH.all_axes for ref in strategy.used)


def test_atoms_of_a_flat_mesh_make_all(pricing):
    flat = Mesh.flat(8)
    node = next(node for node in pricing.graph.nodes if node.op.name == "MatMul")
    assert all(mesh_units_of(flat, pricing.graph).make(one.used) for one in some_strategies(node.rule, flat))
