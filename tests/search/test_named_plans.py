"""Named plans: what they split, what they send, that they run as the whole, and what they refuse."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from autoshard import Parameter, nn, ops
from autoshard.api import plan
from autoshard.ir.graph import DATA, PARAMETER, STATE
from autoshard.partition.verify import verify_program
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm
from autoshard.search.named import RECIPES, named_plan, named_plans
from autoshard.search.named.structure import Structure
from autoshard.search.problem import Problem
from autoshard.trace.evaluate import evaluate
from autoshard.trace.function import trace
from autoshard.transform import train_step
from autoshard.truth.models import step_of
from autoshard.truth.rows import DecoderModel, Measurement, ParallelDegrees, Row
from autoshard.util.errors import AutoshardError, PlanError
from benchmarks.models import Transformer
from costmodel import preset
from tests.search.plans import FFN, array, assert_runs_as_whole

LAYERS, HIDDEN, SEQUENCE, BATCH = 2, 32, 12, 8
TOKENS = np.random.default_rng(0).integers(0, 40, (BATCH, SEQUENCE)).astype(np.int32)


@pytest.fixture(scope="module")
def step():
    network = Transformer(LAYERS, HIDDEN, 4, 40, 1, 1)
    # Not Adam: it would scale gradients that are noise to the size of all others.
    return train_step(network, nn.Momentum(network.trainable_params(), 0.1, 0.9), TOKENS, TOKENS)


def planned(step, name: str, mesh: str = "dp=2 tp=4", passes: bool = False):
    """Mostly without passes, as the plans themselves have it: these would scatter gradients for zero1 too."""
    return plan(step, mesh=mesh, search=name, passes=passes)


def layouts(made, role: str) -> dict[str, str]:
    graph = made.graph
    return {value.name: str(made.plan.layouts[value]) for value in graph.inputs if graph.role_of[value] == role}


def collectives(made, forward: bool = False) -> list[tuple[str, str]]:
    """Kind and axes of each collective; of the forward pass alone those that serve its nodes."""
    nodes = set(Structure(made.graph).forward)
    found = (one for one in made.program.collectives if not forward or one.serves in nodes)
    return [(one.step.kind, str(one.step.groups)) for one in found]


NEEDS_MORE = ("expert_parallel", "zero1_ep", "fsdp_ep", "context_parallel", "context_parallel_keep", "ulysses")
"""Plans for what this step does not have: experts, attention as one operator."""


@pytest.mark.parametrize("name", [name for name in named_plans() if name not in NEEDS_MORE])
def test_named_plans_run_as_the_whole(step, name):
    made = planned(step, name)
    verify_program(made.program)
    feeds = made.traced.inputs(TOKENS, TOKENS[:, ::-1].copy())
    outputs = Executor(made.program, LocalComm(8))(*feeds)
    for ours, theirs in zip(outputs, evaluate(made.graph, feeds), strict=True):
        # Gradients of keys' biases are noise around zero.
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=1e-6)


def test_zero_splits_more_from_stage_to_stage(step):
    made = {name: planned(step, name, "dp=4") for name in ("data_parallel", "zero1", "zero2", "zero3")}
    split = {
        name: tuple(sum("dp" in text for text in layouts(one, role).values()) for role in (PARAMETER, STATE))
        for name, one in made.items()
    }
    assert split["data_parallel"] == (0, 0)
    assert split["zero1"] == split["zero2"] and split["zero1"][0] == 0 < split["zero1"][1]
    assert split["zero3"][0] > 0 and split["zero3"][1] == split["zero1"][1]
    kinds = {name: {kind for kind, _ in collectives(one)} for name, one in made.items()}
    assert kinds["data_parallel"] == {"all_reduce"}
    assert {"reduce_scatter", "all_gather"} <= kinds["zero2"] and "reduce_scatter" not in kinds["zero1"]
    memory = {name: one.cost.peak_memory_bytes for name, one in made.items()}
    assert memory["zero2"] < memory["zero1"] < memory["data_parallel"]


def test_megatron_reduces_twice_in_each_block(step):
    made = planned(step, "megatron", passes=True)
    forward = set(Structure(made.graph).forward)
    over_tp = [one for one in made.program.collectives if one.serves in forward and str(one.step.groups) == "tp"]
    at = {part: [one for one in over_tp if one.serves.label.startswith(part)] for part in ("embed", "blocks", "loss")}
    assert [one.step.kind for one in at["blocks"]] == ["all_reduce"] * 2 * LAYERS and len(at["embed"]) == 1
    # The loss runs on the classes as they lie: maximum, sum, and the chosen logit if that is not left as a term.
    assert len(at["loss"]) in (2, 3) and sum(map(len, at.values())) == len(over_tp)
    assert all(one.step.kind == "all_reduce" and one.of.elements == BATCH * SEQUENCE for one in at["loss"])
    found = layouts(made, PARAMETER)
    assert found["blocks.0.attention.query.weight"] == "tp, -" and found["blocks.0.attention.output.weight"] == "-, tp"
    assert found["blocks.1.feed_forward.mapping.weight"] == "tp, -"
    assert found["blocks.1.feed_forward.projection.weight"] == "-, tp"
    assert found["blocks.0.feed_forward.mapping.bias"] == "tp" and found["norm.gamma"] == "-"
    assert found["embed.embedding_table"] == "tp, -" and found["head.weight"] == "tp, -"


def test_split_sequences_send_as_much_and_keep_less(step):
    plain, kept, sequence = (planned(step, name) for name in ("megatron", "megatron_sp_keep", "megatron_sp"))
    tp = [{one.axes: one for one in made.cost.axes}["tp"].nbytes for made in (plain, kept, sequence)]
    assert tp[1] <= tp[0] * 1.01 < tp[2] <= tp[0] * 1.25 * 1.01, "gathered again: a half of a half more"
    memory = [made.cost.peak_memory_bytes for made in (plain, kept, sequence)]
    assert memory[0] > memory[1] > memory[2]
    kinds = [kind for kind, axes in collectives(sequence, forward=True) if axes.startswith("tp")]
    assert kinds.count("reduce_scatter") >= 2 * LAYERS and kinds.count("all_reduce") in (2, 3), "of the loss"


class Mixture(nn.Cell):
    """Tokens in groups, sent to experts by a given choice, through two layers of each, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.up = Parameter(array(8, 16, 24), name="up")
        self.down = Parameter(array(8, 24, 16), name="down")

    def construct(self, x, dispatch):
        sent = ops.einsum(x, dispatch, equation="gsd,gsec->egcd")
        hidden = ops.relu(ops.einsum(sent, self.up, equation="egcd,edf->egcf"))
        back = ops.einsum(hidden, self.down, equation="egcf,efd->egcd")
        return ops.einsum(back, dispatch, equation="egcd,gsec->gsd")


