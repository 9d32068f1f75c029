"""Mode "recursive_programming", and what MindSpore's `set_algo_parameters` says of it and of "dynamic_programming"."""

from __future__ import annotations

from typing import Any

import pytest

import autoshard as ash
from autoshard import Parameter, nn, ops
from autoshard.cost.prices import Prices
from autoshard.search.algo_parameters import SearchParameters, is_elementwise
from autoshard.search.domains import DomainBuilder, mesh_units_of
from autoshard.search.greedy.bfs import unpropagated
from autoshard.search.modes.dynamic_programming import Candidates
from autoshard.search.program_price import price_of
from autoshard.transform import train_step
from autoshard.util.errors import PlanError
from benchmarks.mindspore_nets import SHAPES, WIRINGS, nets, problem_of
from costmodel import preset
from tests.search import plans
from tests.search.plans import FFN, array, strategies

NAME = "recursive_programming"
BOTH = (NAME, "dynamic_programming")


def checked(*arguments: Any, **options: Any) -> Any:
    return plans.checked(*arguments, **{"search": NAME, **options})


def step(first: Any = None, sizes: tuple[int, ...] = (96, 192, 80)) -> Any:
    net, x, label = FFN(first, sizes=sizes), array(192, sizes[0]), array(192, sizes[2])
    return train_step(nn.WithLossCell(net, nn.MSELoss()), nn.Momentum(net.trainable_params(), 0.1, 0.9), x, label)


@pytest.mark.parametrize("mesh", ["8", "6", "dp=2 tp=4", "12", "a=3 b=2"])
def test_training_is_that_of_one_device(mesh: str) -> None:
    planned = checked(step(), (array(192, 96), array(192, 80)), mesh)
    products = [node for node in planned.graph.nodes if node.op.name == "MatMul"]
    assert all(planned.plan.strategy(node).work_split == planned.plan.mesh.devices for node in products)
    for new, old in planned.graph.tied.items():
        assert planned.plan.outputs[planned.graph.outputs.index(new)] is planned.plan.layouts[old]


def test_each_round_cuts_what_takes_least() -> None:
    """Rows where they are many, columns where these are, and sums where nothing else is left."""
    for rows, inside, columns, want in ((4096, 8, 8, (8, 1, 1)), (8, 8, 4096, (1, 1, 8)), (3, 4096, 5, (1, 8, 1))):
        planned = ash.plan(ops.matmul, (array(rows, inside), array(inside, columns)), "8", search=NAME, hardware="h100")
        parts = planned.plan.strategy(planned.graph.nodes[0]).parts
        assert parts in (want, (1, 1, 1)), "or nothing, where that takes less"
        if inside < 4096:
            assert parts == want


def test_configured_operators_are_kept() -> None:
    planned = checked(FFN(((2, 1), (1, 4)), ((1, 8), (8, 1))), (array(64, 64),))
    assert strategies(planned)["dense1.matmul"] == "((2, 1), (1, 4))"
    assert strategies(planned)["dense2.matmul"] == "((1, 8), (8, 1))"
    assert planned.plan.decisions[planned.graph.node("dense1.matmul")].cause.kind == "configured"


def test_asked_shardings_are_kept() -> None:
    weight = Parameter(array(24, 48), name="weight", sharding='[{"tp"}, {}]')

    def model(x: Any) -> Any:
        return ops.relu(ops.sharding_constraint(ops.matmul(x, weight), '[{"dp"}, {?}]'))

    traced = ash.trace(model, array(16, 24), in_shardings=('[{}, {"dp"}]',), out_shardings='[{"tp"}, {"dp"}]')
    planned = checked(traced, (array(16, 24),), "dp=2 tp=4")
    (constraint,) = (node for node in planned.graph.nodes if node.op.name == "ShardingConstraint")
    assert str(planned.plan.layouts[constraint.results[0]]).startswith("dp")
    assert str(planned.plan.outputs[0]) == "tp, dp"


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("wiring", WIRINGS)
def test_it_costs_no_more_than_nothing_propagated(wiring: str, shapes: str) -> None:
    rows, columns, _, _ = SHAPES[shapes]
    for told, net in nets(SHAPES[shapes], WIRINGS[wiring]):
        traced = ash.trace(net, array(rows, columns))
        problem = problem_of(traced, "8", "cpu")
        planned = ash.plan(traced, mesh="8", search=NAME)
        assert planned.cost.seconds <= price_of(problem, unpropagated(problem, NAME)) * (1 + 1e-9), told


