"""Named plans send and keep what their papers say: formula and figure side by side.

ZeRO: Rajbhandari et al. 2020, sections 5 and 7. Megatron: Shoeybi et al. 2019, section 3. Split sequences: Korthikanti
et al. 2022, section 4.2.2. Without passes over the program, which find something to save in each of them.
"""

from __future__ import annotations

import pytest

from autoshard import nn
from autoshard.api import Planned, plan
from autoshard.core.tensortype import TensorType
from autoshard.cost.memory import memory_of
from autoshard.ir.graph import PARAMETER
from autoshard.transform import train_step
from benchmarks.models import Transformer

LAYERS, HIDDEN, CLASSES, PARTS = 8, 64, 128, 4
NEAR = 0.05
FLOAT = 4


def step(batch: int, sequence: int, layers: int = LAYERS):
    network = Transformer(layers, HIDDEN, 4, CLASSES, 1, 1)
    tokens = TensorType.of((batch, sequence), "i32")
    return train_step(network, nn.Adam(network.trainable_params(), learning_rate=1e-3), tokens, tokens)


def parameters(traced) -> int:
    """Bytes of all parameters."""
    roles = zip(traced.graph.inputs, traced.graph.roles, strict=True)
    return sum(value.type.nbytes for value, role in roles if role == PARAMETER)


def kept(planned: Planned) -> float:
    """The peak without what the interpreter itself needs."""
    use = memory_of(planned.plan)
    return use.peak - sum(one.nbytes for one in use.at(use.peak_moment) if one.kind == "runtime")


@pytest.fixture(scope="module")
def few_tokens():
    return step(PARTS, 4)


# In bytes of the parameters: what a device sends, times (N - 1) / N; and what it keeps of parameters, gradients and the
# two states of Adam.
ZERO = {
    "data_parallel": (2, 1 + 1 + 2),
    "zero1": (3, 1 + 1 + 2 / PARTS),  # all-reduced gradients; with passes these are scattered, as in zero2
    "zero2": (2, 1 + (1 + 2) / PARTS),
    "zero3": (3, (1 + 1 + 2) / PARTS),
}


@pytest.mark.parametrize("name", ZERO)
def test_zero(few_tokens, name):
    planned, whole = plan(few_tokens, mesh=f"dp={PARTS}", search=name, passes=False), parameters(few_tokens)
    sent, memory = ZERO[name]
    figures = planned.cost.bytes_per_device / (whole * (PARTS - 1) / PARTS), kept(planned) / whole
    # One whole gradient is there before it is scattered.
    assert figures == pytest.approx((sent, memory), rel=NEAR), f"{name}: formula {sent, memory}, figure {figures}"


def test_zero3_that_keeps_what_it_gathered(few_tokens):
    once, again = (plan(few_tokens, mesh=f"dp={PARTS}", search=name, passes=False) for name in ("zero3_keep", "zero3"))
    whole = parameters(few_tokens)
    assert once.cost.bytes_per_device / (whole * (PARTS - 1) / PARTS) == pytest.approx(2, rel=NEAR)
    assert kept(once) > kept(again) + 0.5 * whole


# How often what goes into a product by columns is sent: once as half of an all-reduce, and again for the backward pass.
AGAIN = {"megatron": 0, "megatron_sp_keep": 0, "megatron_sp": 1 / 2}


@pytest.mark.parametrize("name", AGAIN)
@pytest.mark.parametrize("data", [1, 2])
def test_megatron(name, data):
    batch, sequence, layers = 8, 128, 3
    mesh = f"tp={PARTS}" if data == 1 else f"dp={data} tp={PARTS}"
    made = step(batch, sequence, layers)
    planned = plan(made, mesh=mesh, search=name, passes=False)
    # An all-reduce, or its two halves, behind each block forward and backward, behind the look-up, before the head.
    sums = 4 * layers + 2 + AGAIN[name] * (2 * layers + 1)
    formula = sums * 2 * (PARTS - 1) / PARTS * batch // data * sequence * HIDDEN * FLOAT
    figure = {one.axes: one.nbytes for one in planned.cost.axes}["tp"]
    assert figure == pytest.approx(formula, rel=NEAR), f"{name}: formula {formula}, figure {figure}"
    held = sum(one.nbytes for one in memory_of(planned.plan).at(0) if one.kind == "parameter")
    assert held == pytest.approx(parameters(made) / PARTS, rel=NEAR)


