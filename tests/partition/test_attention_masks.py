"""Attention with masks, windows, capped scores and sinks, and its gradients: equal to all scores at once."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import autoshard.ops as ops
from autoshard.core.strategy import Strategy
from autoshard.cost.program_memory import program_peak
from autoshard.layout import Mesh
from autoshard.ops.attention_blocks import BLOCK, LEAST, seen_share
from autoshard.partition.lower import lower
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm
from tests.oracle.check import plan_with, single
from tests.partition.exchanging import drawn

BATCH, HEADS, QUERIES, KEYS, WIDTH, VALUES = 2, 3, 515, 520, 4, 5
"""More rows than a block has, on both sides."""


def mask(seed: int, *shape: int) -> np.ndarray:
    return drawn(seed, *shape) > -0.5


FORMS: dict[str, tuple[dict, tuple[np.ndarray, ...]]] = {
    "window": ({"window": 7}, ()),
    "window behind": ({"window": 300, "causal": True}, ()),
    "cap": ({"softcap": 0.8, "causal": True}, ()),
    "hidden keys": ({}, (mask(5, BATCH, 1, 1, KEYS),)),
    "hidden and added": ({"softcap": 1.5}, (drawn(6, 1, HEADS, QUERIES, KEYS), mask(7, BATCH, 1, QUERIES, KEYS))),
    "slopes of heads": ({"causal": True, "scale": 0.3}, (drawn(8, 1, HEADS, 1, KEYS),)),
    "sink": ({"causal": True, "sinks": True}, (drawn(9, 1, HEADS, 1, 1),)),
    "all": (
        {"causal": True, "window": 200, "softcap": 2.0, "sinks": True},
        (drawn(3, BATCH, 1, QUERIES, 1), mask(4, 1, 1, 1, KEYS), drawn(9, 1, HEADS, 1, 1)),
    ),
}


def reference(q, k, v, *extras, scale=0.0, causal=False, window=0, softcap=0.0, sinks=False):
    """All scores at once, of plain operators, which have gradients of their own."""
    scores = ops.batch_matmul(ops.scalar_mul(q, factor=scale or WIDTH**-0.5), k, transpose_b=True)
    if softcap:
        scores = ops.scalar_mul(ops.tanh(ops.scalar_mul(scores, factor=1 / softcap)), factor=softcap)
    for one in extras[: len(extras) - sinks]:
        hides = str(one.dtype) == "bool"
        scores = ops.masked_fill(scores, ops.logical_not(one), value=LEAST) if hides else ops.add(scores, one)
    behind = np.arange(QUERIES)[:, None] - np.arange(KEYS)
    hidden = (causal & (behind < 0)) | ((abs(behind) >= window) if window else False)
    scores = ops.masked_fill(scores, np.broadcast_to(hidden, behind.shape), value=-1e30)
    if sinks:
        scores = ops.concat(scores, ops.broadcast_to(extras[-1], shape=(*scores.shape[:-1], 1)), axis=-1)
    weights = ops.softmax(scores, axis=-1)
    return ops.batch_matmul(ops.strided_slice(weights, begin=(0,) * 4, end=(BATCH, HEADS, QUERIES, KEYS)), v)


def operands() -> tuple[np.ndarray, ...]:
    sizes = (QUERIES, WIDTH), (KEYS, WIDTH), (KEYS, VALUES)
    return tuple(drawn(i, BATCH, HEADS, *size).astype(np.float64) for i, size in enumerate(sizes))


@pytest.mark.parametrize("name", FORMS)
def test_equal_to_all_scores_at_once(name):
    """Values, and gradients of queries, keys, values, masks of numbers and sinks."""
    attrs, extras = FORMS[name]
    given = (*operands(), *(one if one.dtype == bool else one.astype(np.float64) for one in extras))
    found, wanted = (of(*given, **attrs) for of in (ops.attention, reference))
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)
    g = drawn(11, *found.shape).astype(np.float64)
    full = ops.attention.check_attributes(attrs)
    slopes = ops.attention.cotangents(g, found, given, full)
    rng = np.random.default_rng(12)
    for i, (slope, one) in enumerate(zip(slopes, given, strict=True)):
        if one.dtype == bool:
            assert slope is None
            continue
        assert slope.shape == one.shape
        way = rng.normal(size=one.shape)
        ends = [reference(*given[:i], one + step * way, *given[i + 1 :], **attrs) for step in (1e-5, -1e-5)]
        np.testing.assert_allclose((slope * way).sum(), (g * (ends[0] - ends[1])).sum() / 2e-5, rtol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [0, 1, 5, 40])
def test_pairs_are_counted(causal, window):
    for queries, keys, own in ((12, 12, 12), (12, 30, 12), (30, 12, 30), (24, 24, 6)):
        behind = np.arange(queries)[:, None] - np.arange(keys)
        seen = ~((causal & (behind < 0)) | ((abs(behind) >= window) if window else False))
        found = seen_share((own, 1), (keys, 1), causal, window, queries)
        assert found == pytest.approx(seen[queries - own :].mean())


def test_what_hides_all_keys():
    """A query beyond the window of the last key finds nothing; one whose keys a mask hides weighs them alike."""
    q, k, v = (drawn(i, 1, 6, 3) for i in range(3))
    assert not ops.attention(q, k[:, :2], v[:, :2], window=2)[0, 4:].any()
    found = ops.attention(q, k, v, np.zeros((1, 6, 6), bool))
    np.testing.assert_allclose(found, np.broadcast_to(v.mean(1, keepdims=True), found.shape), rtol=1e-5)


@pytest.mark.parametrize("sequence", ["gather", "ring"])
def test_a_long_sequence_runs_in_blocks(sequence):
    """65,536 queries on 8 ranks, each seeing 700 keys: all scores would take 17 GB, and most are not looked at."""
    length, ranks, attrs = 65536, 8, {"causal": True, "window": 700, "sequence": sequence}
    arrays = [drawn(i, 1, length, 2) for i in range(3)]
    graph, node = single(ops.lookup("Attention"), arrays, attrs)
    mesh = Mesh(x=ranks)
    axes = tuple(mesh.all_axes if factor.name == "q" else () for factor in node.rule.factors)
    program = lower(plan_with(graph, node, Strategy(node.rule, mesh, axes)))
    held = 4 * length * 2 * (4 if sequence == "gather" else 1)
    assert program_peak(program) < 2 * held + 4 * (length // ranks) * 3 * BLOCK
    tracemalloc.start()
    got = Executor(program, LocalComm(ranks))(*arrays)[0]
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < ranks * program_peak(program)
    for first in (0, 32000, length - 3):
        keys = slice(max(0, first - 699), first + 1)
        near = [one[:, keys] for one in arrays[1:]]
        wanted = ops.attention(arrays[0][:, first : first + 1], *near)
        np.testing.assert_allclose(got[:, first : first + 1], wanted, rtol=1e-4, atol=1e-5)
