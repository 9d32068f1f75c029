"""Recomputation and gathering again: the same numbers, less kept, and what it costs."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard import nn
from autoshard.api import plan
from autoshard.core.tensortype import TensorType
from autoshard.cost.memory import memory_of
from autoshard.ir.verify import verify
from autoshard.trace.initializer import set_seed
from autoshard.transform import train_step
from autoshard.transform.recompute import backward_begins, cheap, kept, recompute, regather
from autoshard.util.errors import GraphError
from benchmarks.models import Transformer

TOKENS = np.random.default_rng(0).integers(0, 40, (8, 12)).astype(np.int32)


def step(tokens=TOKENS, **options):
    set_seed(3)
    network = Transformer(2, 32, 4, 40, 1, 1)
    return train_step(network, nn.Momentum(network.trainable_params(), 0.1, 0.9), tokens, tokens, **options)


OPTIONS = {
    "cheap": {"recompute": "cheap"},
    "activations": {"recompute": lambda node: node.op.name == "GeLU"},
    "gathered again": {"regather": True},
    "both": {"recompute": "cheap", "regather": True},
}


@pytest.fixture(scope="module")
def plain():
    made = step()
    return made, [np.asarray(made(TOKENS, TOKENS)) for _ in range(2)]


@pytest.mark.parametrize("name", OPTIONS)
def test_the_same_numbers_come_out(plain, name):
    made = step(**OPTIONS[name])
    verify(made.graph)
    assert len(made.graph.nodes) > len(plain[0].graph.nodes)
    losses = [np.asarray(made(TOKENS, TOKENS)) for _ in range(2)]
    assert all((one == other).all() for one, other in zip(losses, plain[1], strict=True))


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("search", ["zero3", "megatron"])
def test_split_runs_agree(plain, name, search):
    planned = plan(step(**OPTIONS[name]), mesh="dp=2 tp=2", search=search)
    losses = [np.asarray(planned.run(TOKENS, TOKENS)) for _ in range(2)]
    np.testing.assert_allclose(losses, plain[1], rtol=1e-5)


def test_less_is_kept_for_more_work():
    tokens = TensorType.of((32, 24), "i32")
    before, after = (
        plan(step(tokens, recompute=what), mesh="dp=4", search="data_parallel") for what in (None, "cheap")
    )
    assert after.cost.peak_memory_bytes < before.cost.peak_memory_bytes
    assert after.cost.compute_seconds > before.cost.compute_seconds
    assert after.cost.bytes_per_device == before.cost.bytes_per_device
    names = {value.name for value in after.graph.values}
    assert "blocks.0.feed_forward.activation.gelu.again" in names


def test_parameters_in_parts_are_gathered_twice_and_not_kept(plain):
    before, after = (plan(plain[0], mesh="dp=4", search=name) for name in ("zero3_keep", "zero3"))
    assert after.cost.peak_memory_bytes < before.cost.peak_memory_bytes
    # Forward and backward gather, and the gradients' scatter: three times the parameters instead of two.
    assert 1.3 < after.cost.bytes_per_device / before.cost.bytes_per_device <= 1.6
    name = "blocks.0.feed_forward.mapping.weight"
    spans = [
        sum(1 + one.last - one.first for one in memory_of(made.plan).held if _is_copy(one, name))
        for made in (before, after)
    ]
    assert 0 < spans[1] < spans[0] / 2


def _is_copy(one, name: str) -> bool:
    return one.kind == "copy" and one.what.startswith(name) and one.nbytes > 0


def test_megatron_still_splits_what_is_gathered_again(plain):
    made = plan(step(regather=True), mesh="dp=2 tp=4", search="megatron")
    assert made.cost.bytes_per_device == plan(plain[0], mesh="dp=2 tp=4", search="megatron").cost.bytes_per_device


def test_chosen_nodes_are_of_the_forward_pass(plain):
    graph = plain[0].graph
    begin = backward_begins(graph)
    assert 0 < begin < len(graph.nodes)
    assert set(cheap(graph)) < set(kept(graph)) <= set(graph.nodes[:begin])
    assert not any(node.op.name == "MatMul" for node in cheap(graph))
    with pytest.raises(GraphError, match="it is no node of the forward pass"):
        recompute(graph, [graph.nodes[-1]])
    with pytest.raises(GraphError, match="recompute is 'all'; it can be 'cheap'"):
        step(recompute="all")
    assert recompute(graph, []).nodes == graph.nodes
    assert regather(recompute(graph, cheap(graph))).outputs == graph.outputs


class Chain(nn.Cell):
    """Blocks in a row, each with a connection past it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.CellList(
            nn.SequentialCell(nn.Dense(8, 48, activation="gelu"), nn.Dense(48, 8)) for _ in range(6)
        )

    def construct(self, x):
        for block in self.blocks.cells():
            x = x + block(x)
        return (x * x).mean()


def test_each_cell_is_made_again_from_what_enters_it():
    """What a cell gives to others is kept: nothing is made again from the begin of the network on."""
    paths = [f"blocks.{i}" for i in range(6)]
    peaks = []
    for what in (None, paths):
        cell = Chain()
        made = train_step(cell, nn.SGD(cell.trainable_params(), 0.1), TensorType.of((64, 8), "f32"), recompute=what)
        peaks.append(plan(made, mesh="d=1", search="data_parallel").cost.memory.peak)
    again = [node for node in made.graph.nodes if node.name.endswith(".again")]
    assert len(again) == 6 * 3  # product, bias, activation; not the second product
    assert peaks[1] < 0.6 * peaks[0]
