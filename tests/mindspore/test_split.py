"""Operators and layers under MindSpore's names, split as their `shard` says: the numbers of the whole."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import autoshard as ash
import autoshard.mindspore as ms
from autoshard.exporters.mindspore import save_checkpoint, shard_lines
from autoshard.mindspore import nn, ops
from autoshard.mindspore.planning import with_strategies
from autoshard.transform import train_step
from autoshard.util.errors import ShapeError, StrategyError

RNG = np.random.default_rng(2)


def f(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


IMAGE, ROWS = f(4, 6, 8, 10), f(8, 12)
HEADS = [f(4, 6, 8, 4) for _ in range(3)]
TOKENS = [f(4, 8, 24) for _ in range(3)]
IDS = np.array([0, 5, 3, 3, 1, 2, 7, 6], np.int32)
PROB = 1 / (1 + np.exp(-f(8, 12)))
SCALE = np.abs(f(6)) + 0.5


class First:
    """A primitive of several results, of which the first is asked."""

    def __init__(self, primitive: Any) -> None:
        self.primitive, self.operator = primitive, primitive.operator

    def shard(self, strategy: tuple) -> First:
        self.primitive.shard(strategy)
        return self

    def __call__(self, *operands: Any) -> Any:
        return self.primitive(*operands)[0]


class Repeated(First):
    """A primitive with a last operand that is no tensor."""

    def __init__(self, primitive: Any, last: Any) -> None:
        super().__init__(primitive)
        self.last = last

    def __call__(self, *operands: Any) -> Any:
        return self.primitive(*operands, self.last)


# What is made, its operands, and strategies.
CASES: dict[str, tuple[Any, list[np.ndarray], list[tuple]]] = {
    "Conv2D": (lambda: ops.Conv2D(4, 3, pad_mode="same"), [IMAGE, f(4, 6, 3, 3)], [
        ((2, 1, 1, 1), (4, 1, 1, 1)), ((1, 2, 1, 1), (2, 2, 1, 1)), ((4, 2, 1, 1), (1, 2, 1, 1)),
        ((2, 1, 4, 1), (1, 1, 1, 1)),
    ]),
    "BatchNorm": (lambda: First(ops.BatchNorm()), [IMAGE, *[SCALE] * 4], [((2, 2, 1, 1), *((2,),) * 4)]),
    "BatchNorm-training": (lambda: First(ops.BatchNorm(True)), [IMAGE, *[SCALE] * 4], [
        ((1, 2, 1, 1), *((2,),) * 4), ((4, 2, 1, 1), *((2,),) * 4),
    ]),
    "MaxPool": (lambda: ops.MaxPool(2, 2), [IMAGE], [((2, 2, 1, 1),), ((1, 1, 4, 1),)]),
    "AvgPool": (lambda: ops.AvgPool(3, 1, "same"), [IMAGE], [((4, 2, 1, 1),), ((2, 1, 2, 1),)]),
    "PReLU": (lambda: ops.PReLU(), [IMAGE, SCALE], [((2, 2, 1, 1), (2,)), ((4, 1, 2, 1), (1,))]),
    "Elu": (lambda: ops.Elu(), [ROWS], [((2, 4),)]),
    "BiasAdd": (lambda: ops.BiasAdd(), [IMAGE, SCALE], [((2, 2, 1, 1), (2,)), ((4, 1, 2, 1), (1,))]),
    "RealDiv": (lambda: ops.RealDiv(), [ROWS, np.abs(f(12)) + 1], [((2, 4), (4,))]),
    "Argmax": (lambda: ops.Argmax(), [ROWS], [((8, 1),), ((2, 1),)]),
    "Gather": (lambda: ops.Gather(), [ROWS, IDS], [((8, 1), (1,)), ((1, 2), (4,))]),
    "Lerp": (lambda: ops.Lerp(), [ROWS, ROWS + 1, ROWS * 2], [((2, 4), (2, 4), (2, 4))]),
    "IsNan": (lambda: ops.IsNan(), [np.where(ROWS > 0, ROWS, np.nan)], [((2, 4),)]),
    "HShrink": (lambda: ops.HShrink(), [ROWS], [((2, 4),)]),
    "SmoothL1Loss": (lambda: ops.SmoothL1Loss(), [ROWS, ROWS * 2], [((2, 4), (2, 4))]),
    "BinaryCrossEntropy": (lambda: ops.BinaryCrossEntropy("none"), [PROB, PROB[::-1], ROWS], [((2, 4),) * 3]),
    "BCEWithLogitsLoss": (lambda: ops.BCEWithLogitsLoss(reduction="none"), [ROWS, PROB, ROWS, PROB], [((2, 4),) * 4]),
    "NLLLoss": (lambda: First(ops.NLLLoss()), [ROWS, IDS, PROB[0]], [((8, 1), (8,), (1,))]),
    "GatherNd": (lambda: ops.GatherNd(), [IMAGE, np.stack([IDS % 4, IDS % 6], -1)], [
        ((1, 1, 2, 1), (4, 1)), ((1, 1, 1, 2), (1, 1)), ((1, 1, 1, 1), (8, 1)),
    ]),
    "TensorScatterUpdate": (lambda: ops.TensorScatterUpdate(), [ROWS, IDS[:4, None], f(4, 12)], [
        ((1, 4), (1, 1), (1, 4)),
    ]),
    "EmbeddingLookup": (lambda: Repeated(ops.EmbeddingLookup(), 1), [ROWS, IDS], [((1, 2), (4,)), ((8, 1), (1,))]),
    "Tile": (lambda: Repeated(ops.Tile(), (8, 1)), [ROWS[:1]], [((8, 1),), ((4, 2),)]),
    "Tile-rows": (lambda: Repeated(ops.Tile(), (4, 2)), [ROWS], [((4, 2),), ((2, 1),)]),
    "Tile-lead": (lambda: Repeated(ops.Tile(), (2, 1, 1)), [ROWS], [((2, 4, 1),), ((1, 2, 2),)]),
    "MaskedFill": (lambda: Repeated(ops.MaskedFill(), 0.5), [ROWS, ROWS > 0], [
        ((4, 2), (4, 2), ()), ((2, 1), (2, 1)),
    ]),
    "FlashAttentionScore": (lambda: ops.FlashAttentionScore(6, scale_value=0.5, input_layout="BNSD"), HEADS, [
        ((2, 2, 1, 1),) * 3, ((4, 1, 2, 1), (4, 1, 1, 1), (4, 1, 1, 1)),
    ]),
    "FlashAttentionScore-BSH": (lambda: ops.FlashAttentionScore(6, scale_value=0.5), TOKENS, [((2, 1, 2),) * 3]),
}  # fmt: skip


def masked(made: Any) -> Any:
    """What hides keys is called last."""
    return lambda q, k, v, shift, mask: made(q, k, v, shift, None, None, mask)


@pytest.mark.parametrize("layout", ["BNSD", "BSH"])
def test_masks_of_attention_are_split_as_it_is(layout: str) -> None:
    """A strategy may name masks, as MindSpore's do, or not; scores lie nowhere."""
    operands = HEADS if layout == "BNSD" else TOKENS
    tokens = operands[0].shape[2 if layout == "BNSD" else 1]
    shift = RNG.normal(size=(1, 6, tokens, tokens)).astype(np.float32)
    hidden = RNG.uniform(size=(4, 1, tokens, tokens)) > 0.6
    one = ((2, 2, 1, 1) if layout == "BNSD" else (2, 1, 2),) * 3
    for mask, strategy in ((hidden, one), (hidden[0, 0].astype(np.uint8), (*one, (1, 2, 1, 1), (1, 1)))):
        make = ops.FlashAttentionScore(6, scale_value=0.5, input_layout=layout)
        whole = first(masked(make)(*operands, shift, mask))
        scores = masked(make.shard(strategy))
        planned = ash.plan(lambda *xs, by=scores: first(by(*xs)), (*operands, shift, mask), devices=8)
        (node,) = [node for node in planned.graph.nodes if node.op is make.operator]
        assert planned.plan.decisions[node].cause.kind == "configured"
        assert planned.plan.strategy(node).in_strategy[3] == (1, 2, 1, 1)
        np.testing.assert_allclose(planned.run(*operands, shift, mask), whole, rtol=2e-5, atol=2e-6)
    with pytest.raises(ShapeError, match=r"attn_mask is \(3, 3\); scores are \(4, 6, "):
        masked(ops.FlashAttentionScore(6, input_layout=layout))(*operands, shift, hidden[0, 0, :3, :3])


