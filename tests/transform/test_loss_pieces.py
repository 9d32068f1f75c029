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
from autoshard.pipeline.execute.session import PipelineSession
from autoshard.runtime.local import LocalComm
from autoshard.trace import Cell, Parameter, evaluate
from autoshard.transform import train_step
from autoshard.util.errors import GraphError, PlanError, StageError

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
        (lambda: staged(entropy, loss_pieces=7), "no dim of rows that 7 divides; 2, 5, 10 would"),
        (lambda: staged(entropy, loss_pieces=0), "in 0 pieces: give a number from 1 on"),
        (lambda: staged(None, lambda _: step_of(entropy, loss_pieces=5)), "has a loop over loss_pieces already; give"),
        (lambda: staged(None, lambda _: step_of(entropy, micro_batches=3)), "a loop over micro_batches already; give"),
        (
            lambda: staged(entropy, loss_pieces=2, stages={"body.*": 0, "head.*": 0, "log_softmax": 1}),
            r"head.matmul.* in stage 0, log_softmax.* in stage 1; give all of these to one stage",
        ),
    ],
)
def test_what_is_refused(make, said):
    with pytest.raises((GraphError, PlanError, StageError), match=said):
        make()


def staged(loss, make=None, **settings):
    settings = {"mesh": "pp=2", "micro_batches": 3, **settings}
    return plan_pipeline((make or step_of)(loss), **settings)


@pytest.mark.parametrize("loss", [entropy, flat_entropy, valid_words])
@pytest.mark.parametrize(
    "how",
    [
        {"mesh": "pp=2,dp=2", "schedule": "gpipe"},
        {"mesh": "dp=2,pp=2", "schedule": "zb_h1", "stages": {"body.*": 0, "head.*": 1}},
        {"schedule": "zbv", "micro_batches": 6},
        {"schedule": "dualpipev", "micro_batches": 6},
        {"mesh": "2", "pipeline": "auto", "schedule": "auto"},
    ],
)
def test_stages_lead_to_the_numbers_of_the_step(loss, how):
    whole, planned = step_of(loss), staged(loss, loss_pieces=5, **how)
    assert "loss_pieces" in [node.name for plan in planned.plans for node in walk(plan.graph.nodes)]
    wanted, found = [whole(X, Y) for _ in range(2)], [planned.run(X, Y) for _ in range(2)]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


class TiedWords(Cell):
    """The table of words is that of the logits; what is wanted is a row for each sequence beside."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.body = nn.Embedding(TABLE, WIDTH, dtype="f64"), nn.Dense(WIDTH, WIDTH, dtype="f64")
        self.row = Parameter(RNG.normal(size=(1, WIDTH)), "row")

    def construct(self, x, y):
        words = ops.tanh(self.body(self.table(y)))
        hidden = words + ops.expand_dims(ops.reduce_mean(x, axis=1) * self.row, axis=1)
        return entropy(ops.matmul(hidden, ops.transpose(self.table.embedding_table, (1, 0))), y)


def tied(_):
    rng, cell = np.random.default_rng(5), TiedWords()
    for one in cell.trainable_params():
        one.set_data(rng.normal(size=one.shape))
    return train_step(cell, nn.Adam(cell.trainable_params(), 0.1, eps=1e-3), X, Y)


def test_tied_tables_in_stages_and_in_files(tmp_path):
    step, path = tied(None), tmp_path / "stages.json"
    planned = staged(None, tied, mesh="pp=2,tp=2", loss_pieces=5, stages={"table.*": 0, "body.*": 0, "matmul": 1})
    planned.save(path)
    again = plan_pipeline(tied(None), search=str(path))
    assert again.loss_pieces == 5 and again.price.seconds == planned.price.seconds
    wanted = [step(X, Y) for _ in range(2)]
    for one in (planned, again):
        np.testing.assert_allclose([one.run(X, Y) for _ in range(2)], wanted, rtol=1e-6)
    with pytest.raises(PlanError, match="has loss pieces 5, not 2, which is given"):
        plan_pipeline(tied(None), search=str(path), loss_pieces=2)


class Wide(Cell):
    """A layer wider than the table of words."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Dense(WIDTH, 2 * TABLE), nn.Dense(2 * TABLE, WIDTH)
        self.head = nn.Dense(WIDTH, TABLE)

    def construct(self, x, y):
        return entropy(self.head(self.down(ops.square(self.up(x)))), y)


