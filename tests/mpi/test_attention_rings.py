"""Attention over a split sequence and its gradients in rings on MPI ranks: what they give is what they give whole."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard.core.strategy import Strategy
from autoshard.layout import Mesh
from autoshard.mindspore.communication import get_group_size
from autoshard.ops.registry import lookup
from autoshard.partition.lower import lower
from autoshard.runtime.interpret import Executor
from autoshard.runtime.mpi import default_comm
from tests.oracle.check import assert_same, plan_with, single

WORLD = get_group_size()


@pytest.fixture(scope="module")
def comm():
    return default_comm(WORLD)


@pytest.mark.skipif(WORLD < 2, reason="one rank has all keys")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["Attention", "AttentionQueryGrad", "AttentionKeyGrad"])
def test_rings(name: str, causal: bool, comm) -> None:
    rng = np.random.default_rng(3)
    queries, keys = 2 * WORLD, 3 * WORLD
    g, q, k, v = (rng.normal(size=(2, *size)) for size in ((queries, 5), (queries, 6), (keys, 6), (keys, 5)))
    y = lookup("Attention")(q, k, v, causal=causal)
    inner = (g * y).sum(-1, keepdims=True)
    ends = lookup("AttentionQueryGrad")(g, inner, q, k, v, causal=causal)[1]
    operands = {"Attention": [q, k, v], "AttentionQueryGrad": [g, inner, q, k, v]}
    arrays = operands.get(name, [g, inner, q, ends, k, v])
    mesh = Mesh.flat(WORLD)
    graph, node = single(lookup(name), arrays, {"sequence": "ring", "causal": causal})
    axes = tuple(mesh.all_axes if factor.exchange else () for factor in node.rule.factors)
    got = Executor(lower(plan_with(graph, node, Strategy(node.rule, mesh, axes))), comm)(*arrays)
    for ours, theirs in zip(got, node.op.evaluate(arrays, node.attrs), strict=True):
        assert_same(ours, theirs, 1e-9, f"{name} in a ring of {WORLD}")
