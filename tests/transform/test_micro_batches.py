"""Training steps in micro batches: the numbers of the whole batch, loop, price, memory, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import autoshard
from autoshard import nn, ops
from autoshard.ir.graph import walk
from autoshard.ir.text import parse, show
from autoshard.ir.trips import runs
from autoshard.ir.verify import verify
from autoshard.trace import Cell, Parameter, evaluate, set_seed, trace
from autoshard.transform import train_step
from autoshard.transform.micro import accumulate
from autoshard.util.errors import GraphError, PlanError
from tests.trace.models import FFN, Language

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(12, 6)), RNG.normal(size=(12, 4))
IDS = RNG.integers(0, 24, (12, 5)).astype(np.int32)
WORDS = RNG.integers(0, 10, (12, 5)).astype(np.int32)


class Loss(Cell):
    """A network with a loss of its result and further data; also returns what `shown` makes of the result."""

    def __init__(self, network, loss, shown=None) -> None:
        super().__init__()
        self.network, self.loss, self.shown = network, loss, shown

    def construct(self, x, *given):
        made = self.network(x)
        loss = self.loss(made, *given)
        return loss if self.shown is None else (loss, self.shown(made))


def squared(made, wanted):
    return ops.reduce_mean((made - wanted) * (made - wanted))


def token_loss(made, labels):
    """Mean over the labels that are not negative, as torch's with ignore_index."""
    logs = ops.log_softmax(made)
    valid = ops.cast(labels >= 0, dtype="f64")
    taken = ops.gather_d(logs, ops.expand_dims(ops.maximum(labels, np.int32(0)), axis=-1), dim=2)
    return -ops.reduce_sum(ops.squeeze(taken, axis=2) * valid) / ops.reduce_sum(valid)


def step_of(network, loss, data, optimizer=lambda p: nn.SGD(p, 0.1), shown=None, **settings):
    cell = Loss(network(), loss, shown)
    return train_step(cell, optimizer(cell.trainable_params()), *data, **settings)


