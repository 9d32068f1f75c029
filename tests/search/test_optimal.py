"""Mode "optimal": its tables say what the evaluator says, and its choice is the best of all choices."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autoshard as ash
from autoshard import nn, ops
from autoshard.cost.prices import prices_for
from autoshard.layout.mesh import Mesh
from autoshard.search import Problem, evaluate_plan, find_mode
from autoshard.search.domains import mesh_units_of
from autoshard.search.exact.over_mesh_cuts import plan_of_assignment
from autoshard.search.exact.search import Solution, solve
from autoshard.search.exact.srmp import Srmp
from autoshard.search.factor_graph import FactorGraph
from autoshard.search.multi_layout import MultiLayoutCost
from autoshard.trace.function import trace
from autoshard.transform import train_step
from costmodel import preset
from tests.search.plans import FFN, array, checked

HARDWARE = preset("h100")


def factor_graph(graph, mesh: str, **options) -> FactorGraph:
    on = Mesh.parse(mesh)
    return FactorGraph(Problem(graph, on, HARDWARE, **options), prices_for(HARDWARE), mesh_units_of(on, graph))


@st.composite
def functions(draw, most: int = 4):
    """A function of two matrices out of a few operators, some values used several times."""
    kinds = draw(st.lists(st.sampled_from(["matmul", "add", "relu", "softmax", "square"]), min_size=1, max_size=most))
    picks = draw(st.lists(st.integers(0, 9), min_size=2 * most, max_size=2 * most))

    def function(x, w):
        values = [x]
        for i, kind in enumerate(kinds):
            one, other = values[picks[2 * i] % len(values)], values[picks[2 * i + 1] % len(values)]
            make = {
                "matmul": lambda one=one: ops.matmul(one, w),
                "add": lambda one=one, other=other: ops.add(one, other),
                "relu": lambda one=one: ops.relu(one),
                "softmax": lambda one=one: ops.softmax(one),
                "square": lambda one=one: ops.mul(one, one),
            }
            values.append(make[kind]())
        return values[-1], values[len(values) // 2]

    return function


def traced(function, rows: int = 96, columns: int = 48):
    return trace(function, array(rows, columns), array(columns, columns)).graph


MESHES = ("2", "4", "2x2", "3x2", "2x4")


@settings(max_examples=40)
@given(functions(), st.sampled_from(MESHES), st.integers(0, 1000))
def test_tables_say_what_the_evaluator_says(function, mesh, seed):
    found = factor_graph(traced(function), mesh)
    rng = np.random.default_rng(seed)
    for _ in range(5):
        choice = tuple(int(rng.integers(size)) for size in found.sizes)
        value = found.seconds(choice)
        plan = plan_of_assignment(found, Solution(choice, value, 0.0))
        assert evaluate_plan(plan, HARDWARE).seconds == pytest.approx(value, rel=1e-9)
        dense = sum(cost[tuple(choice[v] for v in scope)] for scope, cost in dense_factors(found))
        assert dense == pytest.approx(value, rel=1e-9)


def dense_factors(found: FactorGraph) -> list[tuple[tuple[int, ...], np.ndarray]]:
    """All costs as arrays over the choices of their variables."""
    unary = [((i,), costs) for i, costs in enumerate(found.unary) if len(costs)]
    return unary + [(factor.scope, factor.multi_layout.dense) for factor in found.factors]


def least(found: FactorGraph) -> float:
    """The least sum over all choices, one array over all of them."""
    total = np.zeros(found.sizes)
    for scope, cost in dense_factors(found):
        order = np.argsort(scope)
        shape = [1] * len(found.sizes)
        for axis in scope:
            shape[axis] = found.sizes[axis]
        total = total + cost.transpose(order).reshape(shape)
    return float(total.min())


@settings(max_examples=60)
@given(functions(3), st.sampled_from(MESHES))
def test_nothing_is_cheaper(function, mesh):
    found = factor_graph(traced(function), mesh)
    if np.prod([float(size) for size in found.sizes]) > 3e6:
        return
    settled, best = solve(found), least(found)
    assert settled.proven and settled.value == pytest.approx(best, rel=1e-9)
    assert settled.bound <= best * (1 + 1e-9)


@settings(max_examples=30)
@given(functions(3), st.sampled_from(MESHES), st.integers(1, 4))
def test_bounds_hold_for_each_choice(function, mesh, sweeps):
    """Whatever the messages are, no choice is said to cost more than the best plan that makes it."""
    found = factor_graph(traced(function), mesh)
    if np.prod([float(size) for size in found.sizes]) > 1e5:
        return
    bounds = Srmp(found)
    for _ in range(sweeps):
        bounds.sweep()
    lower, reduced = bounds.lower, bounds.reduced()
    cost = {choice: found.seconds(choice) for choice in itertools.product(*map(range, found.sizes))}
    for variable, rises in enumerate(reduced):
        for one, rise in enumerate(rises):
            best = min(value for choice, value in cost.items() if choice[variable] == one)
            assert lower + rise <= best * (1 + 1e-9)


class Squared(nn.Cell):
    """The mean square of a feed-forward network's error."""

    def __init__(self) -> None:
        super().__init__()
        self.network = FFN(sizes=(64, 96, 32))

    def construct(self, x, y):
        error = ops.sub(self.network(x), y)
        return ops.reduce_mean(ops.mul(error, error))


