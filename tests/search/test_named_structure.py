"""Named plans on what their papers do not draw: state spaces, recurrences, images, tables that are turned.

Each plan that fits runs as the whole; what does not fit says where the structure was not found.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from autoshard import Parameter, nn, ops
from autoshard.api import Planned, plan
from autoshard.core.tensortype import TensorType
from autoshard.search.named.pairs import COLUMNS, ROWS, Pairs
from autoshard.search.named.streams import token_dims
from autoshard.search.named.structure import Structure
from autoshard.transform import train_step
from autoshard.util.errors import PlanError
from tests.search.plans import array, assert_runs_as_whole

WIDTH, WIDE, INNER = 16, 24, 4


def planned(network: nn.Cell, inputs: tuple[np.ndarray, ...], mode: str, mesh: str) -> Planned:
    made = train_step(network, nn.Momentum(network.trainable_params(), 0.1, 0.9), *inputs)
    return plan(made, mesh=mesh, search=mode, passes=False)


def sums(found: Planned, least: int = 8) -> Counter[tuple[str, str]]:
    """Kind and type of each collective that brings more than a few elements into another layout."""
    large = (one for one in found.program.collectives if one.of.elements >= least)
    return Counter((one.step.kind, str(one.of)) for one in large if one.step.communicates)


class StateSpace(nn.Cell):
    """Columns are turned, make a few numbers for each token, and these are spread over all columns again."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = (
            Parameter(array(WIDTH, WIDE) / 4, name="enter"),
            Parameter(array(WIDE, WIDTH) / 4, name="leave"),
        )
        self.inner = Parameter(array(INNER, WIDE) / 4, name="inner")
        self.rate = Parameter(array(WIDE, INNER) / 4, name="rate")

    def construct(self, x):
        wide = ops.transpose(ops.matmul(x, self.enter), (0, 2, 1))
        few = ops.transpose(ops.matmul(ops.transpose(wide, (0, 2, 1)), self.inner, transpose_b=True), (0, 2, 1))
        rates = ops.sigmoid(ops.einsum(self.rate, few, equation="de,bet->bdt"))
        mixed = ops.transpose(wide * rates, (0, 2, 1))
        return ops.reduce_sum(ops.square(x + ops.matmul(mixed, self.leave)))


@pytest.mark.parametrize("mode", ["megatron", "megatron_sp", "megatron_sp_keep"])
def test_latents_lie_on_all_ranks_and_products_of_them_make_columns(mode):
    x = array(4, 8, WIDTH)
    found = planned(StateSpace(), (x,), mode, "tp=4")
    latents = {"f32[4, 4, 8]", "f32[4, 8, 4]"}
    kinds = {kind for kind, of in sums(found) if of in latents}
    assert kinds == {"all_reduce"}, "completed on all ranks, which all scale their columns by it"
    assert not any("24" in of for _, of in sums(found)), "columns stay where they are"
    rates = {value.name: str(found.plan.layouts[value]) for value in found.graph.inputs}
    assert rates["rate"] == "tp, -"
    assert_runs_as_whole(found, (x,))


class Buckets(nn.Cell):
    """Experts as einsum writes them: products with data give tokens to all experts and sum up what these make."""

    def __init__(self, experts: int = 3) -> None:
        super().__init__()
        self.before = nn.Dense(WIDTH, WIDTH)
        self.gate = Parameter(array(WIDTH, experts) / 4, name="gate")
        self.up = Parameter(array(experts, WIDTH, WIDE) / 4, name="up")
        self.down = Parameter(array(experts, WIDE, WIDTH) / 4, name="down")

    def construct(self, x):
        x = self.before(x)
        gates = ops.softmax(ops.matmul(x, self.gate))
        rows = ops.einsum(gates, x, equation="gse,gsd->egsd")
        wide = ops.relu(ops.einsum(rows, self.up, equation="egsd,edf->egsf"))
        made = ops.einsum(wide, self.down, equation="egsf,efd->egsd")
        return ops.reduce_sum(ops.square(x + ops.einsum(gates, made, equation="gse,egsd->gsd")))


