"""Attention as a ring inside of stages: sequences over ranks of a stage lead to what the step in one piece does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoshard import nn, ops
from autoshard.ops.attention_blocks import RING
from autoshard.pipeline import plan_pipeline
from autoshard.trace import CellList, evaluate, set_seed
from autoshard.transform import train_step
from costmodel import Link, Topology, preset

BATCH, SEQUENCE, WIDTH, HEADS, WORDS = 6, 24, 32, 4, 30


class Layer(nn.Cell):
    """Attention and a feed-forward part, each beside what goes in."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.norm, self.query, self.out = nn.LayerNorm(WIDTH), nn.Dense(WIDTH, 3 * WIDTH), nn.Dense(WIDTH, WIDTH)
        self.up, self.down = nn.Dense(WIDTH, 40), nn.Dense(40, WIDTH)

    def construct(self, x):
        batch, length, _ = x.shape
        made = ops.reshape(self.query(self.norm(x)), (batch, length, 3, HEADS, WIDTH // HEADS))
        q, k, v = (ops.transpose(made[:, :, i], (0, 2, 1, 3)) for i in range(3))
        y = ops.transpose(ops.attention(q, k, v, causal=self.causal), (0, 2, 1, 3))
        x = x + self.out(ops.reshape(y, (batch, length, WIDTH)))
        return x + self.down(ops.gelu(self.up(x)))


class Decoder(nn.Cell):
    def __init__(self, layers: int, causal: bool) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(WORDS, WIDTH), CellList(Layer(causal) for _ in range(layers))
        self.head, self.loss = nn.Dense(WIDTH, WORDS, has_bias=False), nn.TokenLoss()

    def construct(self, ids, labels):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.loss(self.head(x), labels)


def ring_step(layers=2, causal=False):
    set_seed(5)
    net, rng = Decoder(layers, causal), np.random.default_rng(0)
    data = tuple(rng.integers(0, WORDS, (BATCH, SEQUENCE)).astype(np.int32) for _ in range(2))
    return train_step(net, nn.Adam(net.trainable_params(), 3e-3, eps=1e-3), *data), data


def where_rings_pay():
    """Hardware on which a message costs nothing, and small blocks of work no more than one large one."""
    cpu = preset("cpu")
    device = replace(cpu.device, launch_seconds=0.0, memory_bandwidth=1e15)
    return replace(cpu, device=device, topology=Topology(((None, Link("near", 0.0, 1e12)),)))


def rings(planned):
    nodes = [node for ready in planned.programs.pieces.values() for node in ready.plan.graph.nodes]
    return {node.op.name for node in nodes if node.attrs.get("sequence") == RING}


def assert_runs_as_the_whole(planned, step, data):
    arrays = step.traced.inputs(*data)
    outputs = planned.session.run(arrays).outputs
    for ours, theirs in zip(outputs, evaluate(step.graph, arrays), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"mesh": "pp=2,cp=3", "search": "context_parallel(cp)", "micro_batches": 3},
        {"mesh": "pp=2,cp=2,dp=2", "search": "context_parallel_keep(cp) + zero1(dp)", "micro_batches": 3},
        {"pipeline": "cp=4/cp=2", "search": "context_parallel(cp)", "schedule": "zb_h1"},
    ],
)
def test_rings_in_stages_run_as_the_whole(settings, tmp_path):
    step, data = ring_step()
    planned = plan_pipeline(step, hardware=where_rings_pay(), **{"micro_batches": 2, **settings})
    assert rings(planned) == {"Attention", "AttentionQueryGrad", "AttentionKeyGrad"}
    assert_runs_as_the_whole(planned, step, data)
    again = plan_pipeline(step, hardware=where_rings_pay(), search=str(planned.save(tmp_path / "plan.json")))
    assert rings(again) == rings(planned)
    assert_runs_as_the_whole(again, step, data)
