"""Deep models planned by few of their layers: plans that run as the whole, told of each layer, no dearer."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import autoshard as ash
from autoshard import Layout, Mesh, nn, ops
from autoshard.core.tensortype import TensorType
from autoshard.ir.graph import PARAMETER, Value
from autoshard.ir.verify import verify
from autoshard.search.few_layers import FewLayers
from autoshard.search.modes.batch import batch_parallel
from autoshard.search.problem import Problem
from autoshard.trace import Cell, CellList
from autoshard.transform import train_step
from autoshard.transform.planned_graph import planned_graph
from costmodel import preset
from tests.search.plans import assert_runs_as_whole

KEPT, DEEP = 4, 8  # layers that are searched over, of models of how many at least
MESH = Mesh.parse("a=2 b=3")
HARDWARE = preset("h100").for_ranks(MESH.devices)
X = np.random.default_rng(3).normal(size=(12, 6)).astype(np.float32)


class Block(Cell):
    def __init__(self, strategy=None) -> None:
        super().__init__()
        self.up, self.down = nn.Dense(6, 18), nn.Dense(18, 6)
        if strategy is not None:
            self.up.matmul.shard(strategy)

    def construct(self, x):
        return x + self.down(ops.tanh(self.up(x)))


class Deep(Cell):
    def __init__(self, count: int, strategies=None) -> None:
        super().__init__()
        self.blocks = CellList(Block((strategies or {}).get(i)) for i in range(count))

    def construct(self, x):
        for block in self.blocks:
            x = block(x)
        return ops.reduce_mean(ops.square(x))


def step_of(count: int, strategies=None):
    net = Deep(count, strategies)
    return train_step(net, nn.Adam(net.trainable_params(), 1e-3), X)


def problem_of(step, **fields) -> Problem:
    graph, annotations = planned_graph(step.graph, step.traced.annotations)
    return Problem(graph, MESH, HARDWARE, annotations, **fields)


def test_a_lifted_plan_says_of_each_layer_what_the_short_one_says_of_its_like():
    few = FewLayers.of(problem_of(step_of(DEEP + 2)))
    assert few is not None
    verify(few.short.graph)
    assert {few.chains[0].alike.layers.layer_of(node.label) for node in few.short.graph.nodes} >= {0, 1, DEEP, DEEP + 1}
    assert len(few.chains[0].alike.kept) == KEPT
    plan = batch_parallel(few.short)
    lifted = few.lifted(plan)
    whole = batch_parallel(few.problem)
    assert {node: lifted.strategy(node) for node in lifted.decisions} == {
        node: whole.strategy(node) for node in whole.decisions
    }
    assert lifted.layouts == whole.layouts and lifted.outputs == whole.outputs
    again = few.restricted(lifted)
    assert again.layouts == plan.layouts
    assert [again.strategy(node) for node in few.short.graph.nodes] == [*map(plan.strategy, few.short.graph.nodes)]


def test_causes_name_operators_of_the_same_or_the_next_layer():
    few = FewLayers.of(problem_of(step_of(DEEP + 2)))
    assert few is not None
    by_label = {node.label: node for node in few.problem.graph.nodes}
    node = by_label["blocks.5.up.matmul"]
    assert few.chains[0].alike.nodes[node].label == "blocks.1.up.matmul"
    assert few.chains[0].alike.told("blocks.1.down.matmul", node) == "blocks.5.down.matmul"
    assert few.chains[0].alike.told("blocks.0.add", node) == "blocks.4.add"
    assert (
        few.chains[0].alike.told(f"grad.blocks.{DEEP}.up.matmul", node) == "grad.blocks.6.up.matmul"
    )  # the next one that is left
    last = by_label[f"blocks.{DEEP + 1}.up.matmul"]
    assert few.chains[0].alike.told(f"blocks.{DEEP}.add", last) == f"blocks.{DEEP}.add"
    assert few.chains[0].alike.told("loss", node) == "loss"


class Kind(Block):
    """A layer of one of two kinds; the first makes what all others read."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def construct(self, x, shared=None):
        shared = ops.reduce_max(ops.stop_gradient(x), axis=0, keep_dims=True) if shared is None else shared
        act = ops.tanh if self.kind == "tanh" else ops.relu
        return x + act(self.down(self.up(x + shared))), shared


class Kinds(Cell):
    def __init__(self, count: int, kind_of) -> None:
        super().__init__()
        self.blocks = CellList(Kind(kind_of(i)) for i in range(count))

    def construct(self, x):
        shared = None
        for block in self.blocks:
            x, shared = block(x, shared)
        return ops.reduce_mean(ops.square(x))


KINDS = {
    "each third": lambda i: "tanh" if i % 3 == 2 else "relu",
    "first three": lambda i: "tanh" if i < 3 else "relu",
    "first two, then in turns": lambda i: "tanh" if i < 2 or i % 2 else "relu",
}
FOUND = {"each third": (1, 3), "first three": (3, 1), "first two, then in turns": (1, 2)}