def test_experts_exchange_tokens_all_to_all():
    x, dispatch = array(4, 6, 16), (array(4, 6, 8, 3) > 1).astype(np.float32)
    made = plan(Mixture(), (x, dispatch), mesh="ep=4", search="expert_parallel")
    assert_runs_as_whole(made, (x, dispatch), rtol=1e-4)
    assert layouts(made, PARAMETER) == {"up": "ep, -, -", "down": "ep, -, -"}
    assert [kind for kind, _ in collectives(made)] == ["all_to_all", "all_to_all"]


COMPOSED = {
    "zero3(dp) + megatron_sp(tp)": "dp=2 tp=4",
    "hsdp(a, b) + megatron(c)": "a=2 b=2 c=2",
    "data_parallel(a) + zero1(b)": "a=2 b=4",
    "megatron(tp)": "tp=4",
}


@pytest.mark.parametrize("text", COMPOSED)
def test_compositions_run_as_the_whole(step, text):
    made = planned(step, text, COMPOSED[text], passes=True)
    verify_program(made.program)
    feeds = made.traced.inputs(TOKENS, TOKENS[:, ::-1].copy())
    outputs = Executor(made.program, LocalComm(made.plan.mesh.devices))(*feeds)
    for ours, theirs in zip(outputs, evaluate(made.graph, feeds), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=1e-6)


def test_compositions_split_by_each_of_their_axes(step):
    both = layouts(planned(step, "zero3(dp) + megatron_sp(tp)"), PARAMETER)
    assert both == layouts(planned(step, "fsdp_tp"), PARAMETER)
    assert both["blocks.0.attention.query.weight"] == "tp.dp, -" and both["norm.gamma"] == "dp"
    hybrid = planned(step, "hsdp", "dp=2 fsdp=4")
    assert layouts(hybrid, PARAMETER)["head.weight"] == "fsdp, -"
    assert layouts(hybrid, DATA) == {"ids": "dp.fsdp, -", "labels": "dp.fsdp, -"}
    weights = Counter((kind, axes) for kind, axes in collectives(hybrid))
    assert weights["reduce_scatter", "fsdp"] == weights["all_reduce", "dp"], "scattered near, then summed far"


