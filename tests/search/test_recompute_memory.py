"""Recomputation as a choice of the search: where it is used, what it saves, and that the numbers stay."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard import Parameter, nn, ops
from autoshard.api import plan
from autoshard.cost.memory import peak_memory
from autoshard.ir.verify import verify
from autoshard.partition.verify import verify_program
from autoshard.search.memory_limit import least_bytes
from autoshard.search.recompute import carried
from autoshard.transform import train_step
from autoshard.transform.recompute import kept, recompute, recomputed
from autoshard.util.errors import MemoryLimitError, PlanError
from tests.search.plans import array

X, Y = array(240, 12), array(240, 6)
AUTO = {"recompute": "auto"}


class Narrow(nn.Cell):
    """Few parameters and a chain of activations, all kept for the backward pass: they fill memory."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Parameter(array(12, 60) / 4, name="first")
        self.second = Parameter(array(60, 6) / 4, name="second")

    def construct(self, x, y):
        h = ops.matmul(x, self.first)
        for one in (ops.tanh, ops.sigmoid, ops.sin, ops.tanh):
            h = one(h)
        return ops.reduce_mean(ops.square(ops.sub(ops.matmul(h, self.second), y)))


def step():
    network = Narrow()
    return train_step(network, nn.SGD(network.trainable_params(), 0.1), X, Y)


@pytest.fixture(scope="module")
def least() -> int:
    """The least memory that a plan without recomputation needs."""
    with pytest.raises(MemoryLimitError, match="the least that is possible is") as refused:
        plan(step(), mesh="d=2", search="optimal", memory=least_bytes(step().graph, 2))
    return refused.value.needed


def test_below_the_least_activations_are_made_again_and_numbers_stay(least, tmp_path):
    limit = int(0.85 * least)  # less than the programs of plans need without
    with pytest.raises(MemoryLimitError):
        plan(step(), mesh="d=2", search="optimal", memory=limit)
    planned = plan(step(), mesh="d=2", search="optimal", memory=limit, options=AUTO)
    verify(planned.graph)
    verify_program(planned.program)
    assert planned.cost.peak_memory_bytes <= limit
    assert planned.plan.search_stats["made again"] >= 1
    assert "made again for the backward pass instead of being kept" in planned.report()
    replayed = plan(step(), mesh="d=2", search=str(planned.save(tmp_path / "plan.json")))
    assert [node.label for node in replayed.graph.nodes] == [node.label for node in planned.graph.nodes]
    assert peak_memory(replayed.plan) == peak_memory(planned.plan)
    whole = step()
    for _ in range(3):
        np.testing.assert_allclose(planned.run(X, Y), whole(X, Y), rtol=1e-5)


def test_with_room_nothing_is_made_again(least):
    free = plan(step(), mesh="d=2", search="optimal")
    for memory in (None, peak_memory(free.plan)):
        planned = plan(step(), mesh="d=2", search="optimal", memory=memory, options=AUTO)
        assert not any(node.name.endswith(".again") for node in planned.graph.nodes)
        assert planned.plan.search_stats["seconds"] == pytest.approx(free.plan.search_stats["seconds"])


def test_with_the_option_no_plan_is_slower_and_too_little_is_refused(least):
    tight = plan(step(), mesh="d=2", search="optimal", memory=least)
    planned = plan(step(), mesh="d=2", search="optimal", memory=least, options=AUTO)
    assert peak_memory(planned.plan) <= least
    assert planned.plan.search_stats["seconds"] <= tight.plan.search_stats["seconds"] * (1 + 1e-9)
    with pytest.raises(MemoryLimitError):
        plan(step(), mesh="d=2", search="optimal", memory=least // 4, options=AUTO)


def test_a_plan_is_carried_to_the_graph_with_nodes_made_again():
    free = plan(step(), mesh="d=2", search="optimal")
    nodes = [node for node in kept(free.graph) if node.op.name in ("Sigmoid", "Sin")]
    graph, origin = recomputed(free.graph, nodes)
    assert [node.label for node in graph.nodes] == [node.label for node in recompute(free.graph, nodes).nodes]
    again = carried(free.plan, graph, origin)
    for node in graph.nodes:
        assert again.strategy(node) is free.plan.strategy(origin[node])
        assert node.op is origin[node].op and len(node.operands) == len(origin[node].operands)
    assert len(graph.nodes) == len(free.graph.nodes) + len(nodes)
    assert peak_memory(again) < peak_memory(free.plan)


def test_the_option_is_checked():
    with pytest.raises(PlanError, match="recompute is 'all'; it can be 'auto'"):
        plan(step(), mesh="d=2", search="optimal", options={"recompute": "all"})
    with pytest.raises(PlanError, match="has no backward pass"):
        plan(Narrow(), (X, Y), mesh="d=2", search="optimal", options=AUTO)
    with pytest.raises(PlanError, match="no option 'recompute'"):
        plan(step(), mesh="d=2", search="bfs", options=AUTO)