@pytest.mark.parametrize("mesh", ["4", "2x4"])
def test_training_step_is_proven_and_runs(mesh):
    network, data = Squared(), (array(128, 64), array(128, 32))
    step = train_step(network, nn.SGD(network.trainable_params(), learning_rate=0.1), *data)
    planned = checked(step, data, mesh=mesh, search="optimal", hardware="h100")
    stats = planned.plan.search_stats
    # The least sum is proven; the program pays besides for what gradients share of latency.
    assert stats["bound"] == pytest.approx(min(stats["sum"], stats["seconds"]), rel=1e-9)
    assert planned.cost.seconds == stats["seconds"] <= 1.5 * stats["bound"]


@pytest.mark.parametrize("mesh", ["8", "2x4"])
@pytest.mark.parametrize("other", ["sharding_propagation", "bfs", "factor", "batch", "dynamic_programming"])
def test_no_mode_is_cheaper(mesh, other):
    target = FFN(((2, 1), (1, 4)), sizes=(64, 96, 32))
    x = array(128, 64)
    best, plan = (ash.plan(target, (x,), mesh, search=mode, hardware="h100").plan for mode in ("optimal", other))
    assert evaluate_plan(best, HARDWARE).seconds <= evaluate_plan(plan, HARDWARE).seconds * (1 + 1e-9)


class Wide(nn.Cell):
    """A layer of a wide transformer between an embedding and a loss over a vocabulary, without annotations."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32000, 4096)
        self.layer = nn.TransformerBlock(4096, 16, 16384, causal=True)
        self.head = nn.Dense(4096, 32000, has_bias=False)
        self.loss = nn.TokenLoss()

    def construct(self, ids, labels):
        return self.loss(self.head(self.layer(self.embed(ids))), labels)


@pytest.fixture(scope="module")
def wide():
    """Few tokens and wide matrices, whose gradients would take longer to sum than activations, on a fast axis."""
    tokens = np.zeros((1, 256), np.int32)
    network = Wide()
    step = train_step(network, nn.SGD(network.trainable_params(), learning_rate=0.1), tokens, tokens)
    return ash.plan(step, (), "tp=8", search="optimal", hardware="h100").plan


def of_weight(plan, label: str) -> str:
    """The layout in which a product wants its matrix [outputs, inputs]."""
    return str(plan.strategy(plan.graph.node(label)).operand_layouts[1])


def test_finds_megatron(wide):
    """Columns, then rows, so that each half of the layer sums its result once; heads and vocabulary are split."""
    # The bound is below by the latency that collectives might share: of 10 us over NVLink, 2 % of this step.
    assert wide.search_stats["gap"] < 0.025
    for name in ("attention.query", "attention.key", "attention.value", "feed_forward.mapping"):
        assert of_weight(wide, f"layer.{name}.matmul") == "tp, -"
    for name in ("attention.output", "feed_forward.projection"):
        assert of_weight(wide, f"layer.{name}.matmul") == "-, tp"
    assert of_weight(wide, "head.matmul") == "tp, -"
    attention = wide.strategy(wide.graph.node("layer.attention.context"))
    assert [str(one) for one in attention.result_layouts] == ["-, tp, -, -"]
    # The product itself, or with its bias or the residual added on one rank.
    summed = [
        one.value.name.rpartition(".")[0]
        for one in wide.redistributions
        if one.before.partial and one.value.name.startswith("layer.") and not one.after.partial
    ]
    last = {"layer.feed_forward.projection", "layer"}
    assert len(summed) == 2 and "layer.attention.output" in summed and last.intersection(summed)
    for value, into in wide.graph.tied.items():
        assert wide.layouts[value] is wide.layouts[into] or into.type.rank < 2


def test_loops_count_as_often_as_they_run():
    def function(x, w):
        def body(carried):
            return carried[0] + 1, ops.tanh(ops.matmul(carried[1], w))

        return ops.while_loop(lambda carried: carried[0] < 5, body, (np.int32(0), x))[1]

    planned = checked(function, (array(64, 32), 0.1 * array(32, 32)), "2x4", search="optimal", hardware="h100")
    stats = planned.plan.search_stats
    assert stats["proven"] == 1
    assert evaluate_plan(planned.plan, planned.hardware).seconds == pytest.approx(stats["seconds"], rel=1e-9)


def test_alternatives_are_no_better():
    planned = ash.plan(FFN(sizes=(64, 96, 32)), (array(128, 64),), "2x4", search="optimal", hardware="h100")
    for decision in planned.plan.decisions.values():
        paid = decision.chosen.edge_seconds + decision.chosen.work_seconds
        for other in decision.alternatives:
            assert paid <= (other.edge_seconds + other.work_seconds) * (1 + 1e-9)


def test_time_limit_must_be_positive():
    problem = Problem(traced(lambda x, w: ops.matmul(x, w)), Mesh.parse("2"), HARDWARE, options={"time_limit": "soon"})
    with pytest.raises(ash.errors.PlanError, match="time_limit is 'soon'; give seconds above 0"):
        find_mode("optimal")(problem)


@pytest.mark.parametrize("settled", [0, 2, 5])
def test_users_with_one_choice_cost_what_they_cost_unfolded(settled):
    rng = np.random.default_rng(settled)
    seconds = rng.random((3, 6))
    sizes = [1 if i < settled else 2 + i % 3 for i in range(5)]
    wants = [rng.integers(0, 6, (size, 1 + i % 2)) for i, size in enumerate(sizes)]
    whole = MultiLayoutCost.of(seconds, np.array([0, 1, 2, 1]), [np.array([5, 5, 0, 3])], wants)
    assert whole.folded().dense.shape == tuple(size for i, size in enumerate((4, *sizes)) if not i or size > 1)
    np.testing.assert_allclose(whole.folded().dense.reshape(-1), whole.dense.reshape(-1), rtol=1e-12)