def test_experts_and_columns_together():
    x, dispatch = array(4, 6, 16), (array(4, 6, 8, 3) > 1).astype(np.float32)
    made = plan(Mixture(), (x, dispatch), mesh="ep=4 tp=2", search="expert_parallel(ep) + megatron(tp)")
    assert_runs_as_whole(made, (x, dispatch), rtol=1e-4)
    assert layouts(made, PARAMETER) == {"up": "ep, -, tp", "down": "ep, tp, -"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("zero3(dp) + zero2(tp)", "has two recipes that split over shard axes"),
        ("zero3(dp) + megatron(dp)", "the axis 'dp' twice; an axis is for one recipe, or for ZeRO and for sequences"),
        ("zero3(dp.dp)", "uses the axis 'dp' twice"),
        ("zero3(dp) + megatrn(tp)", "unknown recipe 'megatrn'; did you mean megatron"),
        ("zero3(dp) + megatron", "cannot read 'megatron' of the composed plan"),
        ("zero3(dp) + megatron(x)", "cannot use axes tensor=x: .* the mesh has dp=2, tp=4"),
        ("fsdp_tp(dp)", "gives 'fsdp_tp' the axes dp; it needs 2: shard, tensor"),
    ],
)
def test_compositions_that_cannot_be_are_refused(step, text, words):
    with pytest.raises(AutoshardError, match=words):
        planned(step, text)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_stream_that_begins_as_a_sum_lies_in_parts(recompute):
    """A table of words in parts gives terms of a sum: completed as they enter the stream, not before each norm."""
    model = DecoderModel("llama", hidden=64, layers=2, heads=8, vocabulary=96, ffn=80, kv_heads=4)
    axes = ParallelDegrees(dp=2, tp=2)
    row = Row("r", "t", model, 32, "h100", axes, "megatron_sp", 4, 2, Measurement(1.0), recompute=recompute)
    made = plan(step_of(row, 2, 4), mesh=axes.mesh, search=row.plan, hardware="h100", passes=False)
    results = {one.name: str(one.layout) for of in made.program.instructions for one in of.results}
    sums = [f"layers.{layer}.{name}" for layer in (0, 1) for name in ("add", "add_1")]
    assert [results[name] for name in sums] == ["dp, tp, -"] * 4


def test_axes_can_be_named(step):
    problem = Problem(step.graph, planned(step, "megatron").plan.mesh, preset("cpu"))
    made = named_plan(problem, RECIPES["megatron"], {"tensor": "dp", "data": "tp"})
    assert "tensor over dp" in made.started_from and "data over tp" in made.started_from
    with pytest.raises(PlanError, match="cannot use axes tensor=rows: words are data, shard, tensor, expert"):
        named_plan(problem, RECIPES["megatron"], {"tensor": "rows"})