def test_loops_are_planned() -> None:
    weight = Parameter(array(64, 64) / 8, name="weight")

    def model(x: Any) -> Any:
        return ops.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, ops.relu(ops.matmul(s[1], weight))), (0, x))[1]

    checked(model, (array(128, 64),))


# -- parameters of the algorithm


@pytest.mark.parametrize("search", BOTH)
def test_all_devices_or_none(search: str) -> None:
    """Rows divide by 4 alone, so that some operators are split 4 ways unless all devices have to be used."""
    x, splits = array(1004, 5), []
    for options in ({}, {"fully_use_devices": True}):
        planned = checked(lambda x: ops.softmax(ops.tanh(x)), (x,), search=search, options=options)
        splits.append({planned.plan.strategy(node).work_split for node in planned.graph.nodes})
    assert splits[0] == {4} and splits[1] <= {1, 8}


@pytest.mark.parametrize("search", BOTH)
def test_elementwise_operators_follow_each_other(search: str) -> None:
    product = ops.MatMul().shard(((8, 1), (1, 1)))
    last = ops.MatMul().shard(((1, 8), (8, 1)))
    first, second = Parameter(array(64, 64) / 8, name="first"), Parameter(array(64, 64) / 8, name="second")

    def model(x: Any, y: Any) -> Any:
        return last(ops.relu(ops.tanh(product(x, first)) + ops.sigmoid(y)), second)

    planned = checked(
        model, (array(64, 64), array(64, 64, seed=1)), search=search, options={"elementwise_op_strategy_follow": True}
    )
    like = [node for node in planned.graph.nodes if is_elementwise(node)]
    assert [node.op.name for node in like] == ["Tanh", "Sigmoid", "Add", "ReLU"]
    assert len({planned.plan.strategy(node).result_layouts[0] for node in like}) == 1


@pytest.mark.parametrize("search", BOTH)
def test_blocks_of_products_are_aligned(search: str) -> None:
    options = {"tensor_slice_align_enable": True, "tensor_slice_align_size": 32}
    for size in (64, 128):
        planned = checked(FFN(sizes=(size, size, size)), (array(size, size),), search=search, options=options)
        for node in planned.graph.nodes:
            strategy = planned.plan.strategy(node)
            if node.op.name == "MatMul":
                parts = [
                    one for layout in (*strategy.operand_layouts, *strategy.result_layouts) for one in layout.parts
                ]
                assert all(one == 1 or size // one % 32 == 0 for one in parts)
                assert strategy.work_split > 1


def test_an_approximation_looks_at_fewer_strategies() -> None:
    exact = checked(FFN(sizes=(64, 128, 32)), (array(64, 64),), search=BOTH[1])
    for epsilon in (0.5, 0.1):
        options = {"enable_algo_approxi": True, "algo_approxi_epsilon": epsilon}
        fewer = checked(FFN(sizes=(64, 128, 32)), (array(64, 64),), search=BOTH[1], options=options)
        assert fewer.cost.seconds >= exact.cost.seconds * (1 - 1e-9)
    few = Candidates(SearchParameters(enable_algo_approxi=True, algo_approxi_epsilon=0.5), exact_prices())
    units = mesh_units_of(exact.plan.mesh, exact.graph)
    for node in exact.graph.nodes:
        menu = DomainBuilder(units).menu(node, (frozenset(),) * len(node.operands))
        assert len(set(few(node, menu))) == 2 < len(menu)


def exact_prices() -> Prices:
    return Prices(preset("cpu").for_ranks(8))


@pytest.mark.parametrize(
    "options",
    [
        {"fully_use_devices": 1},
        {"algo_approxi_epsilon": 0},
        {"tensor_slice_align_size": 2000},
        {"enable_algo_approxi": ""},
    ],
    ids=str,
)
def test_values_that_a_parameter_cannot_have(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(PlanError, match=f"{name} is .*; it is"):
        ash.plan(FFN(), (array(64, 64),), "8", search=BOTH[1], options=options)
    with pytest.raises(PlanError, match="has no option"):
        ash.plan(FFN(), (array(64, 64),), "8", search="bfs", options=options)
