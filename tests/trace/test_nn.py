"""Layers: traced equals eager, eager equals formulas written here, every primitive can be annotated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from autoshard import nn, ops, plan
from autoshard.trace import set_seed, trace
from autoshard.transform import train_step
from autoshard.util.errors import ShapeError, UnknownNameError
from tests.trace.models import Language

RNG = np.random.default_rng(5)
X = RNG.normal(size=(4, 6, 12))
CELLS = {
    "dense": nn.Dense(12, 10, dtype="f64"),
    "dense_bare": nn.Dense(12, 10, has_bias=False, activation="relu", dtype="f64"),
    "layer_norm": nn.LayerNorm(12, dtype="f64"),
    "layer_norm_2": nn.LayerNorm((6, 12), -2, -2, "normal", "normal", dtype="f64"),
    "rms_norm": nn.RMSNorm(12, "normal", dtype="f64"),
    "relu": nn.ReLU(),
    "gelu": nn.GELU(),
    "gelu_erf": nn.GELU(approximate=False),
    "silu": nn.SiLU(),
    "tanh": nn.Tanh(),
    "sigmoid": nn.Sigmoid(),
    "softmax": nn.Softmax(axis=1),
    "log_softmax": nn.LogSoftmax(),
    "flatten": nn.Flatten(),
    "attention": nn.MultiHeadAttention(12, 3, dtype="f64"),
    "attention_causal": nn.MultiHeadAttention(12, 4, causal=True, has_bias=False, dtype="f64"),
    "feed_forward": nn.FeedForward(12, 20, "silu", dtype="f64"),
    "encoder": nn.TransformerBlock(12, 3, 20, norm="rms_norm", dtype="f64"),
    "sequence": nn.SequentialCell(nn.Dense(12, 24, dtype="f64"), nn.Tanh(), nn.Dense(24, 10, dtype="f64")),
    "dropout_off": nn.Dropout(0.5),
}


@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
def test_traced_equals_eager(cell) -> None:
    traced = trace(cell, X)
    got = traced(X)
    np.testing.assert_allclose(got, cell(X), rtol=1e-12, atol=1e-14)
    assert traced.graph.outputs[0].type.shape == got.shape
    assert len({node.name for node in traced.graph.nodes}) == len(traced.graph.nodes)


def test_dense_is_a_product_with_the_transposed_weight() -> None:
    dense = nn.Dense(12, 10, bias_init="normal", activation="tanh", dtype="f64")
    want = np.tanh(X @ dense.weight.data.T + dense.bias.data)
    np.testing.assert_allclose(dense(X), want, rtol=1e-12)
    assert dense.weight.shape == (10, 12)
    with pytest.raises(UnknownNameError, match="unknown activation 'rleu'; known are softmax"):
        nn.Dense(12, 10, activation="rleu")


def test_embedding_takes_rows() -> None:
    ids = np.array([[3, 0, 23], [7, 7, 1]], np.int32)
    cell = nn.Embedding(24, 10)
    np.testing.assert_array_equal(trace(cell, ids)(ids), cell.embedding_table.data[ids])
    np.testing.assert_array_equal(cell(ids), cell.embedding_table.data[ids])


def attention_formula(cell: nn.MultiHeadAttention, x: np.ndarray, memory: np.ndarray, hidden: np.ndarray) -> np.ndarray:
    def heads(dense: nn.Dense, rows: np.ndarray) -> np.ndarray:
        rows = rows @ dense.weight.data.T + dense.bias.data
        return rows.reshape(rows.shape[0], rows.shape[1], cell.num_heads, -1)

    query, key, value = heads(cell.query, x), heads(cell.key, memory), heads(cell.value, memory)
    scores = np.einsum("bshd,bthd->bhst", query, key) / np.sqrt(query.shape[-1])
    weights = softmax(np.where(hidden, -np.inf, scores), axis=-1)
    context = np.einsum("bhst,bthd->bshd", weights, value).reshape(x.shape)
    return context @ cell.output.weight.data.T + cell.output.bias.data


def test_attention_is_the_formula() -> None:
    later = np.arange(6)[None, :] > np.arange(6)[:, None]
    cell = nn.MultiHeadAttention(12, 3, causal=True, dtype="f64")
    np.testing.assert_allclose(cell(X), attention_formula(cell, X, X, later), rtol=1e-10, atol=1e-12)
    memory, mask = RNG.normal(size=(4, 10, 12)), RNG.random((4, 1, 6, 10)) < 0.3
    across = nn.MultiHeadAttention(12, 4, dtype="f64")
    want = attention_formula(across, X, memory, mask)
    np.testing.assert_allclose(across(X, memory, mask), want, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(trace(across, X, memory, mask)(X, memory, mask), want, rtol=1e-10, atol=1e-12)


def test_flattened_tokens() -> None:
    cell = nn.MultiHeadAttention(12, 3, causal=True, seq_length=6, dtype="f64")
    flat = X.reshape(24, 12)
    np.testing.assert_allclose(cell(flat).reshape(X.shape), cell(X), rtol=1e-10, atol=1e-12)
    net = Language(1, seq=6)
    ids = RNG.integers(0, 24, (4, 6)).astype(np.int32)
    np.testing.assert_allclose(net(ids.reshape(24)).reshape(4, 6, 10), net(ids), rtol=1e-10, atol=1e-12)
    with pytest.raises(ShapeError, match=r"flattened tokens \(24, 12\) need seq_length, a divisor of 24, not None"):
        nn.MultiHeadAttention(12, 3, dtype="f64")(flat)
    with pytest.raises(ShapeError, match="5 heads do not divide hidden_size 12"):
        nn.MultiHeadAttention(12, 5)


def test_dropout_while_training() -> None:
    set_seed(3)
    x = np.ones((24, 60), np.float32)
    eager, cell = nn.Dropout(p=0.25, seed=11).set_train(), nn.Dropout(p=0.25, seed=11).set_train()
    traced = trace(cell, x)
    assert traced.graph.roles == ("data", "state")
    first, second = traced(x), traced(x)
    np.testing.assert_array_equal(first, eager(x))
    np.testing.assert_array_equal(second, eager(x))
    assert not np.array_equal(first, second) and cell.counter.data == 2
    assert set(np.unique(first)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs((first == 0).mean() - 0.25) < 0.05
    np.testing.assert_array_equal(eager.set_train(False)(x), x)
    assert nn.Dropout().dropout.attrs["seed"] != nn.Dropout().dropout.attrs["seed"]
    with pytest.raises(ShapeError, match="p is 1"):
        nn.Dropout(p=1)


def test_losses_are_the_formulas() -> None:
    logits, classes = RNG.normal(size=(24, 10)), RNG.integers(0, 10, 24).astype(np.int32)
    labels = softmax(RNG.normal(size=(24, 10)), axis=-1)
    by_class = -log_softmax(logits, axis=-1)[np.arange(24), classes]
    by_label = -(labels * log_softmax(logits, axis=-1)).sum(-1)
    cases = [
        (nn.SoftmaxCrossEntropyWithLogits(), labels, by_label),
        (nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"), classes, by_class.mean()),
        (nn.SoftmaxCrossEntropyWithLogits(reduction="sum"), labels, by_label.sum()),
        (nn.CrossEntropyLoss(), classes, by_class.mean()),
        (nn.CrossEntropyLoss(reduction="none"), labels, by_label),
        (nn.MSELoss(), labels, ((logits - labels) ** 2).mean()),
        (nn.MSELoss("sum"), labels, ((logits - labels) ** 2).sum()),
        (nn.MSELoss("none"), labels, (logits - labels) ** 2),
    ]
    for loss, target, want in cases:
        np.testing.assert_allclose(loss(logits, target), want, rtol=1e-12)
        np.testing.assert_allclose(trace(loss, logits, target)(logits, target), want, rtol=1e-12)
    with pytest.raises(ShapeError, match="reduction is 'avg'; it is one of none, mean, sum"):
        nn.CrossEntropyLoss(reduction="avg")


def test_with_loss_cell_names() -> None:
    net = nn.Dense(12, 10, dtype="f64")
    traced = trace(nn.WithLossCell(net, nn.MSELoss()), X, np.zeros((4, 6, 10)))
    assert [node.name for node in traced.graph.nodes] == ["matmul", "bias_add", "loss_fn.mse_loss"]
    assert [value.name for value in traced.graph.inputs] == ["data0", "data1", "weight", "bias"]


class Attending(nn.Cell):
    """Attention and a loss of it; `annotated` is a primitive of the attention, and how it is split."""

    def __init__(self, annotated: str = "", parts: tuple = ()) -> None:
        super().__init__()
        self.attention = nn.MultiHeadAttention(12, 6, causal=True, dropout=0.3)
        if annotated:
            getattr(self.attention, annotated).shard(parts)

    def construct(self, x: Any) -> Any:
        return ops.reduce_mean(ops.square(self.attention(x)))


def trained(net: nn.Cell, x: np.ndarray, **options: Any) -> tuple[Any, list[np.ndarray]]:
    """What is planned of a step of training, and what parameters become."""
    net.set_train()
    step = train_step(net, nn.SGD(net.trainable_params(), 0.5), x, **options)
    planned = plan(step, devices=4, search="optimal")
    planned.run(x)
    return planned, [np.asarray(one.asnumpy()) for one in net.trainable_params()]


@pytest.mark.parametrize("annotated", ["", "scores", "masked", "softmax", "context", "heads_first"])
def test_attention_is_one_operator_but_for_annotated_ones(annotated: str) -> None:
    x = np.random.default_rng(2).normal(size=(4, 10, 12)).astype(np.float32)
    parts = {"": (), "softmax": ((2, 2, 1, 1),), "masked": ((2, 2, 1, 1), (1, 1)), "heads_first": ((2, 1, 2, 1),)}
    found = []
    for options in ({}, {"rewrite": None}):
        set_seed(3)
        net = Attending(annotated, parts.get(annotated, ((2, 2, 1, 1),) * 2))
        planned, parameters = trained(net, x, **options)
        names = [node.op.name for node in planned.graph.nodes]
        joins = not options and annotated in ("", "heads_first")
        assert (names.count("Attention"), names.count("Softmax")) == ((1, 0) if joins else (0, 1))
        causes = [planned.plan.decisions[node].cause.kind for node in planned.graph.nodes]
        assert causes.count("configured") == (3 if annotated == "heads_first" else bool(annotated))
        found.append(parameters)
    for ours, apart in zip(*found, strict=True):
        np.testing.assert_allclose(ours, apart, rtol=1e-4, atol=1e-6)


def test_every_primitive_of_a_block_can_be_annotated() -> None:
    net = Language(1)
    net.layers[0].attention.query.matmul.shard(((2, 1, 1), (2, 1)))
    net.layers[0].attention.softmax.shard(((2, 3, 1, 1),))
    traced = trace(net, np.zeros((4, 6), np.int32))
    assert [node.name for node in traced.annotations] == [
        "layers.0.attention.query.matmul",
        "layers.0.attention.softmax",
    ]
