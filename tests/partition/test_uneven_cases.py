"""Dims that do not divide, case by case: training, data, heads, what operators must say, broken programs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoshard import nn, ops
from autoshard.api import plan
from autoshard.core.strategy import Strategy
from autoshard.core.tensortype import TensorType
from autoshard.core.tensortype import dtype as element_type
from autoshard.ir.graph import Builder
from autoshard.layout import Layout, Mesh
from autoshard.ops.attributes import Offset, OperatorPlacement, Valid
from autoshard.ops.padding import neutral_element
from autoshard.ops.registry import lookup, operator, remove
from autoshard.partition.lower import lower
from autoshard.partition.program import Register
from autoshard.partition.verify import verify_program
from autoshard.plan.plan import CONFIGURED, Cause, Decision, Option, Plan
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm
from autoshard.trace.evaluate import evaluate
from autoshard.trace.initializer import set_seed
from autoshard.transform.train import train_step
from autoshard.util.errors import GraphError, StrategyError

MESH = Layout((2, 4), ("dp", "tp"))


class Net(nn.Cell):
    """10 -> 13 -> 7, rows and columns split unevenly."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Dense(10, 13), nn.LayerNorm(13), nn.Dense(13, 7)
        self.loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        self.first.matmul.shard((MESH("dp", None), MESH("tp", None)))
        self.second.matmul.shard((MESH("dp", "tp"), MESH(None, "tp")))

    def construct(self, x, labels):
        return self.loss(self.second(ops.gelu(self.norm(self.first(x)))), labels)


def test_some_steps_of_training():
    set_seed(3)
    network, random = Net(), np.random.default_rng(0)
    x, labels = random.normal(size=(9, 10)).astype(np.float32), random.integers(0, 7, 9).astype(np.int32)
    step = train_step(network, nn.Adam(network.trainable_params(), learning_rate=0.05, eps=1e-4), x, labels)
    planned = plan(step, mesh="dp=2 tp=4", search="factor")
    verify_program(planned.program)
    program, graph = planned.program, planned.graph
    assert sum(one.size is not None for one in program.inputs) >= 6, "weights and states are padded"
    arrays = list(planned.traced.inputs(x, labels))
    executor = Executor(program, LocalComm(8))
    held = executor.scatter(arrays)
    for _ in range(3):
        whole, made = evaluate(graph, arrays), executor.run(held)
        for ours, theirs in zip(executor.gather(made), whole, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)
        for out, into in program.updates.items():
            arrays[into], held[into] = whole[out], made[out]


def test_layouts_of_data_may_be_uneven():
    planned = plan(lambda x: ops.relu(x), np.zeros((9, 5), np.float32), mesh="a=4", dataset_strategy=(_rows(4),))
    (register,) = planned.program.inputs
    assert register.local.shape == (3, 5) and register.true.shape == (9, 5)
    x = np.random.default_rng(1).normal(size=(9, 5)).astype(np.float32)
    (made,) = Executor(planned.program, LocalComm(4))(x)
    np.testing.assert_array_equal(made, np.maximum(x, 0))


def _rows(count: int) -> Layout:
    return Layout((count,), ("a",))("a", None)


def test_how_much_of_a_block_is_no_padding():
    mesh = _rows(4).mesh
    place = OperatorPlacement((TensorType.of((9, 5)),), (), (_rows(4),), (), ((12, 5),), ())
    assert place.local_operand(0) == (3, 5)
    assert place.operand_offset(0, 0) == Offset(mesh, mesh.all_axes, 3)
    assert [place.operand_valid(0, 0).at(rank) for rank in range(4)] == [3, 3, 3, 0]
    assert [Valid(mesh, mesh.all_axes, 4, 9).at(rank) for rank in range(4)] == [4, 4, 1, 0]


def test_an_operator_that_does_not_say_what_padding_must_hold():
    """exp(0) is no 0: a sum of exponentials may not be split unevenly before its author says how."""
    sum_of_exp = operator("SumOfExp", rule="m n -> m")(lambda x: np.exp(x).sum(1))
    try:
        whole = MESH(None, "tp")
        net = nn.Cell()
        net.op = ops.SumOfExp().shard((whole,))
        net.construct = lambda x: net.op(x)
        assert sum_of_exp.neutral == ""
        with pytest.raises(
            StrategyError, match=r"SumOfExp.* reduces dim 1 of f32\[3, 10\], which 4 parts do not divide"
        ):
            plan(net, np.zeros((3, 10), np.float32), mesh="dp=2 tp=4").program  # noqa: B018
    finally:
        remove("SumOfExp")