def check_equal(network, loss, data, parts, steps=1, tolerance=1e-12, **settings):
    """Steps in micro batches leave what steps of the whole batch leave: results, parameters, states."""
    whole, cut = (step_of(network, loss, data, **settings, micro_batches=count) for count in (1, parts))
    verify(cut.graph)
    assert show(parse(show(cut.graph))) == show(cut.graph)
    given = whole.traced.inputs(*data)
    for _ in range(steps):
        wanted, found = evaluate(whole.graph, given), evaluate(cut.graph, given)
        for one, other in zip(wanted, found, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_allclose(other, one, rtol=tolerance, atol=tolerance)
        given = list(given)
        for out, into in whole.graph.updates.items():
            given[into] = wanted[out]
    return cut


@pytest.mark.parametrize("parts", [2, 3, 4, 6, 12])
def test_a_network_by_mean_of_squares_with_its_result(parts):
    cut = check_equal(FFN, squared, (X, Y), parts, shown=lambda made: made)
    inside = [node for node in walk(cut.graph.nodes) if node not in cut.graph.nodes]
    assert {count for node, count in runs(cut.graph).items()} == {parts}
    assert {node.name for node in inside} >= {"network.dense1.matmul", "network.dense2.matmul"}
    # Updates are done once.
    assert sum(node.op.name.startswith("SGD") for node in cut.graph.nodes) == 4
    assert not any(node.op.name.startswith("SGD") for node in inside)


@pytest.mark.parametrize("loss", ["sum", "norm", "max"])
def test_losses_by_other_reductions(loss):
    losses = {
        "sum": lambda made, wanted: ops.reduce_sum((made - wanted) * (made - wanted)),
        # The derivative at the largest row needs the largest of the whole batch: only its value is compared.
        "max": lambda made, wanted: ops.reduce_max(made * made),
        "norm": lambda made, wanted: ops.sqrt(ops.reduce_sum(made * made)),
    }
    if loss == "sum":
        check_equal(FFN, losses[loss], (X, Y), 4)
        return
    if loss == "max":
        traced = trace(Loss(FFN(), losses[loss]), X, Y)
        (one,), (other,) = (
            evaluate(graph, traced.inputs(X, Y)) for graph in (traced.graph, accumulate(traced.graph, 3))
        )
        assert one == pytest.approx(other, rel=1e-12)
    with pytest.raises(GraphError, match="which is known only after|ExtremeGrad.* needs all rows of the batch at once"):
        step_of(FFN, losses[loss], (X, Y), micro_batches=3)


def test_a_transformer_with_adam_three_steps():
    check_equal(
        lambda: set_seed(2) or Language(),
        token_loss,
        (IDS, WORDS),
        4,
        3,
        1e-9,
        optimizer=lambda p: nn.Adam(p, 0.01, eps=1e-4),
    )


@pytest.mark.parametrize("recompute", [None, "cheap"])
def test_means_over_valid_labels_are_of_the_whole_batch(recompute):
    labels = WORDS.copy()
    labels[RNG.random(labels.shape) < 0.5] = -1
    labels[::3] = -1  # rows that make up a whole micro batch: none of its labels is valid
    check_equal(lambda: set_seed(2) or Language(), token_loss, (IDS, labels), 3, recompute=recompute)


def test_masks_of_dropout_are_those_of_the_whole_batch():
    check_equal(lambda: set_seed(4) or Language(dropout=0.4).set_train(), token_loss, (IDS, WORDS), 4, 2)


def test_masks_of_dropout_where_rows_are_another_dim_or_several_elements():
    def loss(made, wanted):
        counter = ops.fill(shape=(), value=3, dtype="i32")
        turned = ops.dropout(ops.transpose(made, perm=(1, 0)), counter, rate=0.3, seed=7)
        pairs = ops.dropout(ops.reshape(made, shape=(24, 2)), counter, rate=0.6, seed=2)
        return ops.reduce_mean(turned * turned) + squared(ops.reshape(pairs, shape=(12, 4)), wanted)

    cut = check_equal(FFN, loss, (X, Y), 3)
    drawn = [node for node in walk(cut.graph.nodes) if node.op.name == "DropoutRows"]
    assert {node.attrs["dim"] for node in drawn} == {0, 1} and len(drawn) == 4


def test_parameters_that_are_used_twice_are_added_up_once():
    class Tied(Cell):
        def __init__(self) -> None:
            super().__init__()
            self.table = Parameter(np.random.default_rng(1).normal(size=(6, 4)), "table")

        def construct(self, x):
            made = ops.matmul(x, self.table)
            return ops.matmul(ops.matmul(made, ops.transpose(self.table, perm=(1, 0))), self.table)

    cut = check_equal(Tied, squared, (X, Y), 3)
    (loop,) = (node for node in cut.graph.nodes if node.op.name == "While")
    assert [value.type.shape for value in loop.results] == [(), (6, 4), ()]


def test_narrow_gradients_are_added_up_in_f32():
    pytest.importorskip("ml_dtypes")
    network = lambda: FFN("float32").to_float("bf16") if hasattr(Cell, "to_float") else FFN("bfloat16")  # noqa: E731
    x, y = X.astype(np.float32), Y.astype(np.float32)
    cut = step_of(network, lambda made, wanted: squared(ops.cast(made, dtype="f32"), wanted), (x, y), micro_batches=4)
    (loop,) = (node for node in cut.graph.nodes if node.op.name == "While")
    assert {value.type.dtype.name for value in loop.results[1:]} == {"f32"}


@pytest.mark.parametrize("search", ["batch", "megatron", "zero2"])
def test_what_is_planned_runs_on_ranks_and_is_priced_per_trip(search):
    from tests.transformer import batches, build

    data = batches(1)[0]
    found = {}
    for parts in (1, 4):
        network, optimizer = build(2, 2, eps=1e-4)
        step = train_step(network, optimizer, *data)
        planned = autoshard.plan(step, mesh="dp=2 tp=2", search=search, micro_batches=parts)
        loss = planned.run(*data)
        found[parts] = loss, {one.name: np.array(one.data) for one in network.get_parameters()}, planned.cost
    assert found[4][0] == pytest.approx(found[1][0], rel=1e-5)
    assert found[4][1].keys() == found[1][1].keys()
    for name, value in found[1][1].items():
        np.testing.assert_allclose(found[4][1][name], value, atol=1e-5)
    whole, cut = found[1][2], found[4][2]
    assert cut.compute_seconds > whole.compute_seconds and cut.seconds > whole.seconds


def test_activations_of_one_micro_batch_are_held_at_a_time():
    def peak(parts: int) -> int:
        cell = Loss(Language(3, seq=16), token_loss)
        ids, words = np.zeros((48, 16), np.int32), np.zeros((48, 16), np.int32)
        step = train_step(cell, nn.SGD(cell.trainable_params(), 0.1), ids, words, micro_batches=parts)
        return autoshard.plan(step, devices=2, search="batch").cost.peak_memory_bytes

    whole, cut = peak(1), peak(8)
    assert cut < whole / 3


class Normed(Cell):
    def __init__(self, training: bool) -> None:
        super().__init__()
        self.weight = Parameter(np.random.default_rng(1).normal(size=(6, 4)), "weight")
        self.training_mode = training

    def construct(self, x):
        made = ops.matmul(x, self.weight)
        if self.training_mode:
            mean = ops.reduce_mean(made, axis=0)
            made = (made - mean) * ops.rsqrt(ops.reduce_mean((made - mean) * (made - mean), axis=0) + 1e-5)
        return made


def test_statistics_of_the_batch_are_refused_and_fixed_ones_are_not():
    with pytest.raises(GraphError, match=r"network\.sub \(Sub\).*statistics of a batch normalization"):
        step_of(lambda: Normed(True), squared, (X, Y), micro_batches=2)
    check_equal(lambda: Normed(False), squared, (X, Y), 2)


def test_statistics_of_the_data_are_made_before_the_first_micro_batch():
    def loss(made, wanted):
        mean = ops.reduce_mean(wanted, axis=0)
        return squared(made, (wanted - mean) / ops.sqrt(ops.reduce_mean(wanted * wanted)))

    check_equal(FFN, loss, (X, Y), 4)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda made, y: ops.reduce_mean(ops.matmul(made, ops.transpose(made, perm=(1, 0)))), "sets rows of the batch"),
        (lambda made, y: ops.reduce_mean(ops.softmax(made, axis=0)), "needs all rows of the batch at once"),
        (lambda made, y: ops.reduce_mean(ops.cum_sum(made, axis=0)), "needs all rows of the batch at once"),
    ],
)
def test_operators_that_need_the_whole_batch_are_refused_by_name(loss, message):
    with pytest.raises(GraphError, match=message) as caught:
        step_of(FFN, loss, (X, Y), micro_batches=2)
    assert "cannot be cut into 2 micro batches" in str(caught.value) and "test_micro_batches.py" in str(caught.value)


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (5, "x has 12 rows, which 5 does not divide; 1, 2, 3, 4, 6, 12 would"),
        (0, "into 0 micro batches: give a number from 1 on"),
        (2.0, "into 2.0 micro batches"),
        (True, "into True micro batches"),
    ],
)
def test_numbers_of_micro_batches_that_cannot_be(count, message):
    with pytest.raises(GraphError, match=message):
        accumulate(trace(Loss(FFN(), squared), X, Y).graph, count)


