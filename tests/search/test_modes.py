"""Search modes against each other: the default is never worse than its parts, eliminations are exact on trees, auto
picks the best of its table, and causes tell the truth."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import autoshard as ash
from autoshard import Parameter, nn, ops
from autoshard.core.enumerate import enumerate_strategies
from autoshard.cost.evaluate import plan_seconds
from autoshard.layout.mesh import Mesh
from autoshard.plan.plan import CONFIGURED, IMPROVED, PRICED, PROPAGATED
from autoshard.search import Problem, find_mode, search_mode, search_modes
from autoshard.search.assignment import Assignment, Pricing
from autoshard.search.causes import plan_of
from autoshard.search.greedy.choose import chooser
from autoshard.search.local.local_cost import LocalCost
from autoshard.search.modes.auto import shapes
from autoshard.search.modes.dynamic_programming import CostGraph
from autoshard.search.registry import _MODES, _OPTIONS
from autoshard.trace import trace
from autoshard.transform import train_step
from autoshard.util.errors import PlanError
from benchmarks.targets import PYTHON_TARGETS
from costmodel import preset
from tests.search.plans import FFN, array, assert_runs_as_whole, checked, kind_of_cause, strategies

SMALL = [
    "mlp, columns",
    "mlp, columns, flat",
    "mlp, conflict inside",
    "mlp step, rows",
    "mlp step, large weights",
    "weights asked by rows",
    "constraints disagree",
    "tied weights",
    "lookup and loss",
]


def seconds(planned: ash.Planned) -> float:
    return plan_seconds(planned.plan, chooser(planned.plan.mesh, planned.hardware).prices)


@pytest.mark.parametrize("name", SMALL)
def test_never_worse_than_rules_or_propagation_alone(name):
    target = PYTHON_TARGETS[name]
    traced = target.build()

    def cost(mode: str) -> float:
        return seconds(ash.plan(traced, mesh=target.mesh, search=mode, hardware="h100"))

    ours = cost("sharding_propagation")
    assert ours <= min(cost("factor"), cost("bfs")) * (1 + 1e-9)


def test_better_than_both_on_some():
    target = PYTHON_TARGETS["mlp step, large weights"]
    traced = target.build()
    costs = {
        mode: seconds(ash.plan(traced, mesh=target.mesh, search=mode, hardware="h100"))
        for mode in ("factor", "bfs", "sharding_propagation")
    }
    assert costs["sharding_propagation"] < 0.9 * min(costs["factor"], costs["bfs"])


class Step(nn.Cell):
    """A product whose loss is a mean; sizes are unequal."""

    def __init__(self, strategy=None) -> None:
        super().__init__()
        self.ffn, self.loss = FFN(strategy, sizes=(16, 48, 8)), nn.MSELoss()

    def construct(self, x, y):
        return self.loss(self.ffn(x), y)


@pytest.mark.parametrize(
    "mode, mesh",
    [
        ("sharding_propagation", "8"),
        ("sharding_propagation", "12"),
        ("sharding_propagation", "a=2 b=2 c=2"),
        ("dynamic_programming", "dp=2 tp=4"),
    ],
)
def test_plans_run_as_the_model_runs_whole(mode, mesh):
    first = ((2, 1), (1, 2))
    checked(FFN(first, sizes=(12, 24, 8)), (array(24, 12),), mesh, search=mode)
    network = Step(first)
    step = train_step(network, nn.Momentum(network.trainable_params(), 0.1, 0.9), array(24, 16), array(24, 8))
    checked(step, (array(24, 16), array(24, 8)), mesh, search=mode)


def test_asked_shardings_are_kept():
    weight = Parameter(array(24, 48), name="weight", sharding='[{"tp"}, {}]')

    def model(x):
        return ops.relu(ops.sharding_constraint(ops.matmul(x, weight), '[{"dp"}, {?}]'))

    traced = trace(model, array(16, 24), in_shardings=('[{}, {"dp"}]',), out_shardings='[{"tp"}, {"dp"}]')
    for mode in ("bfs", "sharding_propagation", "dynamic_programming"):
        planned = ash.plan(traced, mesh="dp=2 tp=4", search=mode)
        assert_runs_as_whole(planned, (array(16, 24),))
        layouts = {value.name: str(layout) for value, layout in planned.plan.layouts.items()}
        assert (layouts["x"], layouts["weight"]) == ("-, dp", "tp, -"), mode
        (constraint,) = (node for node in planned.graph.nodes if node.op.name == "ShardingConstraint")
        assert layouts[constraint.results[0].name].startswith("dp"), mode
        assert str(planned.plan.outputs[0]) == "tp, dp", mode


# -- causes ----------------------------------------------------------------------------------------------------


def test_causes_tell_rules_from_prices():
    planned = checked(FFN(((2, 1), (1, 4)), sizes=(96, 192, 64)), (array(192, 96),))
    assert kind_of_cause(planned, "dense1.matmul") == CONFIGURED
    for name in ("dense1.add", "relu", "dense2.matmul"):
        assert kind_of_cause(planned, name) == PROPAGATED, name
    assert str(planned.plan.decisions[planned.graph.node("dense1.add")].cause) == "propagated from dense1.matmul"
    decision = planned.plan.decisions[planned.graph.node("dense2.add")]
    assert decision.cause.kind == PRICED
    assert decision.cause.instead.startswith(f"{decision.alternatives[0].strategy}, which costs ")
    assert "3 follow by rule, 1 priced, 0 improved" in planned.plan.started_from
    assert f"instead of {decision.cause.instead}" in str(decision.cause)


def test_what_a_decision_was_chosen_over_costs_what_is_said():
    target = PYTHON_TARGETS["lookup and loss"]
    planned = ash.plan(target.build(), mesh=target.mesh, hardware="h100")
    plan, prices = planned.plan, chooser(planned.plan.mesh, planned.hardware).prices
    kinds = {decision.cause.kind for decision in plan.decisions.values()}
    assert {PROPAGATED, PRICED, IMPROVED} & kinds
    whole = plan_seconds(plan, prices)
    tried = 0
    for node, decision in plan.decisions.items():
        for other in decision.alternatives:
            now = decision.chosen.edge_seconds + decision.chosen.work_seconds
            then = other.edge_seconds + other.work_seconds
            assert then >= now - 1e-9 * whole, f"{node.label}: {other.strategy} would be better"
            tried += 1
    assert tried


# -- drafts ----------------------------------------------------------------------------------------------------


def problem_of(traced, mesh, hardware: str = "h100") -> Problem:
    over, traced = Mesh.parse(mesh), getattr(traced, "traced", traced)
    return Problem(traced.graph, over, preset(hardware).for_ranks(over.devices), traced.annotations)


@pytest.mark.parametrize("name", ["mlp step", "tied weights", "mlp step, three axes"])
def test_a_draft_costs_what_the_evaluator_says(name):
    target = PYTHON_TARGETS[name]
    problem = problem_of(target.build(), target.mesh)
    prices = chooser(problem.mesh, problem.hardware).prices
    pricing, rng = Pricing(problem, prices), np.random.default_rng(0)
    assignment = Assignment(pricing, {node: find_mode("bfs")(problem).strategy(node) for node in problem.graph.nodes})
    for _ in range(40):
        node = problem.graph.nodes[rng.integers(len(problem.graph.nodes))]
        if node in problem.configured:
            continue
        listed = enumerate_strategies(node.rule, problem.mesh)
        choice = pricing.choice(node, listed[rng.integers(len(listed))])
        before, local_cost = assignment.seconds, LocalCost(assignment, node)
        gain = local_cost.price(choice) - local_cost.price(assignment.chosen[node])
        assignment.change(node, choice)
        assert assignment.seconds == pytest.approx(before + gain, rel=1e-9)
    plan = plan_of(problem, assignment, lambda node: find_mode("bfs")(problem).decisions[node].cause, "", "drawn")
    assert plan_seconds(plan, prices) == pytest.approx(assignment.seconds, rel=1e-9)


# -- dynamic programming ---------------------------------------------------------------------------------------


def drawn_tree(rng: np.random.Generator, count: int) -> tuple[CostGraph, list[int], dict, list[np.ndarray]]:
    sizes = rng.integers(1, 5, count).tolist()
    costs = [rng.integers(0, 20, size).astype(float) for size in sizes]
    graph, edges = CostGraph(costs), {}
    for vertex in range(1, count):
        other = int(rng.integers(0, vertex))
        ends = (other, vertex) if rng.random() < 0.5 else (vertex, other)
        edges[ends] = rng.integers(0, 20, (sizes[ends[0]], sizes[ends[1]])).astype(float)
        graph.add_edge(*ends, edges[ends])
    return graph, sizes, edges, costs


def total(choice, costs, edges) -> float:
    own = sum(costs[i][one] for i, one in enumerate(choice))
    return own + sum(table[choice[a], choice[b]] for (a, b), table in edges.items())


@pytest.mark.parametrize("seed", range(60))
def test_eliminations_are_exact_without_stars(seed):
    rng = np.random.default_rng(seed)
    graph, sizes, edges, costs = drawn_tree(rng, int(rng.integers(1, 7)))
    if seed % 2 and len(sizes) > 2:
        # Parallel edges and triangles: still series and parallel.
        ends = (0, 1)
        extra = rng.integers(0, 20, (sizes[0], sizes[1])).astype(float)
        graph.add_edge(*ends, extra)
        edges[ends] = edges.get(ends, 0) + extra
    found = graph.solve()
    best = min(total(choice, costs, edges) for choice in itertools.product(*map(range, sizes)))
    assert total(found, costs, edges) == best or "star" in graph.counts
    if seed % 2 == 0:
        assert "star" not in graph.counts


def test_stars_decide_and_let_others_know():
    rng = np.random.default_rng(3)
    costs = [rng.random(3) for _ in range(5)]
    graph, edges = CostGraph(costs), {}
    for ends in itertools.combinations(range(5), 2):
        edges[ends] = rng.random((3, 3))
        graph.add_edge(*ends, edges[ends])
    found = graph.solve()
    assert graph.counts["star"] >= 1
    every = sorted(total(choice, costs, edges) for choice in itertools.product(range(3), repeat=5))
    assert total(found, costs, edges) <= every[len(every) // 20]


def test_dynamic_programming_is_exhaustive_search_on_a_chain():
    """Each value has one user, so no copy is shared, and the sum over edges is what the plan costs."""
    first, second = ops.ReLU(), ops.MatMul()
    weight = Parameter(array(12, 8), name="weight")
    traced = trace(lambda x: ops.exp(second(ops.transpose(first(x)), weight)), array(12, 16))
    problem = problem_of(traced, "dp=2 tp=2")
    prices = chooser(problem.mesh, problem.hardware).prices
    plan = find_mode("dynamic_programming")(problem)
    nodes, pricing = problem.graph.nodes, Pricing(problem, prices)
    every = [
        Assignment(pricing, dict(zip(nodes, strategies, strict=True))).seconds
        for strategies in itertools.product(*(enumerate_strategies(node.rule, problem.mesh) for node in nodes))
    ]
    assert len(every) > 1000
    assert plan_seconds(plan, prices) <= min(every) * (1 + 1e-9)
    assert "each exact" in plan.started_from


# -- auto ------------------------------------------------------------------------------------------------------


def test_shapes_are_all_factorizations():
    assert [str(mesh) for mesh in shapes(8)] == ["d=8", "a=2 b=4", "a=4 b=2", "a=2 b=2 c=2"]
    assert [str(mesh) for mesh in shapes(12, 2)] == ["d=12", "a=2 b=6", "a=3 b=4", "a=4 b=3", "a=6 b=2"]
    assert [str(mesh) for mesh in shapes(7)] == ["d=7"]


@pytest.mark.parametrize("options", [{}, {"mode": "bfs", "axes": 2}])
def test_auto_takes_the_best_of_its_table(options):
    network = FFN(((2, 1), (1, 4)), sizes=(16, 64, 8))
    x = array(48, 16)
    planned = ash.plan(network, (x,), devices=8, search="auto", options=options)
    compared = planned.plan.compared
    assert len(compared) == (3 if options else 4)
    best = min(compared, key=compared.__getitem__)
    assert str(planned.plan.mesh) == best and planned.plan.search == "auto"
    assert seconds(planned) == compared[best] == min(compared.values())
    mode = options.get("mode", "sharding_propagation")
    again = ash.plan(network, (x,), mesh=best, search=mode)
    assert strategies(again) == strategies(planned)
    assert planned.plan.started_from.startswith(f"{mode} on the mesh {best}, of these: ")
    assert_runs_as_whole(planned, (x,))


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: {"mesh": "dp=2 tp=4"}, "auto chooses the mesh, but 'dp=2 tp=4' is given for 'ffn'"),
        (lambda: {"devices": 8, "options": {"mode": "auto"}}, "its option mode is 'auto' itself"),
        (lambda: {"devices": 8, "options": {"axes": 0}}, "its option axes is 0; give how many axes"),
        (lambda: {"devices": 8, "options": {"depth": 3}}, "'auto' has no option 'depth'; it has mode, axes"),
    ],
)
def test_auto_says_what_it_cannot(build, message):
    with pytest.raises(PlanError, match=message):
        ash.plan(FFN(sizes=(16, 64, 8)), (array(48, 16),), search="auto", **build())


def test_auto_refuses_shardings_on_axes():
    traced = trace(lambda rows: ops.relu(rows), array(48, 16), in_shardings=('[{"d"}, {}]',))
    with pytest.raises(PlanError, match=r"auto chooses the mesh, but shardings name its axes \(rows of "):
        ash.plan(traced, mesh="8", search="auto")


# -- one's own -------------------------------------------------------------------------------------------------


def test_a_mode_of_ones_own_from_strategies_alone():
    """A mode needs no more than strategies: `plan_of` does the rest."""

    @search_mode("idle", options=("why",))
    def idle(problem: Problem):
        prices = chooser(problem.mesh, problem.hardware).prices
        batch = find_mode("batch")(problem)
        assignment = Assignment(Pricing(problem, prices), {node: batch.strategy(node) for node in problem.graph.nodes})
        return plan_of(problem, assignment, lambda node: batch.decisions[node].cause, problem.options["why"], "idle")

    try:
        x = array(24, 12)
        planned = ash.plan(FFN(sizes=(12, 24, 8)), (x,), devices=4, search="idle", options={"why": "because"})
        assert (planned.plan.search, planned.plan.started_from) == ("idle", "because")
        assert "idle" in search_modes()
        assert_runs_as_whole(planned, (x,))
    finally:
        del _MODES["idle"], _OPTIONS["idle"]