def test_blocks_of_two_sizes_meet_through_the_whole_dim():
    """A reshape that splits heads fully and their width beside an operator that splits the heads unevenly."""
    mesh = Mesh(a=3, b=2)
    a, b = mesh.axis("a"), mesh.axis("b")
    builder = Builder("heads")
    x = builder.input(TensorType.of((12, 5)), "x")
    (heads,) = builder.add(lookup("Reshape"), [x], {"shape": (3, 4, 5)}).results
    (positive,) = builder.add(lookup("ReLU"), [heads], {}).results
    builder.add(lookup("Reshape"), [positive], {"shape": (12, 5)})
    graph = builder.build([heads, builder.nodes[-1].results[0]])
    split, unevenly, again = graph.nodes
    strategies = {
        split: Strategy(split.rule, mesh, ((a,), (b,), ())),
        unevenly: Strategy(unevenly.rule, mesh, ((b,), (), (a,))),
        again: Strategy(again.rule, mesh, ((a,), (b,), ())),
    }
    layouts = {x: Layout(mesh, [(b,), (a,)])}
    for node, strategy in strategies.items():
        layouts.update(zip(node.results, strategy.result_layouts, strict=True))
    decisions = {node: Decision(Option(one, 0.0, 0.0, 0.0), Cause(CONFIGURED)) for node, one in strategies.items()}
    planned = Plan(graph, mesh, decisions, layouts, (Layout(mesh, [(b,), (), ()]), Layout(mesh, [(a, b), ()])))
    program = lower(planned)
    verify_program(program)
    made = [one for instruction in program.instructions for one in instruction.results]
    array = np.random.default_rng(5).normal(size=(12, 5)).astype(np.float32)
    first, second = Executor(program, LocalComm(6))(array)
    np.testing.assert_array_equal(first, array.reshape(3, 4, 5))
    np.testing.assert_array_equal(second, np.maximum(array, 0))
    assert {one.whole.shape[0] for one in made if one.whole.rank == 3 and one.layout.dims[0] == (a,)} == {3, 6}


def test_broken_laws_of_padding_are_named():
    planned = plan(lambda x: ops.relu(x), np.zeros((9, 5), np.float32), mesh="a=4", dataset_strategy=(_rows(4),))
    program = planned.program
    (register,) = program.inputs
    for whole, words in (((9, 5), "held as 9 in 4 parts"), ((8, 5), "of size 9, is held as 8"), ((12, 6), "as 6 in 1")):
        wrong = Register("x", TensorType.of(whole), register.layout, (9, 5))
        with pytest.raises(GraphError, match=words):
            verify_program(replace(program, inputs=(wrong,)))


@pytest.mark.parametrize("name", ["f64", "f16", "i32", "i8", "u64", "bool"])
@pytest.mark.parametrize("reduction", ["sum", "prod", "max", "min"])
def test_neutral_elements(reduction, name):
    of = element_type(name)
    element = np.array(neutral_element(reduction, of)).astype(of.numpy)
    some = np.array([0, 1]) if name == "bool" else np.array([0, 1, 5, 100] + [-3] * (name[0] != "u"))
    combine = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[reduction]
    some = some.astype(of.numpy)
    np.testing.assert_array_equal(combine(some, element), some)
    if reduction in ("max", "min") and name[0] in "iu":
        limits = np.iinfo(of.numpy)
        assert element == (limits.min if reduction == "max" else limits.max)


def test_neutral_elements_of_types_without_infinities():
    import ml_dtypes

    assert neutral_element("min", element_type("f8e4m3fn")) == float(ml_dtypes.finfo("float8_e4m3fn").max)
    assert neutral_element("max", element_type("f8e5m2")) == -np.inf == neutral_element("max", element_type("bf16"))
    assert neutral_element("max", element_type("i4")) == -8 and neutral_element("min", element_type("u4")) == 15