def test_experts_are_summed_where_tokens_are_fewer():
    x = array(4, 8, WIDTH)
    found = planned(Buckets(), (x,), "megatron", "tp=4")
    moved = sums(found)
    assert moved["all_reduce", "f32[4, 8, 16]"] >= 1
    assert not any(of.startswith("f32[3,") for _, of in moved), "rows of experts stay sums, for the gates' gradient too"
    assert_runs_as_whole(found, (x,))


class Recurrent(nn.Cell):
    """Each turn adds what the last one made, multiplied, to columns of what goes in."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.again = (
            Parameter(array(WIDTH, WIDE) / 4, name="enter"),
            Parameter(array(WIDE, WIDE) / 8, "again"),
        )
        self.leave = Parameter(array(WIDE, WIDTH) / 4, name="leave")

    def construct(self, x):
        wide = ops.matmul(x, self.enter)
        state = ops.tanh(wide[:, 0])
        for i in range(1, 3):
            state = ops.tanh(wide[:, i] + ops.matmul(state, self.again))
        return ops.reduce_sum(ops.square(ops.matmul(state, self.leave)))


class Beside(nn.Cell):
    """Columns are put behind others before they are multiplied again."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = (
            Parameter(array(WIDTH, WIDE) / 4, name="enter"),
            Parameter(array(WIDE + WIDTH, WIDTH) / 4, name="leave"),
        )

    def construct(self, x):
        wide = ops.concat((ops.relu(ops.matmul(x, self.enter)), x), axis=1)
        return ops.reduce_sum(ops.square(x + ops.matmul(wide, self.leave)))


@pytest.mark.parametrize("mode", ["megatron", "megatron_sp"])
def test_what_has_no_pairs_of_products_is_refused(mode):
    with pytest.raises(PlanError, match=r"takes rows, and .* \(Add\) combines what it makes with columns"):
        planned(Recurrent(), (array(8, 3, WIDTH),), mode, "tp=4")
    with pytest.raises(PlanError, match="no product takes its rows over tp .* the products found are"):
        planned(Beside(), (array(8, WIDTH),), mode, "tp=4")


class Groups(nn.Cell):
    """Channels grow, are convolved in groups, and shrink again."""

    def __init__(self) -> None:
        super().__init__()
        self.grow = nn.Conv2d(4, 8, 1, weight_init=array(8, 4, 1, 1) / 2)
        self.each = nn.Conv2d(8, 8, 3, group=8, weight_init=array(8, 1, 3, 3) / 3)
        self.shrink = nn.Conv2d(8, 4, 1, weight_init=array(4, 8, 1, 1) / 3)

    def construct(self, x):
        wide = ops.relu(self.each(ops.relu(self.grow(x))))
        return ops.reduce_sum(ops.square(x + self.shrink(wide)))


def test_columns_go_on_through_groups_and_streams_of_images_are_in_parts_of_rows():
    x = array(2, 4, 8, 8)
    found = planned(Groups(), (x,), "megatron_sp", "tp=4")
    layouts = {value.name: str(found.plan.layouts[value]) for value in found.graph.inputs}
    assert [layouts[f"{name}.weight"] for name in ("grow", "each", "shrink")] == [
        "tp, -, -, -",
        "tp, -, -, -",
        "-, tp, -, -",
    ]
    assert layouts["x"] == "-, -, tp, -", "rows of the image, not its channels"
    structure = Structure(found.graph)
    pairs = Pairs(structure, lambda use: True)
    assert list(pairs.kinds.values()) == [COLUMNS, ROWS]
    assert token_dims(found.graph, pairs)[found.graph.inputs[0]] == (0, 2, 3)
    assert_runs_as_whole(found, (x,))


class Normalized(Groups):
    """The same with the mean of each channel, over all samples and places, taken from the stream."""

    def construct(self, x):
        stream = x + self.shrink(ops.relu(self.each(ops.relu(self.grow(x)))))
        return ops.reduce_sum(ops.square(stream - ops.reduce_mean(stream, axis=(0, 2, 3), keep_dims=True)))


