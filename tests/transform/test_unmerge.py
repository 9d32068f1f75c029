"""unmerged keeps what a graph computes, and works on rows of several dims where people flattened them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from autoshard import from_torch, nn, ops, optim
from autoshard.core.tensortype import TensorType
from autoshard.ir.graph import Graph
from autoshard.ir.verify import verify
from autoshard.trace import evaluate, trace
from autoshard.transform.train import train_step
from autoshard.transform.unmerge import unmerged

RNG = np.random.default_rng(0)
X, W, B = (RNG.normal(size=shape).astype(np.float32) for shape in ((4, 6, 10), (10, 14), (14,)))
LABELS = RNG.integers(0, 14, size=(4, 6)).astype(np.int32)


def made(function: Callable, *arrays: np.ndarray) -> Graph:
    """The graph without flattened rows, which computes the same."""
    graph = trace(function, *arrays).graph
    found = unmerged(graph)
    verify(found)
    for got, want in zip(evaluate(found, arrays), evaluate(graph, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    return found


def shapes(graph: Graph) -> set[tuple[int, ...]]:
    return {value.type.shape for value in graph.values}


def dense(x, w, b):
    return ops.reshape(ops.matmul(ops.reshape(x, (24, 10)), w) + b, (4, 6, 14))


def test_a_product_of_rows_and_its_bias_have_the_dims_of_the_rows() -> None:
    assert not any(shape[:1] == (24,) for shape in shapes(made(dense, X, W, B)))


def test_rows_go_on_into_heads() -> None:
    def heads(x, w):
        return ops.reshape(ops.matmul(ops.reshape(x, (24, 10)), w), (4, 6, 2, 7))

    assert not any(shape[:1] == (24,) for shape in shapes(made(heads, X, W)))


def test_rows_whose_other_dims_are_turned() -> None:
    """Heads flattened with their samples, and keys turned before they meet queries."""
    q, k = (RNG.normal(size=(4, 3, 5, 7)).astype(np.float32) for _ in range(2))

    def scores(q, k):
        q, k = (ops.reshape(one, (12, 5, 7)) for one in (q, k))
        return ops.reshape(ops.lookup("BatchMatMul")(q, ops.transpose(k, (0, 2, 1))), (4, 3, 5, 5))

    assert not any(shape[:1] == (12,) for shape in shapes(made(scores, q, k)))


def test_normed_rows_and_what_is_added_behind() -> None:
    def block(x, w, b):
        rows = ops.reshape(x, (24, 10))
        normed = ops.lookup("LayerNorm")(rows, w[:, 0], w[:, 1], begin_norm_axis=1, epsilon=1e-5)
        return ops.reshape(rows + ops.matmul(ops.relu(ops.matmul(normed, w) + b), ops.transpose(w, (1, 0))), (4, 6, 10))

    assert not any(shape[:1] == (24,) for shape in shapes(made(block, X, W, B)))


def test_a_loss_of_flattened_words_is_one_of_words_as_they_were() -> None:
    def loss(x, w, labels):
        logits = ops.reshape(ops.matmul(x, w), (24, 14))
        rows = ops.SparseSoftmaxCrossEntropyWithLogits()(logits, ops.reshape(labels, (24,)))
        return ops.reduce_sum(rows), ops.reduce_sum(ops.softmax(logits, axis=1), axis=0)

    assert not any(shape[:1] == (24,) for shape in shapes(made(loss, X, W, LABELS)))


@pytest.mark.parametrize(
    "needs",
    [
        lambda rows: rows,
        lambda rows: ops.reshape(ops.cum_sum(rows, 0), (4, 6, 10)),
        lambda rows: ops.reshape(ops.matmul(ops.transpose(rows, (1, 0)), rows), (100,)),
        lambda rows: ops.reshape(rows[1:21], (4, 5, 10)),
        lambda rows: ops.reshape(rows, (6, 4, 10)),
    ],
    ids=["an output", "a sum along rows", "turned rows", "some rows", "other dims"],
)
def test_rows_that_something_needs_flattened_stay(needs: Callable) -> None:
    def function(x):
        rows = ops.relu(ops.reshape(x, (24, 10)))
        return needs(rows), ops.reshape(rows, (4, 6, 10))

    graph = trace(function, X).graph
    assert unmerged(graph) is graph
    made(function, X)


def test_numbers_for_each_row_are_taken_apart() -> None:
    """Numbers that never had several dims of rows, such as noise for each token's experts."""
    noise = RNG.normal(size=(24, 14)).astype(np.float32)

    def routed(x, w, noise):
        return ops.reshape(
            ops.softmax(ops.matmul(ops.reshape(x, (24, 10)), w) + ops.log(ops.square(noise))), (4, 6, 14)
        )

    found = made(routed, X, W, noise)
    assert {value.type.shape for value in found.values if value.type.shape[:1] == (24,)} == {(24, 14)}
    product = next(node for node in found.nodes if node.op.name == "MatMul")
    assert product.result_types[0].shape == (4, 6, 14)


