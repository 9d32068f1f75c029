"""Mode "bfs" never costs more than nothing propagated at all: what is configured split, all else on every rank."""

from __future__ import annotations

import pytest

import autoshard as ash
from autoshard import Parameter, nn, ops
from autoshard.search.greedy.bfs import unpropagated
from autoshard.search.program_price import price_of
from autoshard.transform import train_step
from benchmarks.mindspore_nets import SHAPES, WIRINGS, nets, problem_of
from tests.search.plans import FFN, array, checked, kinds, strategies


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("wiring", WIRINGS)
def test_propagation_costs_no_more_than_none(wiring: str, shapes: str) -> None:
    rows, columns, _, _ = SHAPES[shapes]
    for told, net in nets(SHAPES[shapes], WIRINGS[wiring]):
        traced = ash.trace(net, array(rows, columns))
        problem = problem_of(traced, "8", "cpu")
        planned = ash.plan(traced, mesh="8", search="bfs")
        assert planned.cost.seconds <= price_of(problem, unpropagated(problem, "bfs")) * (1 + 1e-9), told


@pytest.mark.parametrize("sizes", [(16, 24, 32), (96, 192, 80)])
def test_small_steps_are_not_split_where_that_costs_more(sizes: tuple[int, int, int]) -> None:
    x, label = array(2 * sizes[0], sizes[0]), array(2 * sizes[0], sizes[2])
    net = FFN(((2, 1), (1, 4)), sizes=sizes)
    step = train_step(nn.WithLossCell(net, nn.MSELoss()), nn.Momentum(net.trainable_params(), 0.1, 0.9), x, label)
    planned = checked(step, (x, label), search="bfs")
    problem = problem_of(step.traced, "8", "cpu")
    none = unpropagated(problem, "bfs")
    assert planned.cost.seconds <= price_of(problem, none) * (1 + 1e-9)
    same = all(planned.plan.strategy(node) == none.strategy(node) for node in planned.graph.nodes)
    assert same == planned.plan.started_from.startswith("nothing propagated") == (sizes[0] == 16)
    assert none.started_from == "nothing propagated: to follow the configured operators costs more"
    free = problem_of(ash.trace(nn.ReLU(), x), "8", "cpu")
    assert "no operator is configured" in unpropagated(free, "bfs").started_from


@pytest.mark.parametrize("sizes", [(64, 64, 64), (512, 2048, 512), (40, 24, 56)])
def test_a_split_of_some_rows_leads_to_no_communication(sizes: tuple[int, int, int]) -> None:
    planned = ash.plan(FFN(((2, 1), (1, 1)), sizes=sizes), (array(32, sizes[0]),), "8", search="bfs")
    assert kinds(planned) == []


def test_partial_sums_are_completed_before_a_product_that_widens_them() -> None:
    """Behind it sixteen times as many bytes would be summed."""
    product, narrow, wide = (
        ops.MatMul().shard(((1, 8), (8, 1))),
        Parameter(array(64, 64) / 8),
        Parameter(array(64, 1024) / 8),
    )
    planned = checked(lambda x: ops.tanh(ops.matmul(product(x, narrow), wide)), (array(128, 64),), search="bfs")
    assert "carrying" not in strategies(planned)["matmul_1"]
    assert planned.cost.bytes_per_device <= 2 * 7 / 8 * 128 * 64 * 4


def test_partial_sums_are_passed_on_by_a_product_that_narrows_them() -> None:
    product, wide, narrow = (
        ops.MatMul().shard(((1, 8), (8, 1))),
        Parameter(array(64, 1024) / 8),
        Parameter(array(1024, 16) / 32),
    )
    planned = checked(lambda x: ops.tanh(ops.matmul(product(x, wide), narrow)), (array(128, 64),), search="bfs")
    assert planned.cost.bytes_per_device < 7 / 8 * 128 * 1024 * 4


def test_work_is_not_repeated_to_save_a_few_bytes() -> None:
    """A redistribution that cannot be done without: the work of what follows counts as well."""
    relu = ops.ReLU().shard(((1, 8),))
    weight = Parameter(array(512, 512) / 20)
    planned = checked(lambda x: ops.matmul(ops.softmax(relu(x)), weight), (array(512, 512),), search="bfs")
    assert planned.plan.strategy(planned.graph.node("matmul")).work_split == 8
    assert planned.plan.strategy(planned.graph.node("softmax")).work_split == 8
