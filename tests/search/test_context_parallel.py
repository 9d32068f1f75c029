"""Sequences in parts: attention by keys that go round or by heads sends what its paper says, and equals the whole."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest

from autoshard import Parameter, nn, ops
from autoshard.api import plan
from autoshard.core.tensortype import TensorType
from autoshard.ir.graph import DATA, PARAMETER
from autoshard.partition.verify import verify_program
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm
from autoshard.trace.evaluate import evaluate
from autoshard.transform import train_step
from autoshard.util.errors import PlanError
from tests.search.plans import FFN, array

BATCH, SEQUENCE, WIDTH, HEADS, PARTS, FLOAT = 2, 24, 256, 8, 4, 4


class Attending(nn.Cell):
    """Causal attention with a residual, between products; `shared` queries share each key."""

    def __init__(self, shared: int = 1) -> None:
        super().__init__()
        self.heads, self.keys = HEADS, HEADS // shared
        self.depth = WIDTH // HEADS
        sizes = (WIDTH, self.keys * self.depth, self.keys * self.depth)
        self.query, self.key, self.value = (
            Parameter(array(WIDTH, size, seed=i) / 16, name=f"in{i}") for i, size in enumerate(sizes)
        )
        self.out = Parameter(array(WIDTH, WIDTH, seed=3) / 16, name="out")

    def construct(self, x, wanted):
        batch, length, _ = x.shape
        group = self.heads // self.keys
        q = ops.reshape(ops.matmul(x, self.query), (batch, length, self.keys, group, self.depth))
        k, v = (
            ops.reshape(ops.matmul(x, w), (batch, length, self.keys, 1, self.depth)) for w in (self.key, self.value)
        )
        q, k, v = (ops.transpose(one, (0, 2, 3, 1, 4)) for one in (q, k, v))
        y = ops.transpose(ops.attention(q, k, v, causal=True), (0, 3, 1, 2, 4))
        made = x + ops.matmul(ops.reshape(y, (batch, length, WIDTH)), self.out)
        return ops.reduce_mean(ops.square(made - wanted))


@cache
def step(shared: int = 1):
    network = Attending(shared)
    of = TensorType.of((BATCH, SEQUENCE, WIDTH), "f32")
    return train_step(network, nn.SGD(network.trainable_params(), learning_rate=0.1), of, of)


def assert_runs_as_the_whole(planned):
    verify_program(planned.program)
    feeds = planned.traced.inputs(array(BATCH, SEQUENCE, WIDTH), array(BATCH, SEQUENCE, WIDTH, seed=1))
    outputs = Executor(planned.program, LocalComm(planned.plan.mesh.devices))(*feeds)
    for ours, theirs in zip(outputs, evaluate(planned.graph, feeds), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=1e-5)


def moved(planned) -> float:
    """Bytes that a rank sends for attention: all but the sums of gradients and of the loss."""
    return sum(one.nbytes_moved for one in planned.program.collectives if one.step.kind != "all_reduce")


BLOCK = BATCH * SEQUENCE // PARTS * WIDTH * FLOAT
# Ulysses, section 3.2: an all-to-all of queries, keys, values and results each way, (N - 1) / N of a rank's block; and
# of their gradients. Ring attention, section 3: N - 1 blocks of keys and of values come to each rank, for the gradient
# again, and as many of their gradients; kept, keys and values come once for both.
FORMULAS = {
    "ulysses": 8 * (PARTS - 1) / PARTS * BLOCK,
    "context_parallel": 6 * (PARTS - 1) * BLOCK,
    "context_parallel_keep": 4 * (PARTS - 1) * BLOCK,
}


@pytest.mark.parametrize("name", FORMULAS)
def test_bytes_are_those_of_the_paper(name):
    planned = plan(step(), mesh=f"cp={PARTS}", search=name, passes=False)
    assert moved(planned) == pytest.approx(FORMULAS[name], rel=0.05), f"{name}: formula {FORMULAS[name]}"
    kinds = Counter(one.step.kind for one in planned.program.collectives)
    assert ("all_to_all" in kinds) == (name == "ulysses")
    data = [str(planned.plan.layouts[v]) for v in planned.graph.inputs if planned.graph.role_of[v] == DATA]
    assert data == ["-, cp, -", "-, cp, -"]


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        ("ulysses", "cp=4"),
        ("context_parallel", "dp=2 cp=4"),
        ("context_parallel_keep", "dp=2 cp=4"),
        ("zero3(dp) + ulysses(cp)", "dp=2 cp=4"),
        ("zero3(dp.cp) + context_parallel(cp)", "dp=2 cp=4"),
        ("zero3_keep(cp) + context_parallel_keep(cp)", "cp=4"),
        ("zero1(dp.cp) + ulysses(cp)", "dp=2 cp=4"),
        ("zero2(dp) + megatron(tp) + context(cp)", "dp=2 tp=2 cp=2"),
        ("megatron(tp) + ulysses(cp)", "tp=2 cp=2"),
    ],
)
@pytest.mark.parametrize("shared", [1, 4])
def test_runs_as_the_whole(name, mesh, shared):
    assert_runs_as_the_whole(plan(step(shared), mesh=mesh, search=name))


class Shifted(nn.Cell):
    """Labels that are shifted are the words that go in, as people train translators."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.attending = nn.Embedding(48, WIDTH), Attending()

    def construct(self, labels, wanted):
        words = ops.concat(ops.fill(shape=(BATCH, 1), value=1, dtype="i32"), labels[:, :-1], axis=1)
        return self.attending(self.embed(words), wanted)