@pytest.mark.parametrize("name", KINDS)
def test_layers_of_several_kinds(name):
    net = Kinds(18, KINDS[name])
    step = train_step(net, nn.Adam(net.trainable_params(), 1e-3), X)
    few = FewLayers.of(problem_of(step))
    assert few is not None and (few.chains[0].alike.layers.first, few.chains[0].alike.layers.period) == FOUND[name]
    verify(few.short.graph)
    for node, like in few.chains[0].alike.nodes.items():
        assert node.key == like.key and node.op is like.op
    assert_runs_as_whole(ash.plan(step, mesh=MESH, hardware="h100"), (X,))


def test_layers_of_which_people_said_different_things_are_planned_each():
    split = ((1, 1), (3, 1))
    assert FewLayers.of(problem_of(step_of(DEEP, {3: split}))) is None
    every = FewLayers.of(problem_of(step_of(DEEP, dict.fromkeys(range(DEEP), split))))
    assert every is not None and len(every.short.annotations) == KEPT
    ends = FewLayers.of(problem_of(step_of(DEEP, {0: split, DEEP - 1: split})))
    assert ends is not None and len(ends.short.annotations) == 2
    assert FewLayers.of(problem_of(step_of(DEEP - 1))) is None
    step = step_of(DEEP)
    given = {value: Layout.parse("-, b", MESH) for value in step.graph.inputs if value.name == "blocks.4.up.weight"}
    assert len(given) == 1 and FewLayers.of(problem_of(step, given=given)) is None


def test_inputs_that_nothing_reads_are_left_whole():
    graph = step_of(DEEP).graph
    unread = tuple(Value(TensorType.of((6, 4), "f32"), f"blocks.{i}.unread") for i in range(DEEP))
    roles = (*graph.roles, *(PARAMETER for _ in unread))
    few = FewLayers.of(Problem(replace(graph, inputs=(*graph.inputs, *unread), roles=roles), MESH, HARDWARE))
    assert few is not None
    lifted = few.lifted(batch_parallel(few.short))
    assert {lifted.layouts[value] for value in unread} == {Layout.replicated(MESH, 2)}


@pytest.mark.parametrize("strategies", [None, dict.fromkeys(range(DEEP + 1), ((1, 1), (3, 1)))])
def test_the_plan_of_a_deep_model_runs_as_the_whole_and_is_no_dearer(strategies, monkeypatch):
    step = step_of(DEEP + 1, strategies)
    planned = ash.plan(step, mesh=MESH, hardware="h100")
    assert_runs_as_whole(planned, (X,))
    told = [one for decision in planned.plan.decisions.values() for one in decision.cause.neighbours]
    labels = {node.label for node in planned.graph.nodes}
    assert not [name for name in told if re.search(r"blocks\.\d+\.", name) and name not in labels]
    monkeypatch.setattr(FewLayers, "of", classmethod(lambda cls, problem: None))
    whole = ash.plan(step_of(DEEP + 1, strategies), mesh=MESH, hardware="h100")
    assert planned.cost.seconds <= whole.cost.seconds * 1.02


def test_a_deep_model_keeps_a_memory_limit_by_few_layers():
    step = step_of(DEEP + 4)
    limit = int(0.95 * ash.plan(step, mesh=MESH, hardware=HARDWARE).cost.peak_memory_bytes)
    found = ash.plan(step, mesh=MESH, hardware=HARDWARE, memory=limit)
    assert found.cost.peak_memory_bytes <= limit and f"{KEPT} of {DEEP + 4} layers" in found.plan.started_from
    assert_runs_as_whole(found, (X,))


class Reader(Cell):
    """A layer of a decoder, which reads what the encoder ends with."""

    def __init__(self) -> None:
        super().__init__()
        self.look, self.drop = nn.Dense(6, 6), nn.Dropout(0.8)

    def construct(self, x, read):
        return x + self.drop(ops.tanh(self.look(x) * read))


class Translator(Cell):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.encoder = CellList(Block() for _ in range(count))
        self.decoder = CellList(Reader() for _ in range(count + 1))

    def construct(self, x, y):
        for block in self.encoder:
            x = block(x)
        for reader in self.decoder:
            y = reader(y, x)
        return ops.reduce_mean(ops.square(y))


def test_an_encoder_and_a_decoder_with_dropout_are_planned_by_few_layers_of_each(monkeypatch):
    net = Translator(DEEP)
    step = train_step(net, nn.Adam(net.trainable_params(), 1e-3), X, X[::-1].copy())
    few = FewLayers.of(problem_of(step))
    assert few is not None
    assert sorted(one.alike.layers.stem for one in few.chains) == ["decoder.", "encoder."]
    sums = [
        [len(node.operands) for node in graph.nodes if node.op.name == "AddN"]
        for graph in (few.problem.graph, few.short.graph)
    ]
    assert DEEP + 1 in sums[0] and max(sums[1]) < DEEP  # what all readers read has a gradient of as many terms
    planned = ash.plan(step, mesh=MESH, hardware="h100")
    assert planned.plan.started_from.count(f"{KEPT} of ") == 2
    assert_runs_as_whole(planned, (X, X[::-1].copy()))
    monkeypatch.setattr(FewLayers, "of", classmethod(lambda cls, problem: None))
    assert planned.cost.seconds <= ash.plan(step, mesh=MESH, hardware="h100").cost.seconds * 1.02