def test_graphs_without_a_batch_are_refused():
    with pytest.raises(GraphError, match="no data input has a batch dim"):
        accumulate(trace(lambda x: x + 1, np.float32(2)).graph, 2)


def test_one_micro_batch_is_the_step_itself():
    graph = trace(Loss(FFN(), squared), X, Y).graph
    assert accumulate(graph, 1) is graph


def test_modules_are_not_cut():
    with pytest.raises(PlanError, match="does not say which of its inputs are data"):
        autoshard.plan("sample_code/06_shardings_by_rule/mlp.mlir", micro_batches=2)


@pytest.mark.torch
def test_a_model_of_torch():
    torch = pytest.importorskip("torch")

    class Tagger(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(30, 12)
            self.layer = torch.nn.TransformerEncoderLayer(12, 2, 20, dropout=0.0, batch_first=True)
            self.head = torch.nn.Linear(12, 7)

        def forward(self, ids, labels):
            made = self.head(self.layer(self.table(ids)))
            return torch.nn.functional.cross_entropy(made.flatten(0, 1), labels.flatten())

    torch.manual_seed(0)
    ids, labels = torch.randint(0, 30, (6, 9)), torch.randint(0, 7, (6, 9))
    labels[1::2, 4:] = -100  # torch leaves these out of the mean
    labels[0::3] = -100  # none is left in the first micro batch
    model = autoshard.from_torch(
        Tagger(), (ids, labels), loss="output", optimizer=lambda params: nn.Momentum(params, 0.1, 0.9)
    )
    step = model.traced
    cut = accumulate(step.graph, 3)
    given = step.inputs(*model.example_arrays)
    for one, other in zip(evaluate(step.graph, given), evaluate(cut, given), strict=True):
        np.testing.assert_allclose(other, one, rtol=2e-4, atol=2e-5)
