"""Message passing only moves costs about: what it says of a choice is what the tables say, from any start."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from autoshard import nn, ops
from autoshard.cost.prices import prices_for
from autoshard.layout.mesh import Mesh
from autoshard.search import Problem
from autoshard.search.domains import mesh_units_of
from autoshard.search.exact.min_marginals import MOST, MinMarginals
from autoshard.search.exact.search import ExactSearch, best_among, solve
from autoshard.search.exact.srmp import LIKE, Srmp
from autoshard.search.factor_graph import FactorGraph
from autoshard.trace.function import trace
from autoshard.transform import train_step
from autoshard.util.clock import now
from costmodel import preset
from tests.search.plans import array

HARDWARE = preset("h100")


class Deep(nn.Cell):
    """Equal layers, each of whose inputs has two users."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.CellList([nn.Dense(96, 96) for _ in range(layers)])

    def construct(self, x, y):
        for layer in self.layers:
            x = ops.add(ops.relu(layer(x)), x)
        error = ops.sub(x, y)
        return ops.reduce_mean(ops.mul(error, error))


@pytest.fixture(scope="module", params=["4", "2x4"])
def deep(request) -> FactorGraph:
    network, mesh = Deep(16), Mesh.parse(request.param)
    step = train_step(network, nn.SGD(network.trainable_params(), learning_rate=0.1), array(128, 96), array(128, 96))
    return FactorGraph(Problem(step.graph, mesh, HARDWARE), prices_for(HARDWARE), mesh_units_of(mesh, step.graph))


def stands(bounds: Srmp, choice) -> float:
    """What a choice costs by what turns hold, by potentials and by prices."""
    total = 0.0
    for orbit in bounds.orbits:
        total += sum(
            float(potential[choice[v]]) for potential, v in zip(orbit.potential, orbit.members.tolist(), strict=True)
        )
    for factor_orbit in bounds.factor_orbits:
        for row, scope in enumerate(factor_orbit.variables.tolist()):
            total += factor_orbit.messages.multi_layout.at([choice[v] for v in scope])
            total += sum(float(one[row, choice[v]]) for one, v in zip(factor_orbit.potentials, scope, strict=True))
    return total


@pytest.mark.parametrize("begun", [False, True])
def test_messages_keep_the_cost_of_every_choice(deep, begun):
    bounds, rng = Srmp(deep), np.random.default_rng(5)
    assert LIKE * len(bounds.orbits) <= len(deep.variables), "layers take their turns together"
    if begun:
        bounds.start(20, now() + 60, 1e-5)
        assert any(one.any() for factor_orbit in bounds.factor_orbits for one in factor_orbit.potentials)
    for _ in range(2):
        for _ in range(10):
            choice = [int(rng.integers(size)) for size in deep.sizes]
            assert stands(bounds, choice) == pytest.approx(deep.seconds(choice), rel=1e-9)
        bounds.sweep()


def test_a_sweep_tells_the_bound(deep):
    bounds = Srmp(deep)
    best = solve(deep)
    assert best.proven
    before = bounds.lower
    for _ in range(4):
        told = bounds.sweep()
        assert told == pytest.approx(bounds.lower, rel=1e-9)
        assert before * (1 - 1e-9) <= told <= best.value * (1 + 1e-9)
        before = told


def test_a_common_start_comes_as_far(deep):
    """And the choices of a best plan raise no bound above what the plan costs."""
    alone, begun, best = Srmp(deep), Srmp(deep), solve(deep)
    begun.start(60, now() + 60, 1e-6)
    far, common = (bounds.tighten(60, now() + 60, 1e-6) for bounds in (alone, begun))
    assert common == pytest.approx(far, rel=1e-3) and common <= best.value * (1 + 1e-9)
    for rises, chosen in zip(begun.reduced(), best.choice, strict=True):
        assert common + rises[chosen] <= best.value * (1 + 1e-9)


