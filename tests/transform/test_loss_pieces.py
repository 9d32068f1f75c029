"""Logits and loss in pieces: the numbers of the step as it was, less memory, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import autoshard
from autoshard import nn, ops
from autoshard.ir.graph import walk
from autoshard.ir.text import parse, show
from autoshard.ir.verify import verify
from autoshard.pipeline import plan_pipeline
from autoshard.trace import Cell, evaluate
from autoshard.transform import train_step
from autoshard.util.errors import GraphError, PlanError

RNG = np.random.default_rng(3)
WORDS, LENGTH, WIDTH, TABLE = 6, 10, 7, 33
X = RNG.normal(size=(WORDS, LENGTH, WIDTH))
Y = RNG.integers(0, TABLE, (WORDS, LENGTH)).astype(np.int32)


class Head(Cell):
    """A layer, logits of a table of words and their loss by `loss(logits, labels)`."""

    def __init__(self, loss, bias=True) -> None:
        super().__init__()
        self.body, self.head = nn.Dense(WIDTH, WIDTH), nn.Dense(WIDTH, TABLE, has_bias=bias)
        self.loss = loss

    def construct(self, x, y):
        return self.loss(self.head(ops.tanh(self.body(x))), y)


def taken(logs, labels):
    return ops.squeeze(ops.gather_d(logs, ops.expand_dims(labels, axis=-1), dim=logs.ndim - 1), axis=logs.ndim - 1)


def entropy(logits, labels):
    return -ops.reduce_mean(taken(ops.log_softmax(logits), labels))


def flat_entropy(logits, labels):
    return entropy(ops.reshape(logits, (-1, TABLE)), ops.reshape(labels, (-1,)))


def capped_focal(logits, labels):
    logs = taken(ops.log_softmax(ops.tanh(logits / 3.0) * 3.0), labels)
    missed = 1.0 - ops.exp(logs)
    return -ops.reduce_mean(missed * missed * logs)


def valid_words(logits, labels):
    valid = ops.cast(labels > 4, dtype="f64")
    return -ops.reduce_sum(taken(ops.log_softmax(logits), labels) * valid) / ops.reduce_sum(valid)


def step_of(loss, **settings):
    rng = np.random.default_rng(5)
    cell = Head(loss)
    for one in cell.trainable_params():
        one.set_data(rng.normal(size=one.shape))
    return train_step(cell, nn.Momentum(cell.trainable_params(), 0.1, 0.9), X, Y, **settings)


def numbers(step):
    """What two steps lead to."""
    graph = step.graph
    given = dict(zip(graph.inputs, [np.asarray(one) for one in step.traced.inputs(X, Y)], strict=True))
    return evaluate(graph, list(given.values()))


def bodies(graph):
    return [node.name for node in walk(graph.nodes) if node.regions]


@pytest.mark.parametrize("loss", [entropy, flat_entropy, capped_focal, valid_words])
@pytest.mark.parametrize(("pieces", "parts"), [(5, 1), (10, 1), (2, 3), (3, 1)])
def test_the_numbers_are_those_of_the_step(loss, pieces, parts):
    whole, cut = step_of(loss), step_of(loss, loss_pieces=pieces, micro_batches=parts)
    assert "loss_pieces" in bodies(cut.graph)
    verify(cut.graph)
    assert show(parse(show(cut.graph))) == show(cut.graph)
    for one, other in zip(numbers(whole), numbers(cut), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("mesh", ["dp=3", "dp=2 tp=3", "dp=1 tp=2"])
@pytest.mark.parametrize("mode", ["sharding_propagation", "zero3", "data_parallel"])
def test_split_as_unsplit(mesh, mode):
    whole, cut = step_of(flat_entropy), step_of(flat_entropy)
    planned = autoshard.plan(cut, mesh=mesh, search=mode, loss_pieces=5)
    wanted, found = [whole(X, Y) for _ in range(2)], [planned.run(X, Y) for _ in range(2)]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_no_logits_lie_whole():
    widest = [max(value.type.nbytes for value in values_of(step_of(entropy, loss_pieces=n).graph)) for n in (1, 10)]
    assert widest[0] == X[..., 0].size * TABLE * 8
    assert widest[1] < widest[0] / 4
    peaks = [autoshard.plan(step_of(entropy), mesh="dp=1", loss_pieces=n).cost.peak_memory_bytes for n in (1, 10)]
    assert peaks[1] < peaks[0]


def values_of(graph):
    return [value for node in walk(graph.nodes) for value in node.results if not node.regions]


def test_strategies_hold_for_each_piece():
    cell = Head(entropy)
    cell.head.matmul.shard(((1, 1, 1), (3, 1)))
    step = train_step(cell, nn.SGD(cell.trainable_params(), 0.1), X, Y, loss_pieces=5)
    planned = autoshard.plan(step, mesh="tp=3")
    inside = [node for node in walk(planned.plan.graph.nodes) if node.label == "head.matmul"]
    assert [str(planned.plan.strategy(node).operand_layouts[1]) for node in inside] == ["tp, -"]


def all_pairs(logits, labels):
    rows = ops.reshape(ops.reduce_mean(logits, axis=1), (WORDS, TABLE))
    return ops.reduce_mean(ops.square(ops.matmul(rows, rows.T))) + 0.0 * ops.reduce_mean(ops.cast(labels, dtype="f64"))


def without_products(logits, labels):
    return ops.reduce_mean(logits * ops.reduce_max(logits)) + 0.0 * ops.reduce_mean(ops.cast(labels, dtype="f64"))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: step_of(entropy, loss_pieces=7), "no dim of rows that 7 divides; 2, 3, 5, 6, 10 would"),
        (lambda: step_of(entropy, loss_pieces=0), "in 0 pieces: give a number from 1 on"),
        (lambda: step_of(without_products, loss_pieces=2), "needs all rows at once"),
        (lambda: autoshard.plan(lambda x: ops.exp(x), (X,), mesh="dp=2", loss_pieces=2), "give a training step"),
        (
            lambda: autoshard.plan("sample_code/06_shardings_by_rule/mlp.mlir", loss_pieces=2),
            "does not say which of its values are gradients",
        ),
        (
            lambda: plan_pipeline(step_of(entropy), mesh="pp=2", micro_batches=2, loss_pieces=2),
            "does not have its loss in pieces yet",
        ),
    ],
)
def test_what_is_refused(make, said):
    with pytest.raises((GraphError, PlanError), match=said):
        make()


@pytest.mark.torch
def test_a_model_of_torch():
    torch = pytest.importorskip("torch")

    class Language(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(TABLE, WIDTH)
            self.head = torch.nn.Linear(WIDTH, TABLE, bias=False)
            self.head.weight = self.table.weight

        def forward(self, ids, labels):
            logits = self.head(torch.tanh(self.table(ids)))
            entropy = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)
            return entropy + 1e-2 * torch.logsumexp(logits, -1).square().mean()

    torch.manual_seed(0)
    net, ids, labels = Language(), torch.randint(0, TABLE, (4, 9)), torch.randint(-1, TABLE, (4, 9))
    labels[labels < 0] = -100
    model = autoshard.from_torch(net, (ids, labels), loss="output", optimizer=lambda p: nn.Momentum(p, 0.1, 0.9))
    planned = autoshard.plan(model, mesh="dp=2", loss_pieces=3)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, 0.9)
    for _ in range(3):
        found = planned.run(*model.example_arrays)
        wanted = net(ids, labels)
        np.testing.assert_allclose(found, wanted.detach().numpy(), rtol=2e-5)
        optimizer.zero_grad()
        wanted.backward()
        optimizer.step()
