"""Rules of custom calls: Shardy's by target name, those that a call carries, and those that users register."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.frontends.stablehlo.reader import parse_module, read_module
from autoshard.ops import hlo_custom
from autoshard.ops.hlo_custom import custom_call_rule, custom_call_run
from autoshard.trace.evaluate import evaluate
from autoshard.util.errors import ShapeError, UnknownNameError
from tests.frontends.hlo_text import SIZES, operation, shapes, tensor
from tests.frontends.rules import assert_equal_rules, rules_of

pytestmark = pytest.mark.jax


def call(target: str, operands: Sequence[str], results: Sequence[str], more: str = "") -> str:
    attributes = f'call_target_name = "{target}"'
    text = operation("custom_call", operands, results, attributes)
    return text.replace("}> :", f"}}> {{{more}}} :") if more else text


POINTWISE = [
    "annotate_device_placement",
    "Cholesky",
    "CompactWyHelper",
    "InspectSharding",
    "InvertDiagBlocksLowerTriangular",
    "InvertDiagBlocksUpperTriangular",
    "LayoutConstraint",
    "mhlo.erf",
    "MoveToDevice",
    "MoveToHost",
    "X64SplitHigh",
    "X64SplitLow",
    "X64Combine",
    "xla.megascale.provide_metadata",
    "_SPMDInternalOp_MultiPad",
    "_SPMDInternalOp_RotateRight",
    "_SPMDInternalOp_MultiRotate",
    "_SPMDInternalOp_MultiSlice",
    "_SPMDInternalOp_Wrap",
]
WITHOUT = [
    "sdy_testonly",
    "tpu_custom_call",
    "xla_ffi_python_cpu_callback",
    "xla.debug.Log",
    "Sharding",
    "nobody_knows_it",
]


@pytest.mark.parametrize("target", POINTWISE)
@pytest.mark.parametrize("shape", [(4, 1, 6), (), (1,)])
def test_pointwise(target: str, shape: tuple[int, ...]) -> None:
    assert assert_equal_rules(call(target, [tensor(shape)], [tensor(shape)])) == 1
    assert assert_equal_rules(call(target, [tensor(shape), tensor(())], [tensor(shape)] * 2)) == 1


@pytest.mark.parametrize("target", WITHOUT)
def test_none(target: str) -> None:
    assert assert_equal_rules(call(target, [tensor((4, 6))], [tensor((4, 6))])) == 0


def test_calls_without_results_or_operands_have_none() -> None:
    x = "tensor<4x6xf32>"
    text = f"""func.func @main(%x: {x}) -> {x} {{
      stablehlo.custom_call @xla_ffi_python_cpu_callback(%x) {{has_side_effect = true}} : ({x}) -> ()
      %0 = stablehlo.custom_call @nobody_knows_it() : () -> {x}
      return %0 : {x}
    }}"""
    assert assert_equal_rules(text) == 0


@given(shapes(0, 2), SIZES, SIZES)
def test_factorizations(batch: tuple[int, ...], rows: int, columns: int) -> None:
    square, matrix = tensor((*batch, rows, rows)), tensor((*batch, rows, columns))
    taus = tensor((*batch, min(rows, columns)))
    assert assert_equal_rules(call("Eigh", [square], [square, tensor((*batch, rows))])) == 1
    assert assert_equal_rules(call("Qr", [matrix], [matrix, taus])) == 1
    assert assert_equal_rules(call("QrDecompositionBlock", [matrix], [matrix, taus])) == 1
    assert assert_equal_rules(call("ProductOfElementaryHouseholderReflectors", [matrix, taus], [matrix])) == 1


@given(st.data(), shapes())
def test_largest(data: st.DataObject, shape: tuple[int, ...]) -> None:
    count = data.draw(st.integers(1, shape[-1]))
    kept = (*shape[:-1], count)
    results = [tensor(kept), tensor(kept, "i32")]
    config = f"mhlo.attributes = {{k = {count} : i64, largest = true}}, mhlo.version = 1 : i64"
    assert assert_equal_rules(call("mhlo.topk", [tensor(shape)], results, config)) == 1
    operands = [tensor(shape), tensor(shape, "i32"), tensor(()), tensor((), "i32")]
    assert assert_equal_rules(call("ApproxTopK", operands, results)) == 1
    assert assert_equal_rules(call("PartialReduce", operands, results)) == 1


def test_the_state_of_a_generator_stays_whole() -> None:
    text = """func.func @main(%a: tensor<2xui32>, %b: tensor<2xui32>) -> tensor<4xui32> {
      %0 = stablehlo.custom_call @X64Combine(%a, %b) : (tensor<2xui32>, tensor<2xui32>) -> tensor<2xui64>
      %1, %2 = stablehlo.rng_bit_generator %0, algorithm = THREE_FRY
          : (tensor<2xui64>) -> (tensor<2xui64>, tensor<4xui32>)
      return %2 : tensor<4xui32>
    }"""
    assert "blocked_propagation={i}" in str(rules_of(text)[0].ours)
    assert assert_equal_rules(text) == 2


CARRIED = "([i, j])->([i, k], [i]) {i=4, j=6, k=3} need_replication={k}"


def test_a_carried_rule_goes_before_that_of_the_target() -> None:
    for target in ("nobody_knows_it", "Eigh"):
        rule = f"sdy.sharding_rule = #sdy.op_sharding_rule<{CARRIED}>"
        text = call(target, [tensor((4, 6))], [tensor((4, 3)), tensor((4,))], rule)
        assert [pair.ours for pair in rules_of(text)] == [CARRIED]
        assert assert_equal_rules(text) == 1


def test_a_carried_rule_says_nothing_of_computing_in_parts() -> None:
    rule = f"sdy.sharding_rule = #sdy.op_sharding_rule<{CARRIED}>"
    results = [tensor((4, 3)), tensor((4,))]
    for more, split in ((rule, []), (f'{rule}, mhlo.frontend_attributes = {{num_batch_dims = "1"}}', [4])):
        graph = read_module(parse_module(call("nobody_knows_it", [tensor((4, 6))], results, more))).graph
        assert [factor.size for factor in graph.nodes[0].rule.factors if factor.splittable] == split


# -- what users register

OWN = call("my_target", [tensor((4, 6))], [tensor((4, 6))], "effort = 3 : i64, mhlo.backend_config = {turn = 2 : i64}")


@pytest.fixture
def registered(monkeypatch):
    for kept in ("_RULES", "_RUNS"):
        monkeypatch.setattr(hlo_custom, kept, dict(getattr(hlo_custom, kept)))

    @custom_call_rule("my_target")
    def _(call):
        return "b [n] -> b [n]"

    @custom_call_run("my_target")
    def _(x, *, call):
        return np.roll(x, call.get("turn"), 1)


def test_users_give_rule_and_meaning(registered: None) -> None:
    graph = read_module(parse_module(OWN)).graph
    assert str(graph.nodes[0].rule) == "b [n] -> b [n] {b=4, n=6}"
    assert rules_of(OWN)[0].ours == "([i, j])->([i, j]) {i=4, j=6} need_replication={j}"
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    np.testing.assert_array_equal(evaluate(graph, [x])[0], np.roll(x, 2, 1))


def test_a_target_is_registered_once(registered: None) -> None:
    with pytest.raises(UnknownNameError, match="custom call 'my_target' has a rule already"):
        custom_call_rule("my_target")(lambda call: "")


def test_a_target_without_meaning_says_so() -> None:
    graph = read_module(parse_module(OWN)).graph
    assert not graph.nodes[0].op.has_rule
    with pytest.raises(
        ShapeError, match="no operator for custom call my_target .*ops.custom_call_run gives custom calls a meaning"
    ):
        evaluate(graph, [np.zeros((4, 6), np.float32)])


def test_a_missing_config_entry_is_named() -> None:
    results = [tensor((4, 3)), tensor((4, 3), "i32")]
    graph = read_module(parse_module(call("mhlo.topk", [tensor((4, 6))], results))).graph
    with pytest.raises(ShapeError, match="custom call 'mhlo.topk' needs 'k' in its config"):
        evaluate(graph, [np.zeros((4, 6), np.float32)])