def test_logits_are_not_what_layers_make_again():
    cell, is_up = Wide(), lambda node: node.name.startswith("up.")
    step = train_step(cell, nn.SGD(cell.trainable_params(), 0.1), X, Y, recompute=is_up, loss_pieces=5)
    (loop,) = [node for node in step.graph.nodes if node.name == "loss_pieces"]
    assert "head.matmul" in [node.name for region in loop.regions for node in region.nodes]


def test_a_hidden_state_wider_than_logits_stays_whole():
    """Also where nothing but the logits reads it, so that the layer before has no gradient of its own to read it."""
    net = nn.SequentialCell(nn.Dense(WIDTH, 2 * TABLE), nn.Dense(2 * TABLE, TABLE, has_bias=False))
    body, head = net[0], net[1]

    def step(**settings):
        return train_step(
            lambda x, y: entropy(head(body(x)), y), nn.SGD([*body.trainable_params()], 0.1), X, Y, **settings
        )

    assert "loss_pieces" in bodies(step(loss_pieces=5).graph)
    for one, other in zip(numbers(step()), numbers(step(loss_pieces=5)), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-9, atol=1e-12)


def narrow_step():
    rng, cell = np.random.default_rng(5), nn.Dense(WIDTH, TABLE, has_bias=False, dtype="bf16")
    cell.weight.set_data(rng.normal(size=cell.weight.shape))
    x = X.astype(cell.weight.asnumpy().dtype)
    optimizer = nn.SGD([cell.weight], 0.5)
    return train_step(lambda x, y: entropy(ops.cast(cell(ops.tanh(x)), dtype="f32"), y), optimizer, x, Y), x


def test_narrow_gradients_are_added_up_wide_in_stages():
    (whole, x), (step, _) = narrow_step(), narrow_step()
    planned = plan_pipeline(step, mesh="pp=1,dp=2", micro_batches=3, loss_pieces=5)
    terms = [one.type for one, _ in planned.whole.pipeline.step.body.outputs.values()]
    assert [of.dtype.name for of in terms if of.shape == (TABLE, WIDTH)] == ["f32"]
    wanted = [float(whole(x, Y)) for _ in range(3)]
    np.testing.assert_allclose([float(planned.run(x, Y)) for _ in range(3)], wanted, rtol=1e-4)


def test_no_logits_wait_in_stages():
    """Neither is there room for them by the prediction, nor does a rank hold them for its backward pass."""
    held = []
    for pieces in (1, 10):
        planned = staged(entropy, schedule="gpipe", stages={"body.*": 0, "head.*": 1}, loss_pieces=pieces)
        ran = PipelineSession(planned, LocalComm(2)).run([np.asarray(one) for one in planned.traced.inputs(X, Y)])
        assert ran.measured[1].peak == planned.price.memory[1].activations
        held.append((planned.price.memory[1].nbytes, ran.measured[1].peak))
    logits = X[..., 0].size * TABLE * 8
    assert held[1][0] < held[0][0] - logits / 2 and held[1][1] < held[0][1] - logits


def test_strategies_hold_in_stages():
    cell = Head(entropy)
    cell.head.matmul.shard(((1, 1, 1), (3, 1)))
    step = train_step(cell, nn.SGD(cell.trainable_params(), 0.1), X, Y)
    planned = plan_pipeline(step, mesh="pp=2,tp=3", micro_batches=2, loss_pieces=5)
    inside = [node for node in walk(planned.plans[1].graph.nodes) if node.label == "head.matmul"]
    assert [str(planned.plans[1].strategy(node).operand_layouts[1]) for node in inside] == ["tp, -"]


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
