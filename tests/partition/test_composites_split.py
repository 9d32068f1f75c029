"""Composite operators with the dim split that their kernels need whole: equal to the whole run, by small sums alone."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard import nn, ops
from autoshard.api import plan
from autoshard.core.enumerate import enumerate_strategies
from autoshard.core.place import parse_strategy
from autoshard.core.strategy import Strategy
from autoshard.cost.alone import plan_alone, price_alone
from autoshard.cost.evaluate import evaluate, evaluate_plan
from autoshard.cost.instructions import traffic_bytes
from autoshard.cost.memory import memory_of
from autoshard.cost.prices import prices_for
from autoshard.cost.program_memory import program_memory
from autoshard.ir.fusion import fused
from autoshard.layout import Layout, Mesh
from autoshard.ops.registry import lookup, operator, remove
from autoshard.partition.composites import composite_scratch, parts_of
from autoshard.partition.lower import lower
from autoshard.partition.program import Collective
from autoshard.partition.verify import verify_program
from autoshard.partition.windows import exchange_steps
from autoshard.plan.plan import CONFIGURED, Cause, Decision, Option, Plan
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm
from autoshard.trace.evaluate import evaluate as run_whole
from autoshard.transform import train_step
from autoshard.util.errors import ShapeError, StrategyError
from benchmarks.models import Transformer
from costmodel import preset
from tests.oracle.check import assert_same, check_gradient, check_linear, plan_with, single

MESHES = ("4", "x=2 y=2", "x=2 y=3")
RNG = np.random.default_rng(0)


def drawn(*shape: int, kind: type = np.float32) -> np.ndarray:
    return np.random.default_rng(shape).normal(size=shape).astype(kind)


def labels(*shape: int, classes: int) -> np.ndarray:
    return np.random.default_rng(classes).integers(0, classes, shape).astype(np.int32)


def calls(rows: int, size: int) -> dict[str, tuple[list[np.ndarray], dict]]:
    """Every composite on `rows` x 2 rows of `size` elements."""
    x, g, row = drawn(rows, 2, size), drawn(rows, 2, size) * 2, drawn(rows, 2)
    chosen, scale = labels(rows, 2, classes=size), np.abs(drawn(rows, 2, 1)) + 0.5
    flat, classes = {"axis": -1}, labels(rows, 2, classes=size)
    return {
        "Softmax": ([x * 30], {"axis": 2}),
        "SoftmaxGrad": ([g, x], flat),
        "LogSoftmax": ([x * 30], flat),
        "LogSoftmaxGrad": ([g, x], flat),
        "SoftmaxCrossEntropyWithLogits": ([x[:, 0], np.abs(g[:, 0])], {}),
        "SparseSoftmaxCrossEntropyWithLogits": ([x * 30, chosen], {}),
        "SparseSoftmaxCrossEntropyGrad": ([row, x, classes], {}),
        "LayerNorm": ([x + 3, drawn(size), drawn(size) + 1], {}),
        "RmsNorm": ([x, drawn(size)], {}),
        "Standardize": ([x + 3], {}),
        "NormGrad": ([g, x, scale, drawn(size)], {"center": True}),
        "BatchNormTraining": ([x + 3, drawn(2), drawn(2) + 1], {"epsilon": 1e-3, "feature": 1}),
        "BatchNormGrad": ([x, drawn(2), drawn(2), np.abs(drawn(2)) + 0.5, g], {"epsilon": 1e-3, "feature": 1}),
        "ExtremeGrad": ([row, np.round(x)], {"axis": (2,), "largest": False}),
    }


NAMES = tuple(calls(2, 2))
FUSIONS = ("xla", "kernels", "eager")


def splitting(op: str, arrays: list[np.ndarray], attrs: dict, mesh: str) -> list[tuple]:
    """(graph, node, strategy) for each strategy that splits what the kernel needs whole."""
    chosen = Mesh.parse(mesh)
    graph, node = single(lookup(op), arrays, attrs)
    return [(graph, node, one) for one in enumerate_strategies(node.rule, chosen) if one.exchanges]


def test_these_are_all_composites() -> None:
    assert set(NAMES) == {one.name for one in ops.operators() if one.decomposition is not None}


@settings(max_examples=25)
@given(st.sampled_from(NAMES), st.integers(1, 4), st.integers(1, 3), st.sampled_from(MESHES))
def test_composites_run_split(name, rows, size, mesh):
    arrays, attrs = calls(rows, 12 * size)[name]
    found = splitting(name, arrays, attrs, mesh)
    assert found
    for graph, node, strategy in found:
        made = plan_with(graph, node, strategy)
        program = lower(made)
        verify_program(program)
        outputs = Executor(program, LocalComm(strategy.mesh.devices))(*arrays)
        for got, want in zip(outputs, node.op.evaluate(arrays, node.attrs), strict=True):
            assert_same(got, want, 2e-5, f"{name} by {strategy} on {mesh}")
        check_sums(node, strategy, program, rows * 2)


def check_sums(node, strategy, program, rows: int) -> None:
    """What belongs to the operator are all-reduces of a number for each row at most, and the price counts just them."""
    own = [one for one in program.collectives if one.serves is node and one.step.kind == "all_reduce"]
    assert own and all(one.operand.local.elements <= rows for one in own)
    priced = [(step.elements_moved(of.shape), of.dtype) for step, of in exchange_steps(node, strategy)]
    moved = [(one.step.elements_moved(one.of.shape), one.of.dtype) for one in own]
    assert sorted(map(str, priced)) == sorted(map(str, moved))
    inside = [one for one in program.instructions if getattr(one, "composite", None) is node]
    assert len(inside) == len(parts_of(node, strategy).strategies)


@pytest.mark.parametrize("name", NAMES)
def test_model_and_program_agree_on_memory_and_time(name):
    arrays, attrs = calls(8, 24)[name]
    graph, node, strategy = splitting(name, arrays, attrs, "x=2 y=2")[0]
    layouts = dict(zip(graph.inputs, strategy.operand_layouts, strict=True))
    layouts.update(zip(node.results, strategy.result_layouts, strict=True))
    decision = Decision(Option(strategy, 0.0, 0.0, 0.0), Cause(CONFIGURED))
    made = Plan(graph, strategy.mesh, {node: decision}, layouts, strategy.result_layouts)
    program, hardware = lower(made), preset("cpu").for_ranks(4)
    held, model = program_memory(program, graph), memory_of(made)
    # The interpreter's own share counts instructions, of which the program has more.
    fixed = [sum(one.nbytes for one in use.held if one.kind == "runtime") for use in (held, model)]
    assert 0 <= (model.peak - fixed[1]) - (held.peak - fixed[0]) <= 0.25 * composite_scratch(node, strategy)
    before, after = evaluate_plan(made, hardware), evaluate(program, graph, hardware)
    assert before.communication_seconds == pytest.approx(after.communication_seconds)
    assert before.compute_seconds == pytest.approx(after.compute_seconds) and before.bytes_per_device > 0


@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax", "SparseSoftmaxCrossEntropyWithLogits", "RmsNorm"])
def test_gradients_run_split(name):
    arrays, attrs = calls(2, 12)[name]
    assert check_gradient(lookup(name), arrays, attrs, Mesh.parse("x=2 y=3"), 2e-4) > 4


@pytest.mark.parametrize("name", ["SoftmaxGrad", "LogSoftmaxGrad", "SparseSoftmaxCrossEntropyGrad", "NormGrad"])
def test_terms_of_a_sum_pass_through_the_parts(name):
    arrays, attrs = calls(2, 12)[name]
    assert check_linear(lookup(name), arrays, attrs, Mesh.parse("x=2 y=3")) > 4


@pytest.mark.parametrize("name", ["Softmax", "SparseSoftmaxCrossEntropyWithLogits", "LayerNorm", "NormGrad"])
def test_narrow_floats_are_computed_as_by_the_kernel(name):
    arrays, attrs = calls(3, 24)[name]
    arrays = [one.astype(ml_dtypes.bfloat16) if one.dtype.kind == "f" else one for one in arrays]
    graph, node, strategy = splitting(name, arrays, attrs, "4")[0]
    (got,) = Executor(lower(plan_with(graph, node, strategy)), LocalComm(4))(*arrays)
    (want,) = node.op.evaluate(arrays, node.attrs)
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=1e-2, atol=1e-2)


def test_large_logits_do_not_overflow_and_wrong_labels_are_refused():
    logits = drawn(3, 12) * 1e4
    chosen = labels(3, classes=12)
    graph, node, strategy = splitting("SparseSoftmaxCrossEntropyWithLogits", [logits, chosen], {}, "4")[0]
    run = Executor(lower(plan_with(graph, node, strategy)), LocalComm(4))
    (want,) = node.op.evaluate([logits, chosen], {})
    assert np.isfinite(want).all()
    np.testing.assert_allclose(run(logits, chosen)[0], want, rtol=1e-5)
    with pytest.raises(ShapeError, match=r"labels from .* to 12, but classes are 0\.\.11"):
        run(logits, chosen + (12 - chosen.max()))


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_do_not_divide_are_padded_and_masked(name):
    arrays, attrs = calls(5, 12)[name]
    graph, node = single(lookup(name), arrays, attrs)
    mesh = Mesh.parse("x=2 y=3")
    axes = [(mesh.axis("y"),) if factor.exchange else () for factor in node.rule.factors]
    axes[next(i for i, factor in enumerate(node.rule.factors) if factor.size == 5)] = (mesh.axis("x"),)
    strategy = Strategy(node.rule, mesh, tuple(axes))
    program = lower(plan_with(graph, node, strategy))
    verify_program(program)
    outputs = Executor(program, LocalComm(6))(*arrays)
    for got, want in zip(outputs, node.op.evaluate(arrays, node.attrs), strict=True):
        assert_same(got, want, 2e-5, f"{name} by {strategy}")


def test_the_dim_itself_splits_evenly_alone():
    _, node = single(lookup("Softmax"), [drawn(4, 10)], {})
    mesh = Mesh.parse("x=4")
    with pytest.raises(StrategyError, match="4 parts do not divide"):
        parse_strategy(node.rule, ((1, 4),), mesh, [(4, 10)], "softmax")
    with pytest.raises(StrategyError, match="needs"):
        parse_strategy(node.rule, (Layout.parse("-, x", mesh),), mesh, [(4, 10)], "softmax")


def test_several_normalised_dims_and_several_axes():
    x, gamma = drawn(3, 4, 6), drawn(4, 6)
    found = splitting("RmsNorm", [x, gamma], {"begin_norm_axis": 1}, "x=2 y=3")
    assert any(sum(bool(refs) for refs in strategy.axes) == 2 for *_, strategy in found)
    for graph, node, strategy in found:
        (got,) = Executor(lower(plan_with(graph, node, strategy)), LocalComm(6))(x, gamma)
        assert_same(got, node.op.evaluate([x, gamma], node.attrs)[0], 2e-5, f"{strategy}")


def test_composites_of_composites_and_of_what_cannot_split():
    @operator("TestShares", rule="n [c] -> n [c], n [c], n [c]", dtype=lambda x: (x, x, "i32"))
    def shares(x):
        made = ops.softmax.run(x, axis=-1)
        return made * np.float32(2), x, np.argsort(x, axis=-1, kind="stable")

    @shares.decompose
    def _(x):
        return ops.mul(ops.softmax(x), 2.0), x, lookup("ArgSort")(x)

    try:
        x = drawn(4, 12)
        for graph, node, strategy in splitting("TestShares", [x], {}, "x=2 y=2"):
            program = lower(plan_with(graph, node, strategy))
            verify_program(program)
            for got, want in zip(Executor(program, LocalComm(4))(x), shares.evaluate([x], {}), strict=True):
                assert_same(got, want, 2e-5, f"{strategy}")
            kinds = {step.kind for step, _ in exchange_steps(node, strategy)}
            assert {"all_reduce", "all_gather"} <= kinds, "what must be whole is gathered, and the price tells"
    finally:
        remove("TestShares")


def test_megatron_never_gathers_logits():
    tokens = labels(4, 6, classes=24)
    network = Transformer(1, 16, 4, 24, 1, 1)
    step = train_step(network, nn.Momentum(network.trainable_params(), 0.1, 0.9), tokens, tokens)
    made = plan(step, mesh="dp=2 tp=2", search="megatron")
    verify_program(made.program)
    logits = next(node for node in made.graph.nodes if node.op.name == "SparseSoftmaxCrossEntropyWithLogits")
    rows = logits.operands[1].type.elements // 2
    assert made.plan.strategy(logits).in_strategy == ((2, 1, 2), (2, 1))
    used = {id(logits), *(id(node) for node in made.graph.nodes if node.op.name == "SparseSoftmaxCrossEntropyGrad")}
    loss = [one for one in made.program.collectives if isinstance(one, Collective) and id(one.serves) in used]
    # Maximum, sum and chosen logit; the gradient makes the first two anew, where they are not shared. The chosen logit
    # may be left as a term of the loss.
    assert 2 <= len(loss) <= 5 and all(one.operand.local.elements <= rows for one in loss)
    held = [one.operand.whole.shape for one in made.program.collectives]
    assert not any(len(shape) > 2 and 24 in shape for shape in held), "no logits, nor their gradient"
    feeds = made.traced.inputs(tokens, tokens[:, ::-1].copy())
    for ours, theirs in zip(Executor(made.program, LocalComm(4))(*feeds), run_whole(made.graph, feeds), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["SparseSoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyGrad", "LayerNorm"])
def test_parts_are_kernels_as_the_rest_of_a_graph_is(name):
    """Where kernels are made of several operators, what passes from one part to the next stays in them; what no kernel
    is made of moves all."""
    arrays, attrs = calls(64, 96)[name]
    graph, node, strategy = splitting(name, arrays, attrs, "x=2")[0]
    costs = prices_for(preset("h100").for_ranks(2)).instructions
    apart = price_alone(node, strategy, costs).computing
    by_how = {how: price_alone(fused(graph, how)[1][node], strategy, costs).computing for how in FUSIONS}
    assert by_how["xla"] < by_how["kernels"] <= by_how["eager"] <= apart
    program = lower(plan_alone(fused(graph)[1][node], strategy))
    inside = [one for one in program.instructions if getattr(one, "composite", None) is not None]
    whole = sum(one.local.nbytes for one in (*program.inputs, *program.outputs))
    assert sum(map(traffic_bytes, inside)) < 3 * whole