@pytest.mark.parametrize("sweeps", [0, 4])
def test_the_best_among_some_choices_is_the_best_of_all_their_assignments(sweeps):
    network, mesh = Deep(1), Mesh.parse("2x3")
    step = train_step(network, nn.SGD(network.trainable_params(), learning_rate=0.1), array(12, 96), array(12, 96))
    graph = FactorGraph(Problem(step.graph, mesh, HARDWARE), prices_for(HARDWARE), mesh_units_of(mesh, step.graph))
    srmp = Srmp(graph)
    srmp.tighten(sweeps, now() + 60, 0.0)
    best = solve(graph).choice
    rng = np.random.default_rng(5)
    for _ in range(4):
        keep = [np.array([one]) for one in best]
        for v in rng.choice([v for v, size in enumerate(graph.sizes) if size > 1], 9, replace=False).tolist():
            keep[v] = np.union1d(keep[v], rng.integers(graph.sizes[v], size=2))
        keep[int(rng.integers(len(keep)))] = np.arange(1)
        least = min(map(graph.seconds, itertools.product(*keep)))
        found = best_among(srmp, keep)
        assert (graph.seconds(found) if found else np.inf) == pytest.approx(least, rel=1e-9)
        # A look that is stopped, or keeps few rows, is no better, and what it finds is possible.
        for stopped, widths in ((True, (1 << 12,)), (False, (64,))):
            quick = best_among(srmp, keep, lambda stopped=stopped: stopped, widths)
            if quick is not None:
                assert all(one in some for one, some in zip(quick, keep, strict=True))
                assert graph.seconds(quick) >= least * (1 - 1e-9)


def test_the_best_among_some_choices_of_a_value_with_more_users_than_arrays_have_dims():
    def function(x, *weights):
        made = ops.relu(x)
        return tuple(ops.matmul(made, weight) for weight in weights)

    traced, mesh = trace(function, array(12, 6), *(array(6, 4 + i) for i in range(70))).graph, Mesh.parse("2x3")
    graph = FactorGraph(Problem(traced, mesh, HARDWARE), prices_for(HARDWARE), mesh_units_of(mesh, traced))
    srmp = Srmp(graph)
    srmp.tighten(2, now() + 60, 0.0)
    keep = [np.array([rises.argmin()]) for rises in srmp.reduced()]
    for variable in range(0, 60, 12):
        keep[variable] = np.union1d(keep[variable], np.arange(3) % graph.sizes[variable])
    found = best_among(srmp, keep)
    assert found is not None
    assert graph.seconds(found) == pytest.approx(min(map(graph.seconds, itertools.product(*keep))), rel=1e-9)


def test_users_beyond_those_that_count_cost_no_messages(monkeypatch):
    """What such a user asks of a value's price is the same for all its choices: the bound does without."""

    def function(x, *weights):
        made = ops.relu(x)
        return tuple(ops.relu(ops.matmul(made, weight)) for weight in weights)

    users, mesh = MOST + 4, Mesh.parse("4")
    traced = trace(function, array(12, 8), *(array(8, 16) for _ in range(users))).graph
    graph = FactorGraph(Problem(traced, mesh, HARDWARE), prices_for(HARDWARE), mesh_units_of(mesh, traced))
    srmp, asked, message = Srmp(graph), [], MinMarginals.message
    monkeypatch.setattr(
        MinMarginals, "message", lambda self, at, of: (asked.append((len(self.wants), at)), message(self, at, of))[1]
    )
    told = srmp.sweep()
    assert {at for wants, at in asked if wants == users} == {*range(MOST + 1), users}, "and the last one"
    rng = np.random.default_rng(5)
    assert 0.0 < told == pytest.approx(srmp.lower, rel=1e-9) and told <= solve(graph).value * (1 + 1e-9)
    for _ in range(10):
        choice = [int(rng.integers(size)) for size in graph.sizes]
        assert stands(srmp, choice) == pytest.approx(graph.seconds(choice), rel=1e-9)


def test_a_plan_is_found_by_descent_from_any_choice():
    network, mesh = Deep(1), Mesh.parse("2x3")
    step = train_step(network, nn.SGD(network.trainable_params(), learning_rate=0.1), array(12, 96), array(12, 96))
    graph = FactorGraph(Problem(step.graph, mesh, HARDWARE), prices_for(HARDWARE), mesh_units_of(mesh, step.graph))
    least, rng = solve(graph).value, np.random.default_rng(7)
    for _ in range(5):
        search = ExactSearch(graph, now() + 60)
        search._start()
        search._descend([rng.integers(size, size=1) for size in search.factor_graph.sizes])
        assert search.best is not None and search.value == pytest.approx(graph.seconds(search.best), rel=1e-12)
        assert least * (1 - 1e-9) <= search.value < 1.0