def test_streams_with_statistics_over_tokens_are_in_parts_of_features():
    x = array(2, 4, 8, 8)
    found = planned(Normalized(), (x,), "megatron_sp", "tp=4")
    assert str(found.plan.layouts[found.graph.inputs[0]]) == "-, tp, -, -", "channels of the image, not its rows"
    assert not any(kind == "all_reduce" for kind, _ in sums(found)), "each rank has all that its statistics are of"
    assert_runs_as_whole(found, (x,))


class Balanced(Groups):
    """The same with a loss of means of channels over all samples and places, as of experts to be used alike."""

    def construct(self, x):
        stream = x + self.shrink(ops.relu(self.each(ops.relu(self.grow(x)))))
        means = ops.softmax(ops.reduce_mean(stream, axis=(0, 2, 3)))
        return ops.reduce_sum(ops.square(stream)) + ops.reduce_sum(ops.square(means))


def test_means_of_a_loss_leave_streams_in_parts_of_rows():
    found = planned(Balanced(), (array(2, 4, 8, 8),), "megatron_sp", "tp=4")
    assert str(found.plan.layouts[found.graph.inputs[0]]) == "-, -, tp, -"
    assert_runs_as_whole(found, (array(2, 4, 8, 8),))


class Turned(nn.Cell):
    """One table of words for what goes in, and turned for what comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.loss = nn.Embedding(32, WIDTH), nn.TokenLoss()

    def construct(self, ids, labels):
        return self.loss(
            ops.matmul(ops.tanh(self.embed(ids)), ops.transpose(self.embed.embedding_table, (1, 0))), labels
        )


@pytest.mark.parametrize(("mode", "times"), [("zero3", 2), ("zero3_keep", 1)])
def test_a_table_that_is_turned_is_gathered_once_in_each_pass(mode, times):
    ids = np.random.default_rng(1).integers(0, 32, (8, 6)).astype(np.int32)
    found = planned(Turned(), (ids, ids), mode, "dp=4")
    table = {("all_gather", "f32[32, 16]"), ("all_gather", "f32[16, 32]")}
    assert sum(count for one, count in sums(found).items() if one in table) == times
    assert_runs_as_whole(found, (ids, ids))


class Scored(nn.Cell):
    """Attention whose scores have a learned bias for each head."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (Parameter(array(WIDTH, WIDTH, seed=i) / 4, name=f"in{i}") for i in range(3))
        self.bias = Parameter(array(1, 4, 8, 8), name="bias")

    def construct(self, x):
        q, k, v = (
            ops.transpose(ops.reshape(ops.matmul(x, w), (x.shape[0], 8, 4, 4)), (0, 2, 1, 3))
            for w in (self.query, self.key, self.value)
        )
        return ops.reduce_sum(ops.square(ops.attention(q, k, v, self.bias)))


@pytest.mark.parametrize("mode", ["ulysses", "context_parallel"])
def test_gradients_of_scores_are_made_as_attention_is(mode):
    x = array(4, 8, WIDTH)
    found = planned(Scored(), (x,), mode, "dp=2 cp=4")
    gradient = next(node for node in found.graph.nodes if node.op.name == "AttentionMaskGrad")
    queries = [str(layout) for layout in found.plan.strategy(gradient).operand_layouts][2]
    assert queries == ("dp, cp, -, -" if mode == "ulysses" else "dp, -, cp, -")
    assert_runs_as_whole(found, (x,), rtol=1e-4)


class Patches(nn.Cell):
    """Attention between patches of an image, or inside of windows of them."""

    def __init__(self, windows: bool) -> None:
        super().__init__()
        self.windows, self.cut = windows, Parameter(array(12, 8) / 3, name="cut")

    def construct(self, x):
        cut = ops.transpose(ops.reshape(x, (x.shape[0], 8, 2, 8, 2, 3)), (0, 1, 3, 2, 4, 5))
        made = ops.matmul(ops.reshape(cut, (x.shape[0], 8, 8, 12)), self.cut)
        shape = (x.shape[0], 4, 2, 4, 2, 8) if self.windows else (x.shape[0], 1, 8, 1, 8, 8)
        parts = ops.transpose(ops.reshape(made, shape), (0, 1, 3, 2, 4, 5))
        tokens = ops.reshape(parts, (x.shape[0] * shape[1] * shape[3], 1, shape[2] * shape[4], 8))
        return ops.reduce_sum(ops.square(ops.attention(tokens, tokens, tokens)))


