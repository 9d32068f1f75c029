"""The gradient of attention over a split sequence: equal to the whole, gathered or in rings; bytes, memory, choice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autoshard.ops as ops
from autoshard import nn
from autoshard.api import Planned, plan
from autoshard.core.strategy import Strategy
from autoshard.layout import Mesh
from autoshard.ops.attention_grad import attention_key_grad, attention_query_grad
from autoshard.ops.registry import lookup
from autoshard.partition.lower import lower
from autoshard.partition.verify import verify_program
from autoshard.redistribute.window import HALO
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm
from autoshard.transform.train import TrainStep, train_step
from autoshard.util.errors import ShapeError
from tests.oracle.check import plan_with, single
from tests.partition.exchanging import drawn, exchanging
from tests.search.plans import array, assert_runs_as_whole

WAYS = ("gather", "ring", "auto")


def reference(g, q, k, v, scale, causal):
    """All scores at once: what queries, keys and values get, and the logarithms of the sums of exponentials."""
    scores = q @ k.swapaxes(-1, -2) * scale
    if causal:
        scores = np.where(np.arange(k.shape[-2]) > np.arange(q.shape[-2])[:, None], -np.inf, scores)
    ends = np.log(np.exp(scores).sum(-1, keepdims=True))
    weights = np.exp(scores - ends)
    slope = g @ v.swapaxes(-1, -2)
    slope = weights * (slope - (weights * slope).sum(-1, keepdims=True)) * scale
    inner = (g * (weights @ v)).sum(-1, keepdims=True)
    return slope @ k, slope.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ g, inner, ends


def operands(queries: int, keys: int, width: int = 6, values: int = 5):
    sizes = (queries, values), (queries, width), (keys, width), (keys, values)
    return tuple(drawn(i, 2, *size).astype(np.float64) for i, size in enumerate(sizes))


@settings(max_examples=20)
@given(st.integers(1, 1100), st.integers(1, 1100), st.booleans(), st.sampled_from([0.0, 0.3]))
def test_blocks_add_up(queries, keys, causal, scale):
    g, q, k, v = operands(queries, keys)
    *wanted, inner, ends = reference(g, q, k, v, scale or 6**-0.5, causal)
    slope, found = attention_query_grad(g, inner, q, k, v, scale=scale, causal=causal)
    made = slope, *attention_key_grad(g, inner, q, ends, k, v, scale=scale, causal=causal)
    np.testing.assert_allclose(found, ends, rtol=1e-9, atol=1e-9)
    for ours, theirs in zip(made, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mesh", ["2", "2x3"])
def test_keys_that_heads_share(mesh):
    """They get what all queries of their group ask of them."""
    g, q = drawn(0, 2, 4, 3, 12, 7).astype(float), drawn(1, 2, 4, 3, 12, 5).astype(float)
    k, v = drawn(2, 2, 4, 1, 12, 5).astype(float), drawn(3, 2, 4, 1, 12, 7).astype(float)
    slope, keys, values, inner, ends = reference(g, q, k, v, 5**-0.5, True)
    found, _ = attention_query_grad(g, inner, q, k, v, causal=True)
    np.testing.assert_allclose(found, slope, rtol=1e-9, atol=1e-9)
    for ours, theirs in zip(attention_key_grad(g, inner, q, ends, k, v, causal=True), (keys, values), strict=True):
        np.testing.assert_allclose(ours, theirs.sum(2, keepdims=True), rtol=1e-9, atol=1e-9)
    attrs = {"sequence": "ring", "causal": True}
    assert exchanging("AttentionQueryGrad", [g, inner, q, k, v], attrs, mesh)
    assert exchanging("AttentionKeyGrad", [g, inner, q, ends, k, v], attrs, mesh)


@pytest.mark.parametrize("mesh", ["2", "2x2", "3x2", "12"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", [(24, 24), (12, 36)])
def test_rings_of_any_size(mesh, causal, sizes):
    """Queries and keys of one length or two, beside batches split along other axes."""
    g, q, k, v = operands(*sizes)
    *_, inner, ends = reference(g, q, k, v, 6**-0.5, causal)
    attrs = {"sequence": "ring", "causal": causal}
    assert exchanging("AttentionQueryGrad", [g, inner, q, k, v], attrs, mesh)
    assert exchanging("AttentionKeyGrad", [g, inner, q, ends, k, v], attrs, mesh)


@pytest.mark.parametrize("name, moving", [("AttentionQueryGrad", (6, 5)), ("AttentionKeyGrad", (5, 1, 6, 1))])
def test_a_ring_sends_each_block_once_around(name, moving):
    g, q, k, v = operands(64, 64)
    *_, inner, ends = reference(g, q, k, v, 6**-0.5, True)
    arrays = [g, inner, q, k, v] if len(moving) == 2 else [g, inner, q, ends, k, v]
    mesh, parts = Mesh(x=8), 8
    graph, node = single(lookup(name), arrays, {"sequence": "ring", "causal": True})
    axes = tuple(mesh.all_axes if factor.exchange else () for factor in node.rule.factors)
    program = lower(plan_with(graph, node, Strategy(node.rule, mesh, axes)))
    verify_program(program)
    got = Executor(program, LocalComm(parts))(*arrays)
    for ours, theirs in zip(got, node.op.evaluate(arrays, node.attrs), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)
    moved = [one for one in program.collectives if one.step.kind == HALO]
    assert len(moved) == len(moving) * (parts - 1)
    assert sum(one.nbytes_moved for one in moved) == (parts - 1) * 2 * (64 // parts) * sum(moving) * 8


def test_what_does_not_fit_is_refused():
    g, q, k, v = operands(4, 6)
    with pytest.raises(ShapeError, match="AttentionQueryGrad takes slopes"):
        attention_query_grad(g, g, q, k, v)
    with pytest.raises(ShapeError, match="AttentionKeyGrad takes slopes"):
        attention_key_grad(g, g[..., :1], q[:, 1:], g[..., :1], k, v)


class Attending(nn.Cell):
    """Queries, keys and values by matrices of their own, split in their sequence, and how far they miss labels."""

    def __init__(self, sequence: str, width: int, parts: int) -> None:
        super().__init__()
        dense = [nn.Dense(width, width, has_bias=False) for _ in range(3)]
        self.dense = nn.CellList(dense)
        for i, one in enumerate(dense):
            one.weight.set_data(array(width, width, seed=i) / width**0.5)
            one.matmul.shard(((1, parts, 1), (1, 1)))
        self.attention = ops.Attention(sequence=sequence, causal=True)
        others = (1, parts if sequence == "ring" else 1, 1)
        self.attention.shard(((1, parts, 1), others, others))

    def construct(self, x, y):
        q, k, v = (dense(x) for dense in self.dense)
        return ops.reduce_mean(ops.square(self.attention(q, k, v) - y))


def stepping(sequence: str, shape: tuple[int, ...], parts: int = 8) -> TrainStep:
    net = Attending(sequence, shape[-1], parts)
    data = np.zeros(shape, np.float32)
    return train_step(net, nn.SGD(net.trainable_params(), 0.1), data, data)


def told(planned: Planned) -> list[str]:
    """How attention and its gradients run."""
    return [node.attrs["sequence"] for node in planned.graph.nodes if "sequence" in node.attrs]


def test_a_training_step_chooses_by_cost():
    """A long sequence goes round in its gradient too: a fraction of the memory, in the same time."""
    gather, ring, auto = (plan(stepping(way, (1, 8192, 64)), devices=8) for way in WAYS)
    assert told(gather) == ["gather"] * 3 and told(auto) == ["ring"] * 3
    assert auto.cost.seconds <= 1.05 * gather.cost.seconds
    assert auto.cost.peak_memory_bytes < 0.3 * gather.cost.peak_memory_bytes
    assert auto.cost.bytes_per_device <= 1.05 * ring.cost.bytes_per_device
    causes = [str(auto.plan.decisions[node].cause) for node in auto.graph.nodes if "sequence" in node.attrs]
    assert all("gathering keys and values, which takes" in cause and "holds" in cause for cause in causes)


def test_a_short_sequence_is_gathered():
    assert told(plan(stepping("auto", (1, 64, 6)), devices=8)) == ["auto"] * 3


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape, parts", [((1, 64, 6), 8), ((2, 24, 4), 6)])
def test_a_training_step_runs(way, shape, parts):
    planned = plan(stepping(way, shape, parts), devices=parts)
    assert_runs_as_whole(planned, (array(*shape, seed=5), array(*shape, seed=6)), rtol=1e-4)