@pytest.mark.parametrize("name", ["context_parallel", "ulysses"])
def test_shifted_words_are_in_parts_where_they_are_looked_up(name):
    """They lay whole, and all that is made of them did, too."""
    network, of = Shifted(), TensorType.of((BATCH, SEQUENCE, WIDTH), "f32")
    labels = np.random.default_rng(5).integers(0, 48, (BATCH, SEQUENCE)).astype(np.int32)
    rates = nn.SGD(network.trainable_params(), learning_rate=0.1)
    planned = plan(train_step(network, rates, TensorType.of(labels.shape, "i32"), of), mesh="dp=2 cp=4", search=name)
    lookup = next(node for node in planned.graph.nodes if node.op.name == "Gather")
    assert str(planned.plan.layouts[lookup.results[0]]) == "dp, cp, -"
    feeds = planned.traced.inputs(labels, array(BATCH, SEQUENCE, WIDTH, seed=1))
    outputs = Executor(planned.program, LocalComm(planned.plan.mesh.devices))(*feeds)
    for ours, theirs in zip(outputs, evaluate(planned.graph, feeds), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=1e-5)


def test_devices_that_share_a_sequence_hold_parts_of_the_weights():
    """As FSDP and Megatron-core's optimizer lie over all that hold the same weights: gradients are scattered."""
    planned = plan(step(), mesh="dp=2 cp=4", search="zero3(dp.cp) + context_parallel(cp)", passes=False)
    weights = [str(planned.plan.layouts[v]) for v in planned.graph.inputs if planned.graph.role_of[v] == PARAMETER]
    assert weights == ["dp.cp, -"] * 4
    over = Counter((one.step.kind, ".".join(ref.name for ref in one.step.axes)) for one in planned.program.collectives)
    # The backward pass needs the last weight alone: x has no gradient.
    assert over["reduce_scatter", "dp.cp"] == 4 and over["all_gather", "dp.cp"] == 5
    data = {str(planned.plan.layouts[v]) for v in planned.graph.inputs if planned.graph.role_of[v] == DATA}
    assert data == {"dp, cp, -"}


def test_what_does_not_fit_is_told():
    with pytest.raises(PlanError, match="has no operator Attention, between whose queries and keys"):
        plan(FFN(), (array(32, 64),), "cp=4", search="context_parallel")
    with pytest.raises(PlanError, match="16 parts divide the sequence of none of x"):
        plan(step(), mesh="cp=16", search="context_parallel")
    with pytest.raises(PlanError, match="3 parts do not divide the heads of .*; 'context_parallel' needs none"):
        plan(step(), mesh="cp=3", search="ulysses")
