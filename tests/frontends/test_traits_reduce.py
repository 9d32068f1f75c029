"""Which operations Shardy drops when nobody uses them: those that our operators say have no effects, and no others."""

from __future__ import annotations

import pytest
from jaxlib.mlir.passmanager import PassManager

from autoshard.frontends.stablehlo.reader import load_translators, parse_module
from autoshard.frontends.stablehlo.table import TABLE
from autoshard.ops.registry import lookup
from tests.frontends.hlo_text import array, comparator, operation, reducer, tensor
from tests.frontends.rules import one_op
from tests.frontends.test_rules_linalg import triangular

pytestmark = pytest.mark.jax

X, S, V, K = tensor((4, 6)), tensor(()), tensor((6,)), tensor((2,), "ui64")
SQUARE, SIGNAL = tensor((5, 5)), tensor((4, 6), "complex<f32>")
NORM = "epsilon = 0.1 : f32, feature_index = 1 : i64"
GROUPS = "batch_group_count = 1 : i64, feature_group_count = 1 : i64"
CONV = f"{GROUPS}, dimension_numbers = #stablehlo.conv<[b, f]x[i, o]->[b, f]>"
CASES = {
    "reduce": ([X, S], [tensor((4,))], f"dimensions = {array((1,))}", [reducer()]),
    "sort": ([X], [X], "dimension = 0 : i64", [comparator()]),
    "map": ([X, X], [X], f"dimensions = {array((0, 1))}", [reducer()]),
    "reduce_window": ([X, S], [X], f"window_dimensions = {array((1, 1))}", [reducer()]),
    "select_and_scatter": ([X, X, S], [X], f"window_dimensions = {array((1, 1))}", [comparator("GE"), reducer()]),
    "batch_norm_inference": ([X, V, V, V, V], [X], NORM, []),
    "batch_norm_training": ([X, V, V], [X, V, V], NORM, []),
    "batch_norm_grad": ([X, V, V, V, X], [X, V, V], NORM, []),
    "convolution": ([X, tensor((6, 3))], [tensor((4, 3))], CONV, []),
    "cholesky": ([SQUARE], [SQUARE], "lower = true", []),
    "triangular_solve": ([SQUARE, SQUARE], [SQUARE], triangular(True, True, False, "TRANSPOSE"), []),
    "fft": ([SIGNAL], [SIGNAL], f"fft_type = #stablehlo<fft_type FFT>, fft_length = {array((6,))}", []),
    "rng_bit_generator": ([K], [K, X.replace("f32", "ui32")], "rng_algorithm = #stablehlo<rng_algorithm PHILOX>", []),
    "rng": ([S, S, tensor((2,), "i64")], [X], "rng_distribution = #stablehlo<rng_distribution UNIFORM>", []),
    "custom_call": ([X], [X], 'call_target_name = "nobody_knows_it"', []),
    "custom_call with effects": ([X], [X], 'call_target_name = "mhlo.erf", has_side_effect = true', []),
    "custom_call with rule": ([X], [X], 'call_target_name = "mhlo.erf"', []),
    "custom_call of a move": ([X], [X], 'call_target_name = "MoveToHost"', []),
    "create_token": ([], ["!stablehlo.token"], "", []),
    "composite": ([X], [X], 'name = "a.b", decomposition = @other', []),
}


def text_of(name: str) -> str:
    operands, results, attributes, regions = CASES[name]
    text = operation(name.split()[0], operands, results, attributes, regions, made=one_op)
    return text + f"func.func private @other(%x: {X}) -> {X} {{\n  return %x : {X}\n}}\n"


@pytest.mark.parametrize("name", CASES)
def test_what_is_dropped_when_unused(name: str) -> None:
    load_translators()
    module = parse_module(text_of(name))
    with module.context:
        op = module.body.operations[0].regions[0].blocks[0].operations[0].operation
        translated, attrs = TABLE[op.name](op)
        operator = lookup(translated)
        effects = operator.has_effects(operator.check_attributes(attrs))
        PassManager.parse("builtin.module(sdy-propagation-pipeline)").run(module.operation)
    assert (f"stablehlo.{name.split()[0]}" in str(module)) == effects
