"""StableHLO modules whose shardings do not divide: followed as asked, and equal to the unsplit run."""

from __future__ import annotations

from collections import Counter

import jax  # noqa: F401  (brings the bindings that read modules)
import numpy as np
import pytest

from autoshard.api import plan
from autoshard.partition.program import Collective, Compute
from autoshard.partition.verify import verify_program
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm
from autoshard.trace.evaluate import evaluate

pytestmark = pytest.mark.jax

MODULE = """
module @uneven {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @main(
      %x: tensor<8x10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
      %w: tensor<10x6xf32>, %ids: tensor<8x2xi32>)
      -> (tensor<8x6xf32>, tensor<10xf32>, tensor<2xf32>) {
    %0 = stablehlo.exponential %x : tensor<8x10xf32>
    %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {"y"}]> : tensor<8x10xf32>
    %2 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [0]
      : (tensor<8x10xf32>, tensor<10x6xf32>) -> tensor<8x6xf32>
    %3 = sdy.sharding_constraint %2 <@mesh, [{}, {"y"}]> : tensor<8x6xf32>
    %4 = stablehlo.tanh %3 : tensor<8x6xf32>
    %c = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %5 = stablehlo.reduce(%1 init: %c) applies stablehlo.maximum across dimensions = [0]
      : (tensor<8x10xf32>, tensor<f32>) -> tensor<10xf32>
    %6 = stablehlo.negate %5 : tensor<10xf32>
    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %7 = stablehlo.slice %4 [0:2, 0:6] : (tensor<8x6xf32>) -> tensor<2x6xf32>
    %8 = stablehlo.reduce(%7 init: %z) applies stablehlo.add across dimensions = [1]
      : (tensor<2x6xf32>, tensor<f32>) -> tensor<2xf32>
    return %4, %6, %8 : tensor<8x6xf32>, tensor<10xf32>, tensor<2xf32>
  }
}
"""


def planned(path, text: str):
    file = path / "module.mlir"
    file.write_text(text)
    return plan(str(file), search="factor")


def check(made, *shapes: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    feeds = [
        random.normal(size=shape).astype(np.float32)
        if value.type.dtype.is_float
        else random.integers(0, 3, shape, dtype=np.int32)
        for shape, value in zip(shapes, made.graph.inputs, strict=True)
    ]
    verify_program(made.program)
    got = Executor(made.program, LocalComm(made.plan.mesh.devices))(*feeds)
    for ours, theirs in zip(got, evaluate(made.graph, feeds), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_constraints_that_do_not_divide(tmp_path):
    made = planned(tmp_path, MODULE)
    parts = {node.op.name: made.plan.strategy(node).in_strategy for node in made.graph.nodes}
    assert parts["Exp"] == ((2, 4),) and parts["Tanh"] == ((1, 4),) and parts["Reduce"] == ((2, 4), ())
    masked = [one for one in made.program.instructions if isinstance(one, Compute) and one.op.name == "MaskPadding"]
    assert [one.node.op.name for one in masked] == ["ReduceAdd"], "a reduction of other dims sees no padding"
    kinds = Counter(one.step.kind for one in made.program.instructions if isinstance(one, Collective))
    assert kinds == {"slice": 1, "all_gather": 2, "all_reduce": 2}
    check(made, (8, 10), (10, 6), (8, 2))


CONTRACTED = """
module @contracted {
  sdy.mesh @mesh = <["x"=8]>
  func.func @main(
      %a: tensor<5x10xf32>, %b: tensor<10x7xf32>, %ids: tensor<9xi32>)
      -> (tensor<5x7xf32>, tensor<9x7xf32>) {
    %0 = sdy.sharding_constraint %a <@mesh, [{}, {"x"}]> : tensor<5x10xf32>
    %1 = stablehlo.log %0 : tensor<5x10xf32>
    %2 = sdy.sharding_constraint %b <@mesh, [{"x"}, {}]> : tensor<10x7xf32>
    %3 = stablehlo.exponential %2 : tensor<10x7xf32>
    %4 = stablehlo.abs %1 : tensor<5x10xf32>
    %5 = stablehlo.dot_general %4, %3, contracting_dims = [1] x [0]
      : (tensor<5x10xf32>, tensor<10x7xf32>) -> tensor<5x7xf32>
    %6 = "stablehlo.gather"(%3, %ids) <{
      dimension_numbers = #stablehlo.gather<
        offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
      slice_sizes = array<i64: 1, 7>}> : (tensor<10x7xf32>, tensor<9xi32>) -> tensor<9x7xf32>
    return %5, %6 : tensor<5x7xf32>, tensor<9x7xf32>
  }
}
"""


def test_a_contraction_of_padding_that_holds_infinities(tmp_path):
    """log and exp make minus infinity and one of the zeros in the padding; their product counts for nothing."""
    made = planned(tmp_path, CONTRACTED)
    dot = next(node for node in made.graph.nodes if node.op.name == "DotGeneral")
    gather = next(node for node in made.graph.nodes if node.op.name == "GatherSlices")
    assert made.plan.strategy(dot).in_strategy == ((1, 8), (8, 1))
    assert made.plan.strategy(gather).in_strategy[0] == (8, 1)
    masked = [one for one in made.program.instructions if isinstance(one, Compute) and one.op.name == "MaskPadding"]
    assert len(masked) == 2, "one mask of the table serves both of its users"
    random = np.random.default_rng(1)
    feeds = [random.uniform(1, 2, (5, 10)), random.normal(size=(10, 7)), random.integers(0, 10, 9)]
    feeds = [array.astype(value.type.dtype.numpy) for array, value in zip(feeds, made.graph.inputs, strict=True)]
    got = Executor(made.program, LocalComm(8))(*feeds)
    for ours, theirs in zip(got, evaluate(made.graph, feeds), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


LOOP = """
module @loop {
  sdy.mesh @mesh = <["x"=4]>
  func.func @main(%a: tensor<10x5xf32>) -> (tensor<10x5xf32>, tensor<5xf32>) {
    %0 = sdy.sharding_constraint %a <@mesh, [{"x"}, {}]> : tensor<10x5xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %lim = stablehlo.constant dense<3> : tensor<i32>
    %r:2 = stablehlo.while(%i = %c, %x = %0) : tensor<i32>, tensor<10x5xf32>
      cond { %p = stablehlo.compare LT, %i, %lim : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %p : tensor<i1> }
      do { %j = stablehlo.add %i, %one : tensor<i32>
        %y = stablehlo.cosine %x : tensor<10x5xf32>
        stablehlo.return %j, %y : tensor<i32>, tensor<10x5xf32> }
    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %s = stablehlo.reduce(%r#1 init: %z) applies stablehlo.add across dimensions = [0]
      : (tensor<10x5xf32>, tensor<f32>) -> tensor<5xf32>
    return %r#1, %s : tensor<10x5xf32>, tensor<5xf32>
  }
}
"""


def test_a_loop_carries_padded_blocks(tmp_path):
    made = planned(tmp_path, LOOP)
    loop = next(node for node in made.graph.nodes if node.op.name == "While")
    carried = [made.plan.layouts[value] for value in (*loop.results, *loop.regions[1].args)]
    assert [str(layout) for layout in carried] == ["()", "x, -", "()", "x, -"]
    check(made, (10, 5))