def test_a_choice_among_constants_that_nobody_reads_otherwise():
    """JAX's diagonal chooses its branch so: no operator says how the chosen number lies."""

    def model(x, w):
        chosen = ops.cond(x[0, 0] > 0, lambda: np.int32(0), lambda: np.int32(1))
        return ops.matmul(x, w), chosen

    x, w = array(8, 6), array(6, 4)
    made = plan(model, (x, w), "dp=2 tp=2", search="data_parallel")
    for one, other in zip(made.run(x, w), (x @ w, x[0, 0] <= 0), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_what_does_not_fit_is_refused(step):
    with pytest.raises(PlanError, match="'megatron' needs a tensor axis, and mesh 'dp=4' has none left"):
        planned(step, "megatron", "dp=4")
    with pytest.raises(PlanError, match="no product multiplies tokens by weights of several experts"):
        planned(step, "expert_parallel")
    with pytest.raises(PlanError, match="no training step"):
        plan(FFN(sizes=(12, 24, 8)), (array(24, 12),), "dp=4", search="zero2")
    with pytest.raises(PlanError, match=r"first dim that 7 parts divide; they are ids i32\[8, 12\], labels"):
        planned(step, "data_parallel", "dp=7")
    with pytest.raises(PlanError, match=r"products found are dense1.matmul \(whole\), dense2.matmul \(whole\)"):
        plan(FFN(sizes=(12, 22, 7)), (array(24, 12),), "dp=2 tp=4", search="megatron")
    with pytest.raises(
        PlanError, match="no product takes its rows over tp .* no product of data by a weight was found"
    ):
        plan(lambda x: ops.relu(x), (array(8, 12),), "dp=2 tp=4", search="megatron")


def test_structure_is_found_by_roles_and_rules(step):
    structure = Structure(step.graph)
    trained = [value for value, role in zip(step.graph.inputs, step.graph.roles, strict=True) if role == PARAMETER]
    assert {one.parameter for one in structure.updates} == set(trained)
    assert all(one.gradient is not None and len(one.states) == 1 for one in structure.updates)
    assert len(structure.weight_uses) == 6 * LAYERS + 1 and len(structure.lookups) == 1
    net = FFN(sizes=(12, 24, 8))
    assert not Structure(trace(net, array(24, 12)).graph).updates
    sgd = train_step(
        nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params(), 0.1), array(24, 12), array(24, 8)
    )
    assert [one.states for one in Structure(sgd.graph).updates] == [()] * 4


class PostNorm(nn.Cell):
    """A network whose norms come behind the sums: gradients of three products meet that of the stream."""

    def __init__(self) -> None:
        super().__init__()
        weights = (Parameter(array(16, 24, seed=i) / 4, name=f"in{i}") for i in range(3))
        self.first, self.second, self.third = weights
        self.out, self.scale = Parameter(array(24, 16, seed=4) / 4, name="out"), Parameter(array(16), name="scale")

    def construct(self, x):
        x = ops.relu(x * self.scale)
        made = ops.matmul(x, self.first) * ops.relu(ops.matmul(x, self.second)) * ops.matmul(x, self.third)
        return ops.reduce_sum(ops.square(ops.relu(x + ops.matmul(made, self.out))))


def test_terms_that_meet_are_summed_once():
    network = PostNorm()
    made = train_step(network, nn.Momentum(network.trainable_params(), 0.1, 0.9), array(8, 16))
    found = planned(made, "megatron", "tp=4")
    sums = [str(one.of) for one in found.program.collectives if one.step.kind == "all_reduce"]
    assert sums == ["f32[8, 16]", "f32[16]"], "behind the products forward; backward where all four terms have met"
    assert_runs_as_whole(found, (array(8, 16),))


class NormedColumns(nn.Cell):
    """A network that norms the columns of a product: their squares are summed over all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Parameter(array(16, 24) / 4, name="first")
        self.second = Parameter(array(24, 16) / 4, name="second")

    def construct(self, x):
        wide = ops.matmul(x, self.first)
        normed = wide * ops.rsqrt(ops.reduce_mean(ops.square(wide), axis=(len(x.shape) - 1,), keep_dims=True) + 1.0)
        return ops.reduce_sum(ops.square(x + ops.matmul(normed, self.second)))


def test_terms_are_summed_before_they_are_spread():
    network = NormedColumns()
    made = train_step(network, nn.Momentum(network.trainable_params(), 0.1, 0.9), array(8, 16))
    found = planned(made, "megatron", "tp=4")
    sums = Counter(str(one.of) for one in found.program.collectives)
    assert set(sums) <= {"f32[8, 1]", "f32[8, 16]"} and sums["f32[8, 1]"] == 2, sums
    assert_runs_as_whole(found, (array(8, 16),))


def test_numbers_that_columns_are_scaled_by_lie_on_all_ranks():
    """In parts of the sequence they moved the columns, in parts themselves, there and back."""
    network = NormedColumns()
    made = train_step(network, nn.Momentum(network.trainable_params(), 0.1, 0.9), array(2, 8, 16))
    found = planned(made, "megatron_sp", "tp=4")
    sums = Counter((one.step.kind, str(one.of)) for one in found.program.collectives)
    assert sums["all_reduce", "f32[2, 8, 1]"] == 2 and "all_to_all" not in {kind for kind, _ in sums}, sums
    assert sums["reduce_scatter", "f32[2, 8, 16]"], "the stream is in parts of the sequence"
    assert_runs_as_whole(found, (array(2, 8, 16),))
