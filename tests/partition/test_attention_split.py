"""Attention over a split sequence: gathered or in a ring, equal to the whole; bytes, memory, and the choice by cost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autoshard.ops as ops
from autoshard.api import plan
from autoshard.core.strategy import Strategy
from autoshard.core.tensortype import TensorType, dtype
from autoshard.cost.prices import prices_for
from autoshard.ir.graph import Builder
from autoshard.layout import Mesh
from autoshard.ops.registry import lookup
from autoshard.partition.lower import lower
from autoshard.partition.verify import verify_program
from autoshard.redistribute.window import HALO
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm
from autoshard.trace.cell import Cell
from autoshard.util.errors import ShapeError
from costmodel import preset
from tests.oracle.check import plan_with, single
from tests.partition.exchanging import drawn, exchanging


def reference(q, k, v, causal=False):
    """All scores at once, in double precision."""
    scores = q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.arange(k.shape[-2]) > np.arange(q.shape[-2])[:, None], -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def operands(queries: int, keys: int, width: int = 6, values: int = 5):
    return drawn(0, 2, queries, width), drawn(1, 2, keys, width), drawn(2, 2, keys, values)


@settings(max_examples=20)
@given(st.integers(1, 30), st.integers(1, 1100), st.booleans())
def test_blocks_of_keys_add_up(queries, keys, causal):
    q, k, v = operands(queries, keys)
    got = ops.attention(q, k, v, causal=causal)
    np.testing.assert_allclose(got, reference(q, k, v, causal), rtol=1e-4, atol=1e-5)


def test_large_scores_stay_finite():
    q, k, v = (300 * one for one in operands(7, 600))
    np.testing.assert_allclose(ops.attention(q, k, v), reference(q, k, v), rtol=1e-3)


@pytest.mark.parametrize("mesh", ["2", "2x2", "3x2", "12"])
@pytest.mark.parametrize("causal", [False, True])
def test_rings_of_any_size(mesh, causal):
    """Queries and keys of one length or two, beside batches split along other axes."""
    attrs = {"sequence": "ring", "causal": causal}
    assert exchanging("Attention", list(operands(24, 24)), attrs, mesh)
    assert exchanging("Attention", list(operands(12, 36)), attrs, mesh)


@pytest.mark.parametrize("mesh", ["2", "2x3"])
def test_keys_that_heads_share(mesh):
    """Queries [batch, groups, heads, queries, width] beside keys of one head: all splits, in a ring too."""
    q, k, v = drawn(0, 2, 4, 3, 12, 5), drawn(1, 2, 4, 1, 12, 5), drawn(2, 2, 4, 1, 12, 7)
    attrs = {"sequence": "ring", "causal": True}
    np.testing.assert_allclose(ops.attention(q, k, v, causal=True), reference(q, k, v, True), rtol=1e-4, atol=1e-5)
    assert exchanging("Attention", [q, k, v], attrs, mesh)


def test_operations_of_causal_attention_count_once():
    """Of 24 x 24 pairs 24 * 25 / 2; of the last quarter of queries those that the last rank computes; of a ring all."""
    op, types = lookup("Attention"), (TensorType((2, 24, 6), dtype("f32")),) * 3
    whole, causal = (op.flops(types, op.check_attributes({"causal": one})) for one in (False, True))
    assert whole == 2 * 24 * 24 * (2 * 12 + 8) and causal == pytest.approx(whole * 25 / 48)
    last = types[0].with_shape((2, 6, 6)), *types[1:]
    found = op.most_flops(types, last, op.check_attributes({"causal": True}))
    assert found == pytest.approx(2 * sum(range(19, 25)) * (2 * 12 + 8))
    costs, mesh = prices_for(preset("h100")), Mesh(x=4)
    for kind, more in (("f32", 0.05), ("bf16", 0.1)):  # sums in f32 are no products in f32
        seconds = {}
        for sequence in ("gather", "ring"):
            builder = Builder("long")
            wide = [builder.input(TensorType((2, 65536, 64), dtype(kind)), name) for name in "qkv"]
            node = builder.add(op, wide, op.check_attributes({"sequence": sequence}), "attention")
            axes = tuple(mesh.all_axes if factor.name == "q" else () for factor in node.rule.factors)
            seconds[sequence] = costs.local_work(node, Strategy(node.rule, mesh, axes))
        assert seconds["ring"] == pytest.approx(seconds["gather"], rel=more)


def split_by_sequence(sequence: str, parts: int = 8):
    """The program of queries, keys and values split alike."""
    mesh, arrays = Mesh(x=parts), list(operands(64, 64))
    graph, node = single(lookup("Attention"), arrays, {"sequence": sequence, "causal": True})
    axes = tuple(mesh.all_axes if factor.name == "q" else () for factor in node.rule.factors)
    program = lower(plan_with(graph, node, Strategy(node.rule, mesh, axes)))
    verify_program(program)
    got = Executor(program, LocalComm(parts))(*arrays)[0]
    np.testing.assert_allclose(got, reference(*arrays, causal=True), rtol=1e-4, atol=1e-5)
    return program


def test_a_ring_sends_each_block_once_around():
    program = split_by_sequence("ring")
    moved = [one for one in program.collectives if one.step.kind == HALO]
    assert len(moved) == 2 * 7
    assert sum(one.nbytes_moved for one in moved) == 7 * 2 * (64 // 8) * (6 + 5) * 4
    gathered = [one for one in split_by_sequence("gather").collectives if one.step.kind == HALO]
    assert not gathered


def test_what_does_not_divide_is_refused():
    with pytest.raises(ShapeError, match="takes queries"):
        ops.attention(*operands(4, 6)[:2], drawn(0, 2, 7, 5))
    with pytest.raises(ShapeError, match="sequence is one of auto, gather, ring"):
        ops.attention(*operands(4, 6), sequence="rings")


class Block(Cell):
    """An attention by which queries are split in eight."""

    def __init__(self, sequence: str) -> None:
        super().__init__()
        self.attention = ops.Attention(sequence=sequence)
        self.attention.shard(
            ((1, 8, 1), (1, 1, 1), (1, 1, 1)) if sequence != "ring" else ((1, 8, 1), (1, 8, 1), (1, 8, 1))
        )
        self.before = [ops.ReLU(), ops.ReLU(), ops.ReLU()]
        for one in self.before:
            one.shard(((1, 8, 1),))

    def construct(self, q, k, v):
        return self.attention(*(made(one) for made, one in zip(self.before, (q, k, v), strict=True)))


def test_a_plan_chooses_by_cost():
    """Long sequences go round: as many bytes, a fraction of the memory; what the other way costs is told."""
    arrays = [drawn(i, 1, 8192, 64) for i in range(3)]
    auto, gather, ring = (plan(Block(way), arrays, devices=8) for way in ("auto", "gather", "ring"))
    assert auto.cost.seconds <= 1.05 * gather.cost.seconds
    assert auto.cost.bytes_per_device == pytest.approx(ring.cost.bytes_per_device)
    node = auto.graph.node("attention")
    assert node.attrs["sequence"] == "ring"
    instead = auto.plan.decisions[node].cause.instead
    assert (
        "gathering keys and values, which takes" in instead
        and "holds" in instead
        and instead in str(auto.plan.decisions[node].cause)
    )
    assert ring.cost.peak_memory_bytes < gather.cost.peak_memory_bytes
    assert gather.graph.node("attention").attrs["sequence"] == "gather"


def test_a_chosen_ring_runs():
    arrays = [drawn(i, 1, 64, 6) for i in range(3)]
    found = plan(Block("auto"), arrays, devices=8)
    got = found.run(*arrays)
    got = got[0] if isinstance(got, tuple | list) else got
    np.testing.assert_allclose(
        np.asarray(got), reference(*(np.maximum(one, 0) for one in arrays)), rtol=1e-4, atol=1e-5
    )