def first(result: Any) -> Any:
    """The tensor of a result that is asked of: the last that there is."""
    return [one for one in result if one is not None][-1] if isinstance(result, tuple) else result


@pytest.mark.parametrize("name", CASES)
def test_split_equals_whole(name: str) -> None:
    make, operands, strategies = CASES[name]
    more = (0,) if name == "Gather" else ()
    whole = first(make()(*operands, *more))
    for strategy in strategies:
        primitive = make().shard(strategy)
        planned = ash.plan(lambda *xs, held=primitive: first(held(*xs, *more)), tuple(operands), devices=8)
        made = [node for node in planned.graph.nodes if node.op is primitive.operator]
        assert made and planned.plan.decisions[made[0]].cause.kind == "configured"
        np.testing.assert_allclose(planned.run(*operands), whole, rtol=2e-5, atol=2e-6)


# Per primitive its strategy in MindSpore's Layouts, written as the names of axes of each dim; "" is whole, None ().
LAYOUTS = {
    "MaxPool": ("dp,mp,,",), "AvgPool": ("dp,mp,,",), "PReLU": ("dp,mp,,", "mp"), "BiasAdd": ("dp,mp,,", "mp"),
    "BatchNorm-training": ("dp,mp,,", *["mp"] * 4), "FlashAttentionScore": ("dp,mp,sp,", "dp,mp,,", "dp,mp,,"),
    "FlashAttentionScore-BSH": ("dp,sp,mp", "dp,,mp", "dp,,mp"), "Tile-rows": ("dp,mp",),
    "MaskedFill": ("dp.sp,mp", "dp.sp,mp", None),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_say_the_same_as_tuples(name: str) -> None:
    """Also where a primitive's operands are other tensors than MindSpore has strategies for."""
    make, operands, _ = CASES[name]
    layout = ms.Layout((2, 2, 2), ("dp", "mp", "sp"))

    def entry(text: str | None) -> Any:
        return () if text is None else layout(*(tuple(one.split(".")) if one else "None" for one in text.split(",")))

    given = tuple(entry(one) for one in LAYOUTS[name])
    whole = first(make()(*operands))
    primitive = make().shard(given)
    planned = ash.plan(lambda *xs: first(primitive(*xs)), tuple(operands), devices=8)
    (made,) = [node for node in planned.graph.nodes if planned.plan.decisions[node].cause.kind == "configured"]
    assert math.prod(planned.plan.strategy(made).parts) >= 4
    np.testing.assert_allclose(planned.run(*operands), whole, rtol=2e-5, atol=2e-6)


def test_layouts_of_dropout_and_one_hot() -> None:
    layout, values = ms.Layout((2, 4), ("dp", "mp")), (np.float32(1), np.float32(0))
    drop, one_hot = ops.Dropout(0.5).shard((layout("dp", "mp"),)), ops.OneHot().shard((layout("dp", "mp"), (), ()))
    planned = ash.plan(lambda x, ids: (drop(x)[0], one_hot(ids, 12, *values)), (ROWS, IDS), devices=8)
    nodes = {node.op.name: planned.plan.strategy(node) for node in planned.graph.nodes}
    assert nodes["Dropout"].in_strategy[0] == (2, 4) and nodes["OneHot"].out_strategy == ((2, 4),)
    np.testing.assert_array_equal(planned.run(ROWS, IDS)[1], np.eye(12)[IDS])


def test_a_strategy_of_another_form_names_the_operator_and_the_line() -> None:
    net: Any = nn.Cell()
    net.bias, net.prelu = ops.BiasAdd(), ops.PReLU()
    with pytest.raises(
        StrategyError, match=r"bias.shard at .*test_split.py:\d+: in_strategy is .*; it is \(parts of x"
    ):
        net.bias.shard(((2, 2),))
    with pytest.raises(StrategyError, match=r"prelu.shard at .*so that the second one is \(4,\)"):
        net.prelu.shard(((2, 4), (2,)))


def test_a_strategy_that_does_not_fit_names_the_primitive_and_what_would() -> None:
    pool = ops.MaxPool(2, 2).shard(((3, 1, 1, 1),))
    with pytest.raises(StrategyError, match=r"\(MaxPool\) at .*size 4, which 3 parts do not divide; 1, 2, 4 do"):
        ash.plan(lambda x: pool(x), (IMAGE,), devices=8)


def test_each_dropout_of_a_cell_has_a_state_of_its_own() -> None:
    class Two(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = ops.Dropout(0.5), ops.Dropout(0.5)

        def construct(self, x: Any) -> Any:
            return self.a(x)[0] + self.b(x)[0]

    assert set(Two().parameters_dict()) == {"a_counter", "b_counter"}


def test_a_filled_value_that_is_a_tensor_has_an_entry_of_its_own() -> None:
    fill, operands = ops.MaskedFill().shard(((4, 2), (4, 2), ())), (ROWS, ROWS > 0, np.float32(0.5))
    planned = ash.plan(lambda x, mask, value: fill(x, mask, value), operands, devices=8)
    (node,) = [node for node in planned.graph.nodes if node.op.name == "Select"]
    assert planned.plan.decisions[node].cause.kind == "configured"
    np.testing.assert_array_equal(planned.run(*operands), np.where(ROWS > 0, np.float32(0.5), ROWS))


def test_one_hot_takes_and_tells_mindspores_strategy() -> None:
    values = np.float32(1), np.float32(0)
    one_hot = ops.OneHot().shard(((2, 4), (), ()))
    planned = ash.plan(lambda ids: one_hot(ids, 12, *values) * 1.0, (IDS,), devices=8)
    (node,) = [node for node in planned.graph.nodes if node.op.name == "OneHot"]
    assert planned.plan.strategy(node).out_strategy == ((2, 4),)
    assert "one_hot.shard(((2, 4), (), ()))  # OneHot" in shard_lines(planned.plan)
    np.testing.assert_array_equal(planned.run(IDS), np.eye(12)[IDS])
    with pytest.raises(StrategyError, match=r"it is \(parts of the result, \(\), \(\)\)"):
        ops.OneHot().shard(((8,),))


@pytest.mark.parametrize("name", ["Tile", "Tile-rows", "Tile-lead", "OneHot"])
def test_files_have_mindspores_strategies_and_are_followed(name: str, tmp_path: Any) -> None:
    """Those of Tile and OneHot tell of the results."""
    one_hot: Any = (lambda: ops.OneHot(), [IDS], [((2, 4), (), ())])
    make, operands, strategies = {**CASES, "OneHot": one_hot}[name]
    path = str(tmp_path / "strategies.json")
    for strategy in strategies:
        primitive, more = make().shard(strategy), (12, np.float32(1), np.float32(0)) if name == "OneHot" else ()
        whole = ash.trace(lambda *xs, held=primitive, more=more: held(*xs, *more), *operands)
        first = ash.plan(whole, devices=8)
        (node,) = first.graph.nodes
        assert f".shard({strategy!r})" in shard_lines(first.plan)
        save_checkpoint(first.plan, path)
        again = ash.plan(with_strategies(replace(whole, annotations={}), path), devices=8)
        assert again.plan.decisions[again.graph.nodes[0]].cause.kind == "configured"
        assert again.plan.strategy(again.graph.nodes[0]).out_strategy == first.plan.strategy(node).out_strategy


def test_a_strategy_that_nothing_takes_is_an_error() -> None:
    divide = ops.RealDiv().shard(((2,), (2,)))
    with pytest.raises(StrategyError, match="is other operators than Div, and takes no strategy"):
        ash.plan(lambda x, y: divide(x, y), (IDS, IDS + 1), devices=8)


def test_an_operator_of_known_numbers_needs_no_strategy_but_may_have_one() -> None:
    tile, ones, x = ops.Tile().shard(((1, 1),)), ms.Tensor(np.ones((1, 12), np.float32)), f(16, 12)
    planned = ash.plan(lambda x: x + tile(ones, (16, 1)), (x,), devices=8)
    np.testing.assert_array_equal(planned.run(x), x + 1)


class Tokens(nn.Cell):
    """Layers whose primitives are split as in MindSpore's scripts: rows of all sequences are one dim."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.dense, self.dropout = (
            nn.Embedding(8, 12),
            nn.Dense(12, 6, activation="relu"),
            nn.Dropout(0.5),
        )
        self.embedding.gather.shard(((1, 2), (4,)))
        self.dense.matmul.shard(((8, 1), (1, 1)))
        self.dense.bias_add.shard(((4, 2), (2,)))
        self.dropout.dropout.shard(((2, 1, 2),))
        self.loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        self.loss.sparse_softmax_cross_entropy.shard(((8, 1), (8,)))

    @ms.jit(jit_level="O1")
    def construct(self, ids: Any) -> Any:
        return self.loss(self.dropout(self.dense(self.embedding(ids))).reshape(-1, 6), ids.reshape(-1) % 6)


def test_strategies_of_layers_are_those_of_mindspores_primitives() -> None:
    ms.set_seed(3)
    net, ids = Tokens(), IDS.reshape(2, 4).repeat(2, 0)
    net.set_train()
    planned = ash.plan(ash.trace(net, ids), devices=8)
    causes = {node.label: planned.plan.decisions[node].cause.kind for node in planned.graph.nodes}
    assert [name for name, kind in causes.items() if kind == "configured"] == [
        "embedding.gather", "dense.matmul", "dense.bias_add", "dropout.dropout", "loss.sparse_softmax_cross_entropy",
    ]  # fmt: skip
    want = net(ids)
    net.dropout.counter.set_data(np.zeros((), np.int32))
    np.testing.assert_allclose(planned.run(ids), want, rtol=1e-5)


def test_class_numbers_go_through_one_hot_where_that_is_split() -> None:
    loss, labels = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"), np.arange(8, dtype=np.int32)
    want = loss(ROWS, labels)
    loss.one_hot.shard(((8, 1), (), ()))
    loss.softmax_cross_entropy.shard(((4, 1), (4, 1)))
    planned = ash.plan(ash.trace(loss, ROWS, labels), devices=8)
    configured = [
        node.op.name for node in planned.graph.nodes if planned.plan.decisions[node].cause.kind == "configured"
    ]
    assert configured == ["OneHot", "SoftmaxCrossEntropyWithLogits"]
    np.testing.assert_allclose(planned.run(ROWS, labels), want, rtol=1e-6)


class Vision(nn.Cell):
    """A small convolutional network with normalization that learns while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(6, 8, 3, has_bias=True), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, group=2, pad_mode="pad", padding=1), nn.BatchNorm2d(8)
        self.relu, self.act, self.pool = nn.ReLU(), nn.PReLU(8), nn.MaxPool2d(2, 2)
        self.mean, self.flatten, self.head = nn.AvgPool2d(2, 2), nn.Flatten(), nn.Dense(8 * 2 * 2, 5)
        self.loss = nn.CrossEntropyLoss()

    def construct(self, x: Any, labels: Any) -> Any:
        x = self.pool(self.relu(self.bn1(self.conv1(x))))
        x = self.mean(self.act(self.bn2(self.conv2(x))))
        return self.loss(self.head(self.flatten(x)), labels)


@pytest.mark.parametrize("search", ["sharding_propagation", "data_parallel"])
def test_a_convolutional_network_learns_alike_on_ranks(search: str) -> None:
    ms.set_seed(1)
    x, labels = f(8, 6, 8, 10)[:, :, :, :8], np.array([0, 4, 2, 1, 3, 3, 0, 2], np.int32)
    states = []
    for split in (False, True):
        ms.set_seed(1)
        net = Vision().set_train()
        step = train_step(net, nn.Momentum(net.trainable_params(), 0.1, 0.9), x, labels)
        planned = ash.plan(step.traced, mesh="dp=4 tp=2", search=search)
        for _ in range(2):
            if split:
                planned.session.call(x, labels)
            else:
                step(x, labels)
        states.append({name: one.asnumpy() for name, one in net.parameters_dict().items()})
    assert {"bn1.moving_mean", "bn2.moving_variance"} <= states[0].keys()
    for name, want in states[0].items():
        np.testing.assert_allclose(states[1][name], want, rtol=1e-4, atol=1e-5, err_msg=name)
    assert not np.array_equal(states[0]["bn1.moving_mean"], np.zeros(8))