@pytest.mark.torch
def test_gradients_that_people_wrote_lie_as_their_rows() -> None:
    torch = pytest.importorskip("torch")

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx, slope):
            x, y = ctx.saved_tensors
            return 2 * slope * y, slope * x

    class Rows(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(10, 14)

        def forward(self, x):
            rows = self.inner(x.reshape(24, 10))
            return Twice.apply(rows, torch.tanh(rows)).reshape(4, 6, 14).square().sum()

    model = Rows()
    x = torch.from_numpy(X)
    traced = from_torch(model, (x,), loss=lambda made, x: made, optimizer=lambda params: optim.SGD(params, 0.1)).traced
    assert not any(shape[:1] == (24,) for shape in shapes(traced.graph))
    model(x).backward()
    weight = model.inner.weight
    found = dict(zip(traced.graph.outputs, evaluate(traced.graph, traced.inputs(X)), strict=True))
    new = next(array for value, array in found.items() if array.shape == (14, 10))
    np.testing.assert_allclose(new, (weight - 0.1 * weight.grad).detach(), rtol=1e-4, atol=1e-5)


def test_rows_that_meet_rows_flattened_elsewhere_stay() -> None:
    def function(x, y):
        return ops.reshape(ops.reshape(x, (24, 10)) + ops.reshape(y, (24, 10)), (4, 6, 10))

    graph = trace(function, X, RNG.normal(size=(3, 8, 10)).astype(np.float32)).graph
    assert unmerged(graph) is graph


def test_annotated_operators_stay_and_what_they_use() -> None:
    product = ops.MatMul().shard(((2, 1), (1, 1)))
    traced = trace(lambda x, w: ops.reshape(product(ops.reshape(x, (24, 10)), w), (4, 6, 14)), X, W)
    assert unmerged(traced.graph, traced.annotations) is traced.graph


def test_gradients_of_unmerged_rows_are_the_same() -> None:
    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.dense, self.loss = nn.Dense(10, 14), nn.MSELoss()

        def construct(self, x, y):
            return self.loss(ops.reshape(self.dense(ops.reshape(x, (24, 10))), (4, 6, 14)), y)

    of, to = TensorType.of((4, 6, 10), "f32"), TensorType.of((4, 6, 14), "f32")
    network = Net()
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    plain = train_step(network, optimizer, of, to).traced.graph
    rows = train_step(network, optimizer, of, to, rewrite=unmerged).traced.graph
    assert not any(shape[:1] == (24,) for shape in shapes(rows))
    arrays = [RNG.normal(size=value.type.shape).astype(np.float32) for value in plain.inputs]
    for got, want in zip(evaluate(rows, arrays), evaluate(plain, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("blocks", "room"), [(24, 1), (8, 3), (4, 12)])
def test_tokens_go_to_experts_sample_by_sample(blocks: int, room: int) -> None:
    def experts(x, router, w, b):
        rows = ops.reshape(x, (24, 10))
        scores = ops.reshape(ops.softmax(ops.matmul(rows, router)), (24, 2, 3))
        some = ops.broadcast_to(ops.reduce_sum(scores, axis=2, keep_dims=True), (24, 2, 3))
        gates, chosen = ops.top_k(ops.reshape(scores * some, (24, 6)), 2)
        ones = ops.fill(shape=(24, 2), value=1, dtype="f32")
        sent = ops.dispatch_tokens(rows, chosen, ones, experts=6, blocks=blocks, room=room)
        wide, narrow = ops.split(ops.batch_matmul(sent, w) + b, axis=2, output_num=2)
        some = ops.concat((wide[:, :, 0:5:2], narrow[:, :, 1:3]), axis=2)
        made = ops.batch_matmul(ops.relu(some) * wide, w[:, :, :5], transpose_b=True)
        back = ops.combine_tokens(made, chosen, gates, blocks=blocks, room=room)
        return ops.reshape(back, (4, 6, 10))

    arrays = X, RNG.normal(size=(10, 6)), RNG.normal(size=(6, 10, 10)), RNG.normal(size=(6, 1, 10))
    found = shapes(made(experts, *(one.astype(np.float32) / 8 for one in arrays)))
    assert not any(shape[:1] == (24,) for shape in found) and (4, 6, blocks * room // 4, 10) in found
