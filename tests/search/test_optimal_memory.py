"""Mode "optimal" under a memory limit: the limit is kept to the byte, and one byte less than the least is refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import autoshard as ash
from autoshard import Parameter, nn, ops
from autoshard.cost.memory import peak_memory
from autoshard.cost.prices import prices_for
from autoshard.layout.mesh import Mesh
from autoshard.search import Problem, evaluate_plan, find_mode
from autoshard.search.domains import mesh_units_of
from autoshard.search.exact.memory.within_limit import solve_within_limit
from autoshard.search.exact.over_mesh_cuts import plan_of_assignment
from autoshard.search.exact.search import Solution, solve
from autoshard.search.factor_graph import FactorGraph
from autoshard.trace.function import trace
from autoshard.transform import train_step
from autoshard.util.errors import MemoryLimitError
from costmodel import preset
from tests.search.plans import array

HARDWARE = preset("h100")


class Product(nn.Cell):
    """Two products; with wide matrices whose states are best left whole unless memory is short."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.first = Parameter(array(rows, columns), name="first")
        self.second = Parameter(array(columns, rows), name="second")

    def construct(self, x):
        y = ops.relu(ops.matmul(x, self.first))
        return ops.reduce_mean(ops.mul(ops.matmul(y, self.second), 2.0))


def forward(mesh: str) -> FactorGraph:
    graph = trace(Product(96, 48), array(32, 96)).graph
    on = Mesh.parse(mesh)
    return FactorGraph(Problem(graph, on, HARDWARE), prices_for(HARDWARE), mesh_units_of(on, graph))


@pytest.mark.parametrize("mesh", ["dp=2", "dp=4"])
def test_no_known_plan_within_the_limit_is_cheaper(mesh):
    factor_graph = forward(mesh)
    free = [i for i, size in enumerate(factor_graph.sizes) if size > 1]
    assert np.prod([float(factor_graph.sizes[i]) for i in free]) < 5e4
    known = []
    rng = np.random.default_rng(1)
    every = list(itertools.product(*(range(size) for size in factor_graph.sizes)))
    cheap = sorted(every, key=factor_graph.seconds)[:60]
    for choice in cheap + [every[i] for i in rng.integers(len(every), size=200)]:
        plan = plan_of_assignment(factor_graph, Solution(choice, 1.0, 0.0))
        known.append((peak_memory(plan), factor_graph.seconds(choice)))
    for limit in sorted({peak for peak, _ in known})[:: max(1, len(known) // 40)]:
        best = solve_within_limit(factor_graph, limit, 30.0)
        plan = plan_of_assignment(factor_graph, best)
        assert best.proven and peak_memory(plan) <= limit
        assert best.value <= min(value for peak, value in known if peak <= limit) * (1 + 1e-9)
        assert evaluate_plan(plan, HARDWARE).seconds == pytest.approx(best.value, rel=1e-9)
    assert solve_within_limit(factor_graph, max(peak for peak, _ in known), 30.0).value >= solve(factor_graph).value * (
        1 - 1e-9
    )


def test_one_byte_below_the_least_is_refused():
    factor_graph = forward("dp=4")
    with pytest.raises(MemoryLimitError, match="the least that is possible is") as refused:
        solve_within_limit(factor_graph, 1, 30.0)
    least = refused.value.needed
    assert peak_memory(plan_of_assignment(factor_graph, solve_within_limit(factor_graph, least, 30.0))) == least
    with pytest.raises(MemoryLimitError, match="found no plan"):
        solve_within_limit(factor_graph, least - 1, 30.0)


def test_states_are_split_when_memory_is_short():
    """With room, the matrices' update stays whole on each rank (summing gradients is all); without, it is split."""
    x = array(32, 96)
    network = Product(96, 48)
    step = train_step(network, nn.Momentum(network.trainable_params(), learning_rate=0.1, momentum=0.9), x)
    problem = Problem(step.graph, Mesh(dp=2), HARDWARE)
    roomy = find_mode("optimal")(problem)
    states = [value for value, role in zip(step.graph.inputs, step.graph.roles, strict=True) if role == "state"]
    limit = int(0.75 * peak_memory(roomy))
    tight = ash.search.find_mode("optimal")(Problem(step.graph, Mesh(dp=2), HARDWARE, options={"memory": limit}))
    assert peak_memory(roomy) > limit >= peak_memory(tight)

    def potential(plan) -> int:
        return sum(int(np.prod(plan.layouts[one].local_shape(one.type.shape))) for one in states)

    assert potential(tight) < sum(one.type.elements for one in states)
    assert potential(tight) <= potential(roomy)