class FewRows(nn.Cell):
    """Rows of a long table of positions are added to a stream."""

    def __init__(self) -> None:
        super().__init__()
        self.places = Parameter(array(102, WIDTH) / 4, name="places")
        self.enter, self.leave = (
            Parameter(array(WIDTH, WIDE) / 4, name="enter"),
            Parameter(array(WIDE, WIDTH) / 4, name="leave"),
        )

    def construct(self, x):
        stream = x + ops.gather(self.places, np.arange(8, dtype=np.int32), axis=0)
        return ops.reduce_sum(ops.square(stream + ops.matmul(ops.relu(ops.matmul(stream, self.enter)), self.leave)))


def test_gradients_of_few_rows_are_gathered_and_not_terms_of_the_table():
    x = array(4, 8, WIDTH)
    found = planned(FewRows(), (x,), "megatron_sp", "tp=4")
    assert not any(of == "f32[102, 16]" for _, of in sums(found))
    assert_runs_as_whole(found, (x,))


def test_the_gradient_of_a_table_in_parts_is_made_in_parts():
    """The table of words lies in parts of its rows, few of which are read."""

    class Words(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = Parameter(array(96, WIDTH), name="table"), Parameter(array(96, WIDTH), name="head")
            self.up, self.down = Parameter(array(WIDTH, WIDE), name="up"), Parameter(array(WIDE, WIDTH), name="down")

        def construct(self, words):
            x = ops.gather(self.table, words, 0)
            x = x + ops.matmul(ops.relu(ops.matmul(x, self.up)), self.down)
            return ops.reduce_sum(ops.square(ops.matmul(x, self.head, transpose_b=True)))

    words = np.arange(8, dtype=np.int64).reshape(2, 4) * 5
    for mode in ("megatron_sp", "megatron_sp_keep"):
        found = planned(Words(), (words,), mode, "tp=2")
        (made,) = [node for node in found.graph.nodes if node.op.name == "GatherGrad"]
        assert [str(one) for one in found.plan.strategy(made).result_layouts] == ["tp, -"]
        assert_runs_as_whole(found, (words,))


def test_rows_of_an_image_are_the_major_part_of_its_sequence_and_those_of_windows_are_none():
    whole = TensorType.of((4, 16, 16, 3), "f32")
    found = plan(_training(Patches(False), whole), mesh="cp=4", search="context_parallel", passes=False)
    assert str(found.plan.layouts[found.graph.inputs[0]]) == "-, cp, -, -"
    with pytest.raises(PlanError, match="whose contiguous parts become those of the sequence of an attention"):
        plan(_training(Patches(True), whole), mesh="cp=4", search="context_parallel")


def _training(network: nn.Cell, *inputs: TensorType):
    return train_step(network, nn.Momentum(network.trainable_params(), 0.1, 0.9), *inputs)


class TurnedExperts(nn.Cell):
    """Experts whose weights are turned before they are multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.into = Parameter(array(4, WIDE, WIDTH) / 4, name="into")
        self.back = Parameter(array(4, WIDTH, WIDE) / 4, name="back")

    def construct(self, x):
        wide = ops.relu(ops.einsum(x, ops.transpose(self.into, (0, 2, 1)), equation="bed,edf->bef"))
        made = ops.einsum(wide, ops.transpose(self.back, (0, 2, 1)), equation="bef,efd->bed")
        return ops.reduce_sum(ops.square(x + made))


def test_gradients_of_turned_weights_stay_where_they_are_scattered():
    x = array(8, 4, WIDTH)
    found = planned(TurnedExperts(), (x,), "fsdp_ep", "dp=2 ep=2")
    kinds = Counter(kind for kind, _ in sums(found))
    assert kinds["reduce_scatter"] and not kinds["permute"], kinds
    assert_runs_as_whole(found, (x,))