def test_a_plan_on_a_graph_of_its_own_is_saved_and_loaded(few_tokens, tmp_path):
    made = plan(few_tokens, mesh=f"dp={PARTS}", search="zero3")
    again = plan(few_tokens, mesh=f"dp={PARTS}", search=str(made.save(tmp_path / "plan.json")))
    assert again.cost == made.cost and len(again.graph.nodes) == len(made.graph.nodes) > len(few_tokens.graph.nodes)


class PostNorm(nn.Cell):
    """Layers that normalise behind each sum: the gradient of a stream is one of products and of what comes by it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, HIDDEN)
        self.ups = nn.CellList([nn.Dense(HIDDEN, 2 * HIDDEN) for _ in range(4)])
        self.downs = nn.CellList([nn.Dense(2 * HIDDEN, HIDDEN) for _ in range(2)])
        self.norms = nn.CellList([nn.LayerNorm((HIDDEN,)) for _ in range(3)])
        self.head, self.loss = nn.Dense(HIDDEN, CLASSES, has_bias=False), nn.TokenLoss()

    def construct(self, ids, labels):
        from autoshard import ops

        x = self.norms[0](self.embed(ids))
        for i, down in enumerate(self.downs):
            x = self.norms[i + 1](x + down(ops.relu(self.ups[2 * i](x)) * self.ups[2 * i + 1](x)))
        return self.loss(self.head(x), labels)


@pytest.mark.parametrize("name", AGAIN)
def test_gradients_of_products_are_summed_before_they_are_sent(name, tmp_path):
    batch, sequence, layers = 8, 128, 2
    network, tokens = PostNorm(), TensorType.of((batch, sequence), "i32")
    made = train_step(network, nn.Adam(network.trainable_params(), learning_rate=1e-3), tokens, tokens)
    planned = plan(made, mesh=f"tp={PARTS}", search=name, passes=False)
    # Behind the look-up and each layer forward, before each layer and the head backward.
    sums = 2 * layers + 2 + AGAIN[name] * (layers + 1)
    formula = sums * 2 * (PARTS - 1) / PARTS * batch * sequence * HIDDEN * FLOAT
    figure = {one.axes: one.nbytes for one in planned.cost.axes}["tp"]
    assert figure == pytest.approx(formula, rel=NEAR), f"{name}: formula {formula}, figure {figure}"
    again = plan(made, mesh=f"tp={PARTS}", search=str(planned.save(tmp_path / "plan.json")), passes=False)
    assert again.cost == planned.cost and len(again.graph.nodes) == len(planned.graph.nodes)


class Low(nn.Cell):
    """A network whose weights are cast, or cast and transposed, where they are used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Dense(24, 40, has_bias=False), nn.Dense(40, 24, has_bias=False)

    def construct(self, x, wanted):
        from autoshard import ops

        hidden = ops.relu(ops.matmul(x, ops.cast(ops.transpose(self.first.weight, (1, 0)), "bf16")))
        out = ops.matmul(hidden, ops.cast(self.second.weight, "bf16"), transpose_b=True)
        return ops.reduce_mean(ops.square(ops.cast(out, "f32") - wanted))


@pytest.mark.parametrize(("name", "gathered"), [("zero2", ["f32", "f32"]), ("zero3", ["bf16"] * 3)])
def test_gradients_of_weights_in_another_form_are_scattered(name, gathered):
    network = Low()
    optimizer = nn.Adam(network.trainable_params(), learning_rate=1e-3)
    made = train_step(network, optimizer, TensorType.of((16, 24), "bf16"), TensorType.of((16, 24), "f32"))
    planned = plan(made, mesh=f"dp={PARTS}", search=name, passes=False)
    large = [one for one in planned.program.collectives if one.of.elements == 24 * 40]
    kinds = {kind: [str(one.of.dtype) for one in large if one.step.kind == kind] for kind in
             ("all_reduce", "reduce_scatter", "all_gather")}  # fmt: skip
    assert kinds == {"all_reduce": [], "reduce_scatter": ["bf16", "bf16"], "all_gather": gathered}
